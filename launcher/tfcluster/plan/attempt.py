"""An attempt of a plan, and what each of its tasks gets: TF_CONFIG or KerasTuner's variables.

A task of a training job gets a TF_CONFIG. In a KerasTuner search the chief is the oracle and each
worker a tuner that trains alone, without TF_CONFIG. KerasTuner reads three variables, all or none
(keras_tuner/src/distribute/utils.py); the chief is the process with the letters "chief" in its
KERASTUNER_TUNER_ID. A worker without a chief searches alone and gets none of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from tfcluster.plan.plan import JOB_NAMES, EnvVar, Plan, TaskId

if TYPE_CHECKING:
    from tfcluster.plan.plan import Plan, TaskId

    pass


ORACLE_IP: Final = "KERASTUNER_ORACLE_IP"
ORACLE_PORT: Final = "KERASTUNER_ORACLE_PORT"
TUNER_ID: Final = "KERASTUNER_TUNER_ID"
VARIABLES: Final = (ORACLE_IP, ORACLE_PORT, TUNER_ID)
FOLDER: Final = "TFCLUSTER_TUNER_DIR"


def tuner_environment(attempt: Attempt, task: TaskId) -> dict[str, str]:
    """KerasTuner's variables of `task`; a task that is started again keeps its tuner id."""
    chief = attempt.plan.chief
    if chief.job != "chief":
        return {}
    host, _, port = attempt.address(chief).rpartition(":")
    return {ORACLE_IP: host, ORACLE_PORT: port, TUNER_ID: task.file_name}


def folder(plan: Plan, *, run_id: str, own: str) -> str:
    """Where the search of this run is kept; all its tasks share it.

    `own` is the folder below the run's, on this machine; ``checkpoints.dir`` is what several
    hosts share. Those that join have a run each, and only the spec's name in common.
    """
    shared = plan.checkpoints.dir
    part = plan.name if plan.joins else run_id
    return f"{shared.rstrip('/')}/tuner/{part}" if shared else own


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the TF_CONFIGs of one attempt share: made once, not for each of a thousand tasks."""

    addresses: Mapping[str, Sequence[str]]
    """Job → its tasks' addresses, of all whom others name."""
    index: Mapping[TaskId, int]
    """Place in that list."""
    members: frozenset[TaskId]


def cluster_of(attempt: Attempt) -> Cluster:
    """Raises KeyError for a member without a port."""
    named = [t for t in sorted_members(attempt) if attempt.plan.task(t).in_cluster]
    index: dict[TaskId, int] = {}
    addresses: dict[str, list[str]] = {}
    for task in named:
        of_job = addresses.setdefault(task.job, [])
        index[task] = len(of_job)
        of_job.append(attempt.address(task))
    return Cluster(addresses, index, frozenset(attempt.members))


def build(attempt: Attempt, task: TaskId) -> dict[str, Any]:
    """The TF_CONFIG of `task` in this attempt, with dense indexes over its members.

    Raises KeyError when `task` is no member of the attempt.
    """
    common = attempt.cluster
    if task not in common.members:
        raise KeyError(str(task))
    cluster = dict(common.addresses)
    if task not in common.index:  # an evaluator, in nobody's but its own
        cluster[task.job] = [attempt.address(task)]
    return {"cluster": cluster, "task": {"type": task.job, "index": common.index.get(task, 0)}}


def one_line(attempt: Attempt, task: TaskId) -> str:
    """The variable's value: one line of JSON, the form all examples on the web have."""
    return json.dumps(build(attempt, task))


def sorted_members(attempt: Attempt) -> list[TaskId]:
    """With those elsewhere, in TensorFlow's order of jobs, each job's tasks by index."""
    rank: dict[str, int] = {job: place for place, job in enumerate(JOB_NAMES)}
    together = (*attempt.members, *(task.id for task in attempt.plan.elsewhere))
    return sorted(together, key=lambda t: (rank[t.job], t.index))


SOURCE: Final = "tfcluster"
_FOLDER_LATER: Final = "RUN_FOLDER is made at start"


