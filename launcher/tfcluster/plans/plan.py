"""The values of a plan: nodes, tasks and commands, as known before the start, and their JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from tfcluster import kinds
from tfcluster.kinds import Capabilities
from tfcluster.spec import (
    COORDINATED,
    DATA_JOBS,
    JOBS,
    UserDefault,
    file_name_of,
    mask_webhook,
)
from tfcluster.typed_json import ONLY_IF_SET, from_json, object_to_json

JobKind = Literal["training", "tuner", "plain"]
NetworkMode = Literal["host", "private", "simulated"]

MASK: Final = "********"
"""The text that hides a secret."""
_TASK = re.compile(rf"({'|'.join(JOBS).replace('_', '[_-]')})[:-](\d+)")


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One TensorFlow process of the cluster, ``worker:1``."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"

    @property
    def file_name(self) -> str:
        """The task's name without a colon, for file names: ``worker-1``."""
        return file_name_of(str(self))

    @property
    def trains(self) -> bool:
        """True if its job trains the model: a chief's or a worker's."""
        return self.job in ("chief", "worker")

    @property
    def serves_data(self) -> bool:
        """True for a server of the tf.data service, whose program is tfcluster's own."""
        return self.job in DATA_JOBS

    @property
    def is_in_gang(self) -> bool:
        """False for tasks that others' TF_CONFIG does not list, and that outlive an attempt: an
        evaluator, which follows the checkpoints, and the tf.data service."""
        return not (self.job == "evaluator" or self.serves_data)

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Parse ``worker:1`` (or ``worker-1``); raises ValueError for anything else."""
        match = _TASK.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a task; write JOB:INDEX, for example worker:1")
        return cls(match[1].replace("-", "_"), int(match[2]))

    from_json = parse
    to_json = __str__


def _read_value(value: object) -> str:
    return from_json(str, value or "")  # null for a secret


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One environment variable of a task, and the source of its value."""

    name: str
    value: Annotated[str, _read_value]
    source: str
    """The source, as users read it: ``job.env``, ``runtime.hosts.*.env``, ``tfcluster`` …"""
    secret: bool = False
    origin: Literal["tfcluster", "data_dir"] | None = field(default=None, metadata=ONLY_IF_SET)
    """The origin of a value with paths of the node, whose home and folders are filled in there;
    None: the value is the user's own, and is never changed."""
    from_launcher: bool = field(default=False, metadata=ONLY_IF_SET)
    """True if the spec takes the value from the launcher's environment."""

    @property
    def shown(self) -> str:
        return MASK if self.secret else self.value

    def to_json(self) -> dict[str, Any]:
        """Return the variable for JSON, without the value of a secret."""
        return object_to_json(self) | ({"value": None} if self.secret else {})


LABELS: Final = {
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "torch": "torch",
    "keras": "Keras",
    "tf-keras": "tf_keras",
}
"""Package → its name for users."""


def name_packages(packages: Sequence[str]) -> str:
    """Return the names of `packages`: ``JAX and Keras``."""
    return " and ".join(LABELS[package] for package in packages)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that runs a node's tasks. `packages` maps distribution name → version."""

    path: str
    why: str
    """The reason for the choice: ``$VIRTUAL_ENV``, ``.venv above the workdir``, ``--python`` …"""
    version: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The installed of tensorflow, jax, torch, keras, tf-keras, tensorflow-estimator, numpy,
    protobuf, and of the trackers mlflow and wandb."""


Gpu = int | str
"""The index of a GPU, or the name of a GPU or of a part of one: ``GPU-…``, ``MIG-…``."""
Gpus = int | tuple[Gpu, ...] | Literal["all"] | None
"""The spec's `gpus`: a number per task, indexes, "all", or None (an even share)."""


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that the spec requests for each task; None: an even share."""

    gpus: Gpus = None
    cpus: int | None = None
    threads: int | None = None
    pin: bool | None = None
    """True if each task is pinned to its own cores; None: to its NUMA node."""


@dataclass(frozen=True, slots=True)
class Container:
    """The container of a task; in a pod it has an image and a user only. Paths are those of the
    docker daemon's machine."""

    image: str
    cpus: int | None = None
    cores: tuple[int, ...] | None = None
    """The cores that it may use; None: all."""
    memory: str | None = None
    """The memory limit in docker's form: ``8g``."""
    gpus: tuple[Gpu, ...] | Literal["all"] | None = None
    """The machine's GPUs; inside the container they count from 0."""
    data_dir: str | None = None
    """A folder mounted read-only, at the same path."""
    shared_dir: str | None = None
    """Storage that all tasks share, mounted at the same path."""
    user: str | None = None
    """The value of docker's ``--user``; None: the image's user, else nobody."""


