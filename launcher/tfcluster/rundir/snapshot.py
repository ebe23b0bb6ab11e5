"""The state of a run and its tasks as views read it from ``state.json``, with its validation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from tfcluster.rundir.json_numbers import to_json_numbers
from tfcluster.rundir.states import Status

Check = Callable[[object], bool]
_LARGEST_INTEGER = 1 << 63


def _is_a(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


def _is_integer(value: object) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -_LARGEST_INTEGER < value < _LARGEST_INTEGER
    )


def _is_number(value: object) -> bool:
    """Return whether `value` is a finite number: all comparisons with NaN are false."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -1e15 < value < 1e15  # type: ignore[operator]


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _object_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_is_string, _is_object = _is_a(str), _is_a(dict)
_STRINGS = (
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
_RECORD_CHECKS: Mapping[str, Check] = {
    **dict.fromkeys(_STRINGS, _or_none(_is_string)),
    **dict.fromkeys(_INTEGERS, _or_none(_is_integer)),
    **dict.fromkeys(_NUMBERS, _or_none(_is_number)),
    "members": _or_none(_list_of(_is_string)),
    "also": _or_none(_list_of(_is_string)),
    "collateral": _or_none(_list_of(_is_string)),
    "values": _or_none(_is_object),
}
"""Name → check of its value; a name means the same in all records: restarts, faults, checkpoints,
trials, the diagnosis."""
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "restarts": ("attempt", "of"),
    "chaos": ("fault", "injected_at"),
    "checkpoints": ("path",),
    "trials": ("id",),
}
"""Field of the run → names that each of its records must have."""


