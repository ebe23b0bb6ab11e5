"""The values of a plan: nodes, tasks and commands, as known before the start, and their JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

JobName = Literal["chief", "worker", "ps", "evaluator"]
JOB_NAMES: tuple[JobName, ...] = ("chief", "worker", "ps", "evaluator")
"""In the order in which tables and logs show them."""

Kind = Literal["training", "tuner", "plain"]
Network = Literal["host", "private"]

_TASK = re.compile(r"(chief|worker|ps|evaluator)[:-](\d+)")


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One TensorFlow process of the cluster, ``worker:1``."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"

    @property
    def file_name(self) -> str:
        """``worker-1``: the task's name where a colon would be a nuisance."""
        return f"{self.job}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read ``worker:1`` (or ``worker-1``); raises ValueError for anything else."""
        match = _TASK.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a task; write JOB:INDEX, for example worker:1")
        return cls(match[1], int(match[2]))


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One environment variable of a task, and where its value comes from."""

    name: str
    value: str
    source: str
    """For people: ``job.env``, ``runtime.hosts.*.env``, ``--set``, ``tfcluster`` …"""
    secret: bool = False

    @property
    def shown(self) -> str:
        return "********" if self.secret else self.value


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that runs a node's tasks. `packages` maps distribution name → version."""

    path: str
    why: str
    """Why this one: ``$VIRTUAL_ENV``, ``.venv above the workdir``, ``--python`` …"""
    version: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Only what matters: tensorflow, keras, tf-keras, tensorflow-estimator, numpy, protobuf."""


Gpus = int | list[int] | tuple[int, ...] | Literal["all"] | None
"""As the spec says it: a number per task, indexes, all of them, or nothing (divide evenly)."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What the spec wants each task to have of its node; None: an even share."""

    gpus: Gpus = None
    cpus: int | None = None
    threads: int | None = None
    pin: bool | None = None
    """To its own cores; None: to those of its NUMA node."""


@dataclass(frozen=True, slots=True)
class Container:
    """What docker is to start for a task. Paths are of the machine on which its daemon runs."""

    image: str
    cpus: int | None = None
    cores: tuple[int, ...] | None = None
    """Those it is held to; None: any."""
    memory: str | None = None
    """At most, as docker writes it: ``8g``."""
    gpus: tuple[int, ...] | Literal["all"] | None = None
    """Indexes of the machine's GPUs; inside they count from 0."""
    data_dir: str | None = None
    """Mounted read-only, under the same path."""
    shared_dir: str | None = None
    """Storage of all tasks, mounted under the same path."""
    user: str | None = None
    """Who the task is, as docker's ``--user`` has it; None: whom the image names, else nobody."""


@dataclass(frozen=True, slots=True)
class Warm:
    """What a node's agent keeps for the next run (`up --warm`)."""

    key: str
    """Of all that decides whether what one run imported will do for another."""
    seconds: float


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A place where tasks run: this machine, an SSH host, or a container."""

    name: str
    """``local``, the host part of the addresses of its tasks, or a container's host name."""
    backend: str
    interpreter: Interpreter | None
    """None for a `command` job, and where only the node itself can tell."""
    workdir: str
    network: Network = "host"
    """``private``: its tasks have a network of their own, with nothing in it but loopback."""
    destination: str | None = None
    """What ssh is given to reach it, where that is not its name."""
    container: Container | None = None
    """Of a node that is one."""
    warm: Warm | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """What one process runs: argv, its environment besides the inherited one, its directory."""

    argv: tuple[str, ...]
    env: tuple[EnvVar, ...]
    cwd: str
    unset: tuple[str, ...] = ()
    """Names that the process must not inherit: a TF_CONFIG of somebody else, …"""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One task before its start; `port` 0 is still to be chosen by its node's agent."""

    id: TaskId
    node: str
    host: str
    port: int
    command: Command
    """Without what only an attempt knows: TF_CONFIG, run id, directories of the run."""
    cores: tuple[int, ...] | None = None
    gpus: tuple[int, ...] | None = None
    """Indexes of the node's GPUs this task sees; None: all are left visible."""
    has_own_command: bool = False
    """Whether it is started without boot although the job has hooks: a command of its own."""
    in_cluster: bool = True
    """Whether other tasks' TF_CONFIG name it: false for an evaluator."""
    serves: bool = False
    """A ps, or a worker of a parameter-server job. Whether such a worker really serves, or trains
    by itself, is known only once it reports it."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Supervision:
    """The spec's `supervision`, every duration in seconds; None: no such limit."""

    max_restarts: int = 3
    restart_on_error: bool = False
    backoff_s: float = 1.0
    start_deadline_s: float = 300.0
    stall_deadline_s: float | None = None
    run_deadline_s: float | None = None
    grace_s: float = 30.0
    finish_grace_s: float = 60.0
    lease_s: float = 60.0
    min_workers: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The spec's `checkpoints`: what is gathered from the chief, and where it goes."""

    gather: bool = True
    keep: int = 3
    dir: str | None = None
    outputs: tuple[str, ...] = ()
    to: str | None = None