@dataclass(frozen=True, slots=True)
class Warm:
    """The preloaded process that a node's agent keeps for the next run (`up --warm`)."""

    key: str
    """A digest of all that the imported modules depend on; a run with an equal one can use them."""
    seconds: float


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A place where tasks run: this machine, an SSH host, or a container."""

    name: str
    """``local``, the host part of its tasks' addresses, or a container's host name."""
    backend: str
    interpreter: Interpreter | None
    """The Python of its tasks; None for a `command` job, and if only the node knows it."""
    workdir: str
    network: NetworkMode = "host"
    """``private``: its tasks have their own network, with loopback only; ``simulated``: they reach
    the run's other nodes, too."""
    destination: str | None = None
    """The destination for ssh, if it is not the node's name."""
    container: Container | None = field(default=None, metadata=ONLY_IF_SET)
    """The container of a docker node or of a pod."""
    warm: Warm | None = field(default=None, metadata=ONLY_IF_SET)
    wrap: tuple[str, ...] = field(default=(), metadata=ONLY_IF_SET)
    """The words before the Python that starts its agent, inside which everything else runs."""
    trackers: tuple[str, ...] = field(default=(), metadata=ONLY_IF_SET)
    """The variables of experiment trackers that its tasks get; see `plans.trackers`. For a node
    that is not this machine, its probe finds them."""

    @property
    def python(self) -> str:
        """The path of the Python of its tasks; ``python3`` where only the node knows it."""
        return self.interpreter.path if self.interpreter is not None else "python3"

    @property
    def capabilities(self) -> Capabilities:
        return kinds.get(self.backend).capabilities

    @property
    def is_here(self) -> bool:
        """True if it is this machine."""
        return self.capabilities.shares_filesystem

    @property
    def has_private_network(self) -> bool:
        """True if its agent gives its tasks a network of their own, with loopback only."""
        return self.network == "private" and not self.capabilities.has_own_network


@dataclass(frozen=True, slots=True)
class Command:
    """The command of one process: argv, variables added to the inherited ones, and directory."""

    argv: tuple[str, ...]
    env: tuple[EnvVar, ...]
    cwd: str
    unset: tuple[str, ...] = ()
    """Names that the process must not inherit: another cluster's TF_CONFIG, …"""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One task before its start; `port` 0 is chosen by its node's agent."""

    id: TaskId
    node: str
    host: str
    port: int
    command: Command
    """The command, without an attempt's variables: TF_CONFIG, run id, folders of the run."""
    cores: tuple[int, ...] | None = None
    gpus: tuple[Gpu, ...] | None = None
    """The node's GPUs that this task sees; None: all."""
    has_own_command: bool = field(default=False, metadata=ONLY_IF_SET)
    """True if it starts without boot although the job has hooks, because it has its own command."""
    in_cluster: bool = True
    """True if other tasks' TF_CONFIG list it; see `TaskId.is_in_gang`."""
    serves: bool = False
    """True if it is a ps, of the tf.data service, or a worker of a parameter-server job. Such a
    worker may still train by itself, which is known once it reports it."""

    @property
    def address(self) -> str:
        """``host:port``; empty if the host is chosen at the start."""
        return f"{self.host}:{self.port}" if self.host else ""

    @property
    def bare_host(self) -> str:
        """The host without the brackets of an IPv6 address, as sockets take it."""
        return self.host.strip("[]")