@dataclass(frozen=True)  # without slots: its tasks' TF_CONFIGs have nearly all in common
class Attempt:
    """`members` start together, each on its port; `number` 1 is the first start."""

    plan: Plan
    number: int
    members: tuple[TaskId, ...]
    ports: Mapping[TaskId, int]
    """The port of every member: the spec's own, or the one its agent chose."""

    def address(self, task: TaskId) -> str:
        """``host:port`` as the others reach it; raises KeyError for a task without a port."""
        planned = self.plan.task(task)
        held = self.ports.get(task, planned.port) if self.is_elsewhere(task) else self.ports[task]
        return f"{planned.host}:{held}"

    def is_elsewhere(self, task: TaskId) -> bool:
        """Whether somebody else starts it; by hand on a port that is held for it, else on the one
        that the spec says."""
        return task in self._elsewhere

    @cached_property
    def _elsewhere(self) -> frozenset[TaskId]:
        return frozenset(other.id for other in self.plan.elsewhere)

    @cached_property
    def cluster(self) -> Cluster:
        """What every member's TF_CONFIG says; raises KeyError for a member without a port."""
        return cluster_of(self)

    @property
    def forms_cluster(self) -> bool:
        """Whether its tasks get a TF_CONFIG: those of a `plain` job and tuners train alone."""
        return self.plan.kind == "training"


def fixed(plan: Plan) -> Attempt:
    """Attempt 1 of a plan whose ports are all written in the spec.

    Raises ValueError when tasks that form a cluster have a port that is still to be chosen.
    """
    attempt = _unchosen(plan)
    waiting = [str(task.id) for task in plan.listening if task.port == 0]
    if waiting:
        raise ValueError(f"no port yet for {', '.join(waiting)}")
    return attempt


def _unchosen(plan: Plan) -> Attempt:
    ports = {task.id: task.port for task in plan.tasks}
    return Attempt(plan, 1, tuple(ports), ports)


def preview(plan: Plan, task: TaskId) -> tuple[EnvVar, ...]:
    """What `environment` will be in a first attempt, with words for what is chosen at start."""
    found = environment(
        _unchosen(plan),
        task,
        run_id="RUN",
        checkpoint_dir=f"RUN_FOLDER/tasks/{task.file_name}/checkpoints",
        tensorboard_dir=f"RUN_FOLDER/tensorboard/{task.file_name}",
        tuner_dir="RUN_FOLDER/tuner",
    )
    chosen = any(planned.port == 0 for planned in plan.listening)
    later = {
        "TFCLUSTER_RUN_ID": "RUN is chosen at start",
        "TFCLUSTER_CHECKPOINT_DIR": "" if plan.checkpoints.dir else _FOLDER_LATER,
        "TFCLUSTER_TENSORBOARD_DIR": _FOLDER_LATER,
        FOLDER: "RUN is chosen at start" if plan.checkpoints.dir else _FOLDER_LATER,
        ORACLE_PORT: "port 0 is chosen at start" if chosen else "",
        "TF_CONFIG": "ports 0 are chosen at start" if chosen else "",
    }
    return tuple(
        replace(var, source=f"{SOURCE}, {later[var.name]}") if later.get(var.name) else var
        for var in found
    )


def environment(
    attempt: Attempt,
    task: TaskId,
    *,
    run_id: str,
    checkpoint_dir: str,
    tensorboard_dir: str,
    tuner_dir: str,
    restored_step: int | None = None,
    holds_ports: bool = True,
) -> tuple[EnvVar, ...]:
    """What `task` gets in this attempt on top of its `Command.env`.

    `checkpoint_dir` is the task's own folder; ``checkpoints.dir`` of the spec replaces it, and
    moves `tuner_dir`, which the tasks of a search share.
    `holds_ports`: the agent keeps a bound socket on the task's port while it runs, which
    TensorFlow shares only with SO_REUSEPORT (tensorflow#38705).
    """
    values = {
        "TFCLUSTER_RUN_ID": run_id,
        "TFCLUSTER_TASK": str(task),
        "TFCLUSTER_ATTEMPT": str(attempt.number),
        "TFCLUSTER_CHECKPOINT_DIR": attempt.plan.checkpoints.dir or checkpoint_dir,
        "TFCLUSTER_TENSORBOARD_DIR": tensorboard_dir,
    }
    if restored_step is not None:
        values["TFCLUSTER_RESTORED_STEP"] = str(restored_step)
    if attempt.forms_cluster:
        values["TF_CONFIG"] = one_line(attempt, task)
        if holds_ports:
            values["TF_GRPC_REUSE_PORT"] = "1"
    if attempt.plan.kind == "tuner":
        values[FOLDER] = folder(attempt.plan, run_id=run_id, own=tuner_dir)
        values |= tuner_environment(attempt, task)
    return tuple(EnvVar(name, value, SOURCE) for name, value in values.items())
