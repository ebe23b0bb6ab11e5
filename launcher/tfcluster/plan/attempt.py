"""One start of the gang, and the environment that only it knows: ports, TF_CONFIG, folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from tfcluster.plan import search, tf_config
from tfcluster.plan.plan import EnvVar, Plan, TaskId

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
    def cluster(self) -> tf_config.Cluster:
        """What every member's TF_CONFIG says; raises KeyError for a member without a port."""
        return tf_config.cluster_of(self)

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
        search.FOLDER: "RUN is chosen at start" if plan.checkpoints.dir else _FOLDER_LATER,
        search.ORACLE_PORT: "port 0 is chosen at start" if chosen else "",
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
        values["TF_CONFIG"] = tf_config.one_line(attempt, task)
        if holds_ports:
            values["TF_GRPC_REUSE_PORT"] = "1"
    if attempt.plan.kind == "tuner":
        values[search.FOLDER] = search.folder(attempt.plan, run_id=run_id, own=tuner_dir)
        values |= search.environment(attempt, task)
    return tuple(EnvVar(name, value, SOURCE) for name, value in values.items())
