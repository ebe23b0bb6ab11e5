"""The state of a run as views read it from ``state.json``: what is, not what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tfcluster.run import state_shape
from tfcluster.run.spelling import spell
from tfcluster.run.status import Status


@dataclass(slots=True)
class TaskSnapshot:
    """One task now; `run.state` has the table of its states."""

    task: str
    node: str
    address: str
    state: str = "waiting"
    attempt: int = 0
    pid: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    ended_by: str | None = None
    step: int | None = None
    epoch: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    steps_per_second: float | None = None
    mean_steps_per_second: float | None = None
    """Of its present attempt, since the first step."""
    examples_per_second: float | None = None
    peak_rss_bytes: int | None = None
    log: str | None = None
    """Path of its log of this attempt, relative to the run folder."""
    log_lost_bytes: int = 0
    frozen_by: int | None = None
    """The signal that has stopped its process, until it goes on or ends."""
    error: dict[str, Any] | None = None
    """The uncaught exception it reported: exception, message, file, line, traceback."""


@dataclass(slots=True)
class RunSnapshot:
    """One run now; times are seconds since 1970."""

    run: str
    name: str
    status: Status
    tasks: list[TaskSnapshot]
    host: str
    boot_id: str
    pid: int
    """The coordinator's process id, with `pid_start` its start time in clock ticks since boot."""
    pid_start: int
    started_at: float
    by_hand: dict[str, str] = field(default_factory=dict)
    """Task that the user starts (``up --except``) → its address."""
    agents: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Node → process ids, ``{"local": {"pid": 12, "guard_pid": 13}}``, and `agent.fence`'s
    ``identity``."""
    ended_at: float | None = None
    leases: dict[str, float] = field(default_factory=dict)
    """Of a run that is lost: node → until when what it started there may live on."""
    stop_by: float | None = None
    """While `stopping`: when what still runs will be killed."""
    exit_code: int | None = None
    attempt: int = 0
    spec: str | None = None
    spec_folder: str | None = None
    """What relative paths in the run's ``spec.json`` are relative to."""
    workdir: str | None = None
    background: bool = False
    """Whether it was started with ``-d``."""
    runtime_dir: str | None = None
    """Folder of the coordinator's socket, which another shell may look for elsewhere."""
    resumed_from: dict[str, Any] | None = None
    """run and step of ``up --resume``."""
    diagnosis: dict[str, Any] | None = None
    """root_cause (task, reason, hint, exit_code or signal) and collateral."""
    reason: str | None = None
    """Why the run ended so, where that is not, or not only, a task's own failure."""
    hint: str | None = None
    """What to do about `reason`."""
    gathering: dict[str, Any] | None = None
    """While the run waits for files to be copied: what, and where it is known node, bytes, of."""
    waits_for: str | None = None
    """What a restart waits for, in words: a pause, a node's lease."""
    restarts: list[dict[str, Any]] = field(default_factory=list)
    """The `restarting` events so far, oldest first, each with its `time`."""
    chaos: list[dict[str, Any]] = field(default_factory=list)
    """Rehearsed faults: fault, task, attempt, step, injected_at, and once they are known
    detected_after_s, resumed_after_s."""
    nodes: dict[str, str] = field(default_factory=dict)
    """Node → connecting, connected, lost or gone."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """Gathered, oldest first: path (relative to the run folder), step, kind, bytes."""
    trials: list[dict[str, Any]] = field(default_factory=list)
    """Of a search, in the order of their start: id, status, tuner, values, objective, direction,
    and where they are known score, best_step, message, started_at, ended_at."""
    best_trial: str | None = None
    """The id of the best one completed."""
    warnings: list[str] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Task → its place in `tasks`, as it was seen last."""

    def task(self, name: str) -> TaskSnapshot:
        """Raises KeyError for a task the run does not have."""
        place = self._places.get(name)
        if place is None or place >= len(self.tasks) or self.tasks[place].task != name:
            self._places = {task.task: place for place, task in enumerate(self.tasks)}
        return self.tasks[self._places[name]]

    def to_json(self) -> dict[str, Any]:
        """Of the very lists and mappings that are here: to be written before anything changes."""
        tasks = [_values(task, _OF_TASK) | {"metrics": spell(task.metrics)} for task in self.tasks]
        return _values(self, _OF_RUN) | {"status": str(self.status), "tasks": tasks}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSnapshot:
        """Read what `to_json` wrote; keys of a newer version are ignored.

        Raises ValueError for anything else.
        """
        state_shape.require(data, fields(cls))
        values = {key: value for key, value in data.items() if key in _OF_RUN}
        try:
            values["tasks"] = [_task_from_json(task) for task in data["tasks"]]
            values["status"] = Status(data["status"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"it lacks a field: {error}") from None


_OF_TASK = tuple(f.name for f in fields(TaskSnapshot))
_OF_RUN = tuple(f.name for f in fields(RunSnapshot) if f.init)


def _task_from_json(data: Mapping[str, Any]) -> TaskSnapshot:
    state_shape.require(data, fields(TaskSnapshot))
    task = TaskSnapshot(**{name: data[name] for name in _OF_TASK if name in data})
    task.metrics = {name: float(value) for name, value in task.metrics.items()}
    return task


def _values(snapshot: TaskSnapshot | RunSnapshot, names: tuple[str, ...]) -> dict[str, Any]:
    """`dataclasses.asdict` copies all that is in them, and takes ten times as long."""
    return {name: getattr(snapshot, name) for name in names}