@dataclass(frozen=True, slots=True)
class Supervision:
    """The spec's `supervision`, with durations in seconds; None: no limit."""

    max_restarts: int = 3
    restart_on_error: bool = False
    backoff_s: float = 1.0
    start_deadline_s: float = 300.0
    stall_deadline_s: float | None = None
    stop_on_nan: bool = False
    run_deadline_s: float | None = None
    grace_s: float = 30.0
    finish_grace_s: float = 60.0
    lease_s: float = 60.0
    min_workers: int | None = None
    grow: Literal["checkpoint", "off"] = "checkpoint"
    grow_every_s: float = 600.0
    on_end: str | None = field(default=None, metadata=ONLY_IF_SET)

    def to_json(self) -> dict[str, Any]:
        return object_to_json(replace(self, on_end=self.on_end and mask_webhook(self.on_end)))


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The spec's `checkpoints`: the chief's files that are gathered, and their destination."""

    gather: bool = True
    keep: int = 3
    dir: str | None = None
    outputs: tuple[str, ...] = ()
    to: str | None = None


@dataclass(frozen=True)  # no slots: `cached_property` needs a dict
class Plan:
    """A spec resolved as far as values allow: constant for a run, and convertible to JSON."""

    name: str
    spec_path: str | None
    kind: JobKind
    strategy: str
    nodes: tuple[NodePlan, ...]
    tasks: tuple[TaskPlan, ...]
    prepare: Mapping[str, Command]
    """Node name → the command run on it once before the gang; empty without `prepare`."""
    supervision: Supervision
    checkpoints: CheckpointPlan
    hooks: bool
    """True if tasks start through `tfcluster_workers.boot`, which reports to tfcluster."""
    workdir: str = ""
    """The job's folder on this machine; remote nodes get a copy of it."""
    needs: tuple[str, ...] = ()
    """The libraries that the job imports for certain: tensorflow, jax, torch, keras."""
    include: tuple[str, ...] = ()
    """Globs of files that are copied although git ignores them."""
    withheld: tuple[str, ...] = field(default=(), metadata=ONLY_IF_SET)
    """Files with secrets, which are not copied; tasks get the values as variables."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The strategy and keras settings that some task must read: ``{"communication": "RING", …}``.
    """
    notes: tuple[str, ...] = ()
    """Notes shown once at the start: tf_keras instead of Keras 3, tasks that start cold, …"""
    preload: tuple[str, ...] = field(default=(), metadata=ONLY_IF_SET)
    """The modules that one process per node imports for all its tasks (`plans.preloading`)."""
    resources: Resources = field(default_factory=Resources)
    """The resources by which `tfcluster.nodes.orders` divides a node that only its agent knows."""
    interface: str | None = field(default=None, metadata=ONLY_IF_SET)
    """The interface by which tasks reach each other: its name, a subnet or a pattern of names;
    None: the address by which the node itself is reached."""
    port_range: tuple[int, ...] = field(default=(), metadata=ONLY_IF_SET)
    """The first and the last port that agents may choose; empty: any."""
    without_trackers: bool = field(default=False, metadata=ONLY_IF_SET)
    """True if no task gets variables of experiment trackers (``job.trackers``)."""
    roles: Mapping[str, str] = field(default_factory=dict, metadata=ONLY_IF_SET)
    """Role → the settings of its nodes or pods that differ from those of all (`runtime.roles`)."""
    defaults: tuple[UserDefault, ...] = field(default=(), metadata=ONLY_IF_SET)
    """The fields that the user's defaults have set."""
    joins: bool = field(default=False, metadata=ONLY_IF_SET)
    """True if `tfcluster join` started it: a part of a cluster, which is never restarted here."""
    elsewhere: tuple[TaskPlan, ...] = field(default=(), metadata=ONLY_IF_SET)
    """The cluster's other tasks, which are started by hand or on another machine."""

    def at(
        self,
        hosts: Mapping[str, str] = MappingProxyType({}),
        ports: Mapping[TaskId, int] = MappingProxyType({}),
    ) -> Plan:
        """Return the plan with what was chosen at the start: node → host name, and task → port."""

        def chosen(task: TaskPlan) -> TaskPlan:
            host, port = hosts.get(task.node, task.host), ports.get(task.id, task.port)
            return replace(task, host=host, port=port)

        tasks, elsewhere = tuple(map(chosen, self.tasks)), tuple(map(chosen, self.elsewhere))
        return replace(self, tasks=tasks, elsewhere=elsewhere)

    @property
    def forms_gang(self) -> bool:
        """False for `plain` tasks, which wait for no other."""
        return self.kind != "plain"

    @property
    def is_synchronous(self) -> bool:
        """True if all workers take every step together."""
        return self.kind == "training" and self.strategy in ("multi_worker_mirrored", *COORDINATED)

    @property
    def library(self) -> str:
        """The name of the library that connects the tasks."""
        return LABELS.get(self.strategy, "TensorFlow")

    @property
    def by_hand(self) -> tuple[TaskPlan, ...]:
        """The tasks of this run that the user starts (`up --except`)."""
        return () if self.joins else self.elsewhere

    @property
    def chief(self) -> TaskId:
        """The task whose checkpoints count: ``chief:0``, else ``worker:0``; it may be elsewhere."""
        chief = TaskId("chief", 0)
        return chief if chief in self._by_id else TaskId("worker", 0)

    @property
    def images(self) -> tuple[str, ...]:
        """The images of the containers, each once; empty without containers."""
        images = (node.container.image for node in self.nodes if node.container is not None)
        return tuple(dict.fromkeys(images))

    @property
    def listening(self) -> tuple[TaskPlan, ...]:
        """The tasks that other tasks connect to, so that all must know their ports."""
        if self.kind == "training":
            return self.tasks
        # Tuners connect to their chief only, the oracle.
        return tuple(t for t in self.tasks if self.kind == "tuner" and t.id.job == "chief")

    @property
    def without_port(self) -> list[TaskId]:
        """The tasks whose ports others must know and which are chosen at the start."""
        return [task.id for task in self.listening if task.port == 0]

    @cached_property
    def cut_off(self) -> frozenset[str]:
        """The nodes whose tasks reach only the run's other tasks."""
        nodes = (n for n in self.nodes if n.has_private_network or n.network == "simulated")
        return frozenset(node.name for node in nodes)

    def is_hooked(self, task: TaskPlan) -> bool:
        """Return whether `task` starts through boot, and so reports to tfcluster."""
        return self.hooks and not task.has_own_command

    def task(self, task_id: TaskId) -> TaskPlan:
        """Return a task, started here or elsewhere; raises KeyError for an unknown one."""
        return self._by_id[task_id]

    @cached_property
    def _by_id(self) -> Mapping[TaskId, TaskPlan]:
        return {task.id: task for task in (*self.elsewhere, *self.tasks)}

    def node(self, name: str) -> NodePlan:
        """Return a node by its name; raises KeyError for an unknown one."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
