"""What each field of a run's ``state.json`` may hold: views rely on it once it was checked (pure).

A state is written by tfcluster alone, but a disk, a sync tool or a person can damage it. Numbers
are bounded, so that no view meets an infinite time or a process id that no system has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field

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
    """Process ids, and an identity that the agent's own host alone reads (`agent.fence`)."""
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
    for field in fields:
        if field.name not in values or not field.init:
            continue
        value = values[field.name]
        if not _CHECKS[str(field.type)](value) or not _is_complete(field.name, value):
            raise ValueError(f"its {field.name} cannot be {repr(value)[:60]}")


def _is_complete(name: str, value: object) -> bool:
    wanted = _ALWAYS.get(name, ())
    records = value if isinstance(value, list) else []
    return all(record.get(key) is not None for record in records for key in wanted)