@dataclass(frozen=True)  # without slots: what it is asked for a thousand times is kept
class Plan:
    """A spec resolved as far as values allow; constant for a run, printable, JSON-able."""

    name: str
    spec_path: str | None
    kind: Kind
    strategy: str
    nodes: tuple[NodePlan, ...]
    tasks: tuple[TaskPlan, ...]
    prepare: Mapping[str, Command]
    """Node name → the command run there once before the gang; empty without `prepare`."""
    supervision: Supervision
    checkpoints: CheckpointPlan
    hooks: bool
    """Whether tasks are started through `tfcluster_workers.boot` with reporting attached."""
    workdir: str = ""
    """The job's folder on this machine: what tasks here run in, and what others get a copy of."""
    needs_tensorflow: bool = False
    """Whether it is certain that the job imports TensorFlow."""
    needs_estimator: bool = False
    """Whether it is certain that the job uses ``tf.estimator``, which ended with 2.15."""
    include: tuple[str, ...] = ()
    """Globs of what such a copy holds although git ignores it."""
    withheld: tuple[str, ...] = ()
    """Files with secrets, which it does not hold: their values reach the tasks another way."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """strategy and keras settings that some task must read: ``{"communication": "RING", …}``."""
    notes: tuple[str, ...] = ()
    """Said once in the start panel: open ports, tf_keras instead of Keras 3, …"""
    preload: tuple[str, ...] = ()
    """What one process of each node imports for all its tasks (`plan.preloading`)."""
    resources: Resources = field(default_factory=Resources)
    """What a node that only its agent knows is divided by, see `tfcluster.nodes.orders`."""
    joins: bool = False
    """Started by `tfcluster join`: a part of a cluster, never started again from here."""
    elsewhere: tuple[TaskPlan, ...] = ()
    """The cluster's other tasks, which somebody else starts: `tasks` only have to find them."""

    @property
    def by_hand(self) -> tuple[TaskPlan, ...]:
        """Tasks of this run that its user starts (`up --except`)."""
        return () if self.joins else self.elsewhere

    @property
    def chief(self) -> TaskId:
        """The task whose checkpoints count: ``chief:0``, else ``worker:0``; maybe elsewhere."""
        chief = TaskId("chief", 0)
        return chief if chief in self._by_id else TaskId("worker", 0)

    @property
    def images(self) -> tuple[str, ...]:
        """Of the containers, each once; empty for a run without."""
        found = (node.container.image for node in self.nodes if node.container is not None)
        return tuple(dict.fromkeys(found))

    @property
    def listening(self) -> tuple[TaskPlan, ...]:
        """Those that others of the run connect to, so their ports must be known to all."""
        if self.kind == "training":
            return self.tasks
        # Tuners only ask their chief, the oracle.
        return tuple(t for t in self.tasks if self.kind == "tuner" and t.id.job == "chief")

    def task(self, task_id: TaskId) -> TaskPlan:
        """Also one elsewhere; raises KeyError for a task the plan does not have."""
        return self._by_id[task_id]

    @cached_property
    def _by_id(self) -> Mapping[TaskId, TaskPlan]:
        return {task.id: task for task in (*self.elsewhere, *self.tasks)}

    def node(self, name: str) -> NodePlan:
        """Raises KeyError for a node the plan does not have."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Plain JSON values; what is secret is left out, so the file may be shown to anybody."""
    data = asdict(plan)
    data["tasks"] = [_task_to_json(task) for task in plan.tasks]
    data["prepare"] = {node: command_to_json(c) for node, c in plan.prepare.items()}
    data["elsewhere"] = [_task_to_json(task) for task in plan.elsewhere]
    for node in data["nodes"]:
        if node["container"] is None:
            del node["container"]
        if node["warm"] is None:
            del node["warm"]
    if not plan.joins:
        del data["joins"]
    if not (plan.joins or plan.elsewhere):
        del data["elsewhere"]
    if not plan.preload:
        del data["preload"]
    if not plan.needs_estimator:
        del data["needs_estimator"]
    if not plan.withheld:
        del data["withheld"]
    return data


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """Read what `plan_to_json` wrote (secrets come back empty); unknown keys are ignored."""
    values = _known(Plan, data)
    values["nodes"] = tuple(_node_from_json(node) for node in data["nodes"])
    values["tasks"] = tuple(_task_from_json(task) for task in data["tasks"])
    values["elsewhere"] = tuple(_task_from_json(task) for task in data.get("elsewhere", ()))
    values["prepare"] = {n: _command_from_json(c) for n, c in data["prepare"].items()}
    values["supervision"] = Supervision(**_known(Supervision, data["supervision"]))
    checkpoints = _known(CheckpointPlan, data["checkpoints"])
    checkpoints["outputs"] = tuple(checkpoints["outputs"])
    values["checkpoints"] = CheckpointPlan(**checkpoints)
    values["resources"] = Resources(**_known(Resources, data.get("resources", {})))
    values["notes"] = tuple(data["notes"])
    values["preload"] = tuple(data.get("preload", ()))
    values["include"] = tuple(data.get("include", ()))
    values["withheld"] = tuple(data.get("withheld", ()))
    return Plan(**values)


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in data.items() if key in names}