def _is_record(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    found = (_RECORD_CHECKS[name](value[name]) for name in _RECORD_CHECKS.keys() & value.keys())
    nested = value.get("root_cause")
    return all(found) and (nested is None or _is_record(nested))


def _is_metric(value: object) -> bool:
    """Return whether `value` is a float or a string: `to_json_numbers` writes NaN as a string."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _is_string(value)
    return abs(value) <= sys.float_info.max


def _is_agent(value: object) -> bool:
    """Return whether `value` has only process ids and an identity (for `agent.fencing`)."""
    if not isinstance(value, dict):
        return False
    numbers = {name: number for name, number in value.items() if name != "identity"}
    return all(map(_is_integer, numbers.values())) and _is_object(value.get("identity", {}))


_CHECKS: Mapping[str, Check] = {
    "str": _is_string,
    "str | None": _or_none(_is_string),
    "bool": _is_a(bool),
    "int": _is_integer,
    "int | None": _or_none(_is_integer),
    "float": _is_number,
    "float | None": _or_none(_is_number),
    "list[str]": _list_of(_is_string),
    "dict[str, str]": _object_of(_is_string),
    "dict[str, float]": _object_of(_is_metric),
    "dict[str, dict[str, Any]]": _object_of(_is_agent),
    "dict[str, Any] | None": _or_none(_is_record),
    "list[dict[str, Any]]": _list_of(_is_record),
    "Status": _is_string,
    "list[TaskSnapshot]": _list_of(_is_object),
}
"""Annotation of a field → check of its JSON value."""


def require(values: Mapping[str, object], fields: Iterable[Field[object]]) -> None:
    """Raise ValueError for the first of `fields` whose value in `values` is invalid."""
    for known in fields:
        if known.name in values and known.init:
            value = values[known.name]
            if not _CHECKS[str(known.type)](value) or not _is_complete(known.name, value):
                raise ValueError(f"{known.name} cannot be {repr(value)[:60]}")


def _is_complete(name: str, value: object) -> bool:
    required = _REQUIRED.get(name, ())
    records = value if isinstance(value, list) else []
    return all(record.get(key) is not None for record in records for key in required)


@dataclass(slots=True)
class TaskSnapshot:
    """The present state of one task; `states.TASK` is the table of its states."""

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
    """The speed of the present attempt since its first step."""
    examples_per_second: float | None = None
    peak_rss_bytes: int | None = None
    log: str | None = None
    """The log of this attempt, relative to the run folder."""
    log_lost_bytes: int = 0
    frozen_by: int | None = None
    """The signal that has stopped its process, until that runs again or ends."""
    error: dict[str, Any] | None = None
    """The uncaught exception that the task reported: exception, message, file, line, traceback."""


@dataclass(slots=True)
class RunSnapshot:
    """The present state of one run; times are seconds since 1970."""

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
    """Task that the user starts by hand (``up --except``) → its address."""
    agents: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Node → ``{"pid": 12, "guard_pid": 13, "identity": …}``; see `agent.fencing.identity`."""
    ended_at: float | None = None
    leases: dict[str, float] = field(default_factory=dict)
    """Node → until when its tasks may still run; only for a lost run."""
    stop_by: float | None = None
    """The time at which tasks that still run are killed, while the run is stopping."""
    exit_code: int | None = None
    attempt: int = 0
    spec: str | None = None
    spec_folder: str | None = None
    """The folder that relative paths in the run's ``spec.json`` start from."""
    workdir: str | None = None
    background: bool = False
    """True if it was started with ``-d``."""
    runtime_dir: str | None = None
    """The folder of the coordinator's socket; another shell may have another default."""
    resumed_from: dict[str, Any] | None = None
    """The run and step of ``up --resume``."""
    diagnosis: dict[str, Any] | None = None
    """The fields root_cause (task, reason, hint, exit_code or signal) and collateral."""
    reason: str | None = None
    """The reason of the outcome where a task's own failure does not explain it, or not alone."""
    hint: str | None = None
    """The user's next step after `reason`."""
    gathering: dict[str, Any] | None = None
    """The files that the run waits for: what, and where it is known node, bytes, of."""
    waits_for: str | None = None
    """The reason in words for which a restart waits: a pause or a node's lease."""
    restarts: list[dict[str, Any]] = field(default_factory=list)
    """The `restarting` events so far, oldest first, each with its `time`."""
    chaos: list[dict[str, Any]] = field(default_factory=list)
    """Injected faults: fault, task, attempt, step, injected_at, and once they are known
    detected_after_s, resumed_after_s."""
    nodes: dict[str, str] = field(default_factory=dict)
    """Node → connecting, connected, lost or gone."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """The gathered checkpoints, oldest first: path (below the run folder), step, kind, bytes."""
    trials: list[dict[str, Any]] = field(default_factory=list)
    """The trials of a search in the order of their start: id, status, tuner, values, objective,
    direction, and where they are known score, best_step, message, started_at, ended_at."""
    best_trial: str | None = None
    """The id of the best completed trial."""
    warnings: list[str] = field(default_factory=list)
    _indices: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Task → its index in `tasks`; a cache."""

    def task(self, name: str) -> TaskSnapshot:
        """Return the state of the task `name`; raise KeyError if the run does not have it."""
        place = self._indices.get(name)
        if place is None or place >= len(self.tasks) or self.tasks[place].task != name:
            self._indices = {task.task: place for place, task in enumerate(self.tasks)}
        return self.tasks[self._indices[name]]

    def to_json(self) -> dict[str, Any]:
        """Return the state for JSON; it shares lists and mappings, so write it at once."""
        tasks = [
            _to_dict(task, _TASK_FIELDS) | {"metrics": to_json_numbers(task.metrics)}
            for task in self.tasks
        ]
        return _to_dict(self, _RUN_FIELDS) | {"status": str(self.status), "tasks": tasks}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSnapshot:
        """Read the output of `to_json`; ignore a newer version's keys. Raises ValueError."""
        require(data, fields(cls))
        values = {key: value for key, value in data.items() if key in _RUN_FIELDS}
        try:
            values["tasks"] = [_task_from_json(task) for task in data["tasks"]]
            values["status"] = Status(data["status"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"a field is missing: {error}") from None


_TASK_FIELDS = tuple(f.name for f in fields(TaskSnapshot))
_RUN_FIELDS = tuple(f.name for f in fields(RunSnapshot) if f.init)


def _task_from_json(data: Mapping[str, Any]) -> TaskSnapshot:
    require(data, fields(TaskSnapshot))
    task = TaskSnapshot(**{name: data[name] for name in _TASK_FIELDS if name in data})
    task.metrics = {name: float(value) for name, value in task.metrics.items()}
    return task


def _to_dict(snapshot: TaskSnapshot | RunSnapshot, names: tuple[str, ...]) -> dict[str, Any]:
    """Return a shallow `dataclasses.asdict`, which is ten times as fast."""
    return {name: getattr(snapshot, name) for name in names}
