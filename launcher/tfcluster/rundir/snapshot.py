"""The state of a run and its tasks as views read it from ``state.json``, with its validation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from tfcluster.rundir.json_numbers import spell
from tfcluster.rundir.states import Status

Check = Callable[[object], bool]
_LARGEST = 1 << 63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST


def _is_number(value: object) -> bool:
    """Neither infinite nor NaN: all comparisons with NaN are false."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -1e15 < value < 1e15  # type: ignore[operator]


def _is_truth(value: object) -> bool:
    return isinstance(value, bool)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _object_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_TEXTS = (
    *("task", "node", "path", "kind", "reason", "fault", "id", "tuner", "objective", "status"),
    *("direction", "message", "run", "hint", "docs", "not_restarted", "exception", "file"),
    *("traceback", "what"),
)
_INTEGERS = (
    *("step", "attempt", "of", "from_step", "bytes", "resumed_step", "best_step", "line"),
    *("exit_code", "signal"),
)
_NUMBERS = (
    *("time", "delay_s", "injected_at", "detected_after_s", "resumed_after_s", "score"),
    *("started_at", "ended_at"),
)
_IN_RECORDS: Mapping[str, Check] = {
    **dict.fromkeys(_TEXTS, _or_none(_is_text)),
    **dict.fromkeys(_INTEGERS, _or_none(_is_integer)),
    **dict.fromkeys(_NUMBERS, _or_none(_is_number)),
    "members": _or_none(_list_of(_is_text)),
    "also": _or_none(_list_of(_is_text)),
    "collateral": _or_none(_list_of(_is_text)),
    "values": _or_none(_is_object),
}
"""A name means the same in every record: restarts, faults, checkpoints, trials, the diagnosis."""
_ALWAYS: Mapping[str, tuple[str, ...]] = {
    "restarts": ("attempt", "of"),
    "chaos": ("fault", "injected_at"),
    "checkpoints": ("path",),
    "trials": ("id",),
}
"""Field of the run → names that each of its records has."""


def _is_record(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    found = (_IN_RECORDS[name](value[name]) for name in _IN_RECORDS.keys() & value.keys())
    nested = value.get("root_cause")
    return all(found) and (nested is None or _is_record(nested))


def _is_metric(value: object) -> bool:
    """Any float: a loss on its way to infinity; see `run.spelling` for those that are no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _is_text(value)
    return abs(value) <= sys.float_info.max


def _is_agent(value: object) -> bool:
    """Process ids, and an identity that the agent's own host alone reads (`agent.fencing`)."""
    if not isinstance(value, dict):
        return False
    numbers = {name: number for name, number in value.items() if name != "identity"}
    return all(map(_is_integer, numbers.values())) and _is_object(value.get("identity", {}))


_CHECKS: Mapping[str, Check] = {
    "str": _is_text,
    "str | None": _or_none(_is_text),
    "bool": _is_truth,
    "int": _is_integer,
    "int | None": _or_none(_is_integer),
    "float": _is_number,
    "float | None": _or_none(_is_number),
    "list[str]": _list_of(_is_text),
    "dict[str, str]": _object_of(_is_text),
    "dict[str, float]": _object_of(_is_metric),
    "dict[str, dict[str, Any]]": _object_of(_is_agent),
    "dict[str, Any] | None": _or_none(_is_record),
    "list[dict[str, Any]]": _list_of(_is_record),
    "Status": _is_text,
    "list[TaskSnapshot]": _list_of(_is_object),
}
"""Annotation → what JSON may hold there."""


def require(values: Mapping[str, object], fields: Iterable[Field[object]]) -> None:
    """Raise ValueError for the first of `fields` whose value in `values` does not fit it."""
    for one in fields:
        if one.name not in values or not one.init:
            continue
        value = values[one.name]
        if not _CHECKS[str(one.type)](value) or not _is_complete(one.name, value):
            raise ValueError(f"its {one.name} cannot be {repr(value)[:60]}")


def _is_complete(name: str, value: object) -> bool:
    wanted = _ALWAYS.get(name, ())
    records = value if isinstance(value, list) else []
    return all(record.get(key) is not None for record in records for key in wanted)


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
    """Node → process ids, ``{"local": {"pid": 12, "guard_pid": 13}}``, and `agent.fencing`'s
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
        require(data, fields(cls))
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
    require(data, fields(TaskSnapshot))
    task = TaskSnapshot(**{name: data[name] for name in _OF_TASK if name in data})
    task.metrics = {name: float(value) for name, value in task.metrics.items()}
    return task


def _values(snapshot: TaskSnapshot | RunSnapshot, names: tuple[str, ...]) -> dict[str, Any]:
    """`dataclasses.asdict` copies all that is in them, and takes ten times as long."""
    return {name: getattr(snapshot, name) for name in names}