def _task_to_json(task: TaskPlan) -> dict[str, Any]:
    data = asdict(task) | {"id": str(task.id), "command": command_to_json(task.command)}
    if not task.has_own_command:
        del data["has_own_command"]
    return data


def command_to_json(command: Command) -> dict[str, Any]:
    hidden = [asdict(var) | ({"value": None} if var.secret else {}) for var in command.env]
    return asdict(command) | {"env": hidden}


def _node_from_json(data: Mapping[str, Any]) -> NodePlan:
    values = _known(NodePlan, data)
    if data["interpreter"] is not None:
        values["interpreter"] = Interpreter(**_known(Interpreter, data["interpreter"]))
    if (container := values.get("container")) is not None:
        lists = {name: _tuple(container[name]) for name in ("cores", "gpus")}
        values["container"] = Container(**_known(Container, container) | lists)
    if (warm := values.get("warm")) is not None:
        values["warm"] = Warm(**_known(Warm, warm))
    return NodePlan(**values)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _task_from_json(data: Mapping[str, Any]) -> TaskPlan:
    values = _known(TaskPlan, data)
    values["id"] = TaskId.parse(data["id"])
    values["command"] = _command_from_json(data["command"])
    for name in ("cores", "gpus"):
        values[name] = _tuple(data[name])
    return TaskPlan(**values)


def _command_from_json(data: Mapping[str, Any]) -> Command:
    env = tuple(
        EnvVar(**_known(EnvVar, var) | {"value": var["value"] or ""}) for var in data["env"]
    )
    return Command(tuple(data["argv"]), env, data["cwd"], tuple(data["unset"]))
