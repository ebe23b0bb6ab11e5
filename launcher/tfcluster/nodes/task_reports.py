"""Validation of tasks' reports, limits on their number, and the last lines of tasks' logs.

Anything that runs in a task can write to its event socket. `clean` drops a report of an unknown
kind or without a required field, leaves out any other invalid field, and cuts long strings; the
rest of the launcher relies on that.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfcluster.agent import budgets
from tfcluster.rundir import chaos
from tfcluster.rundir.chaos import Fault
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.member import Member

Read = Callable[[object], Any]
"""A function that converts a field's value; raises ValueError for an invalid one."""
_INTEGER_LIMIT = 1 << 63
_TAIL_BYTES = 64 * 1024


def clean(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the valid part of a task's report; None for an invalid report."""
    kind = report.get("type")
    shape = _SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None:
        return None
    required, optional = shape
    try:
        found = {name: read(report.get(name)) for name, read in required.items()}
    except ValueError:
        return None
    for name, read in optional.items():
        if report.get(name) is not None:
            try:
                found[name] = read(report[name])
            except ValueError:
                continue
    return {"type": kind, **found}


def _integer(value: object) -> int:
    """Return an integer, also from a float without a fraction, such as a step from NumPy."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("not a number")
    if not -_INTEGER_LIMIT < value < _INTEGER_LIMIT or value != int(value):
        raise ValueError("not an integer")
    return int(value)


def _step(value: object) -> int:
    if (number := _integer(value)) < 0:
        raise ValueError("a negative step")
    return number


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("not a number")
    if not -1e15 < value < 1e15:
        raise ValueError("not a finite number")
    return float(value)


def _rate(value: object) -> float:
    if (number := _number(value)) < 0:
        raise ValueError("a negative rate")
    return number


def _text(longest: int = budgets.REPORT_TEXT) -> Read:
    def read(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("not a string")
        return value if len(value) <= longest else f"{value[:longest]} …"

    return read


def _false(value: object) -> bool:
    if value is not False:
        raise ValueError("not false")
    return False


def _metrics(value: object) -> dict[str, float]:
    """Return the numbers among the metrics, which may be NaN or infinite."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    found = {}
    for name, number in list(value.items())[: budgets.REPORT_NAMES]:
        if isinstance(number, int | float) and not isinstance(number, bool):
            found[str(name)[: budgets.REPORT_NAME]] = _as_float(number)
    return found


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer of 400 digits
        return math.inf if number > 0 else -math.inf


def _values(value: object) -> dict[str, Any]:
    """Return hyperparameters by name: numbers, booleans, None, and anything else as a string."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    pairs = list(value.items())[: budgets.REPORT_NAMES]
    return {str(name)[: budgets.REPORT_NAME]: _plain(one) for name, one in pairs}


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool):
        return value
    try:
        return _integer(value)
    except ValueError:
        pass
    try:
        return _number(value)
    except ValueError:
        return str(value)[: budgets.REPORT_NAME]


_SHORT, _LINE = _text(budgets.REPORT_NAME), _text(budgets.NOTE_TEXT)
_SHAPES: Mapping[str, tuple[Mapping[str, Read], Mapping[str, Read]]] = {
    "waiting_for_peers": ({}, {}),
    "ready": ({}, {}),
    "alive": ({}, {}),
    "saves_on_sigterm": ({}, {}),
    "search_ended": ({}, {}),
    "serving": ({}, {}),
    "saved_elsewhere": ({}, {"step": _step}),
    "progress": (
        {"step": _step},
        {
            **{"epoch": _step, "metrics": _metrics, "steps_per_execution": _step},
            **{"steps_per_second": _rate, "mean_steps_per_second": _rate},
            **{"examples_per_second": _rate},
        },
    ),
    "saved": ({"path": _text()}, {"step": _step, "at_ns": _integer}),
    "evaluated": ({}, {"step": _step}),
    "verdict": ({"ok": _false, "reason": _LINE}, {}),
    "setting_read": ({"name": _SHORT}, {}),
    "note": ({"message": _LINE}, {}),
    "error": (
        {"exception": _SHORT, "message": _text()},
        {"file": _text(), "line": _integer, "traceback": _text(budgets.REPORT_TRACEBACK)},
    ),
    "chaos": ({"fault": _SHORT}, {"task": _SHORT, "step": _step}),
    "trial": (
        {"id": _SHORT, "status": _SHORT},
        {
            **{"tuner": _SHORT, "score": _number, "best_step": _step, "objective": _SHORT},
            **{"direction": _SHORT, "values": _values, "message": _LINE},
        },
    ),
    "trial_ended": ({"id": _SHORT}, {"message": _LINE}),
}
"""Kind → required fields and optional fields; see `tfcluster_workers.reporting`."""


class ReportFilter:
    """The limits on a run's notes and trials; `tell` gets a sentence when some are left out."""

    def __init__(
        self, state: RunSnapshot, faults: Sequence[Fault], tell: Callable[[str], None]
    ) -> None:
        self._state, self._faults, self._tell = state, faults, tell
        self._notes: Counter[tuple[str, int]] = Counter()
        self._trials: set[str] = set()
        self._has_warned = False

    def take(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the valid part of the report in a ``task_event``; None if it is left out."""
        if (report := clean(message["event"])) is None:
            return None
        task, attempt = message["task"], message["attempt"]
        match report["type"]:
            case "chaos":
                is_kept = self._is_ordered(report["fault"], task, attempt)
            case "note":
                is_kept = self._has_room_for_note(task, attempt)
            case "trial" | "trial_ended":
                is_kept = self._has_room_for_trial(report["id"])
            case _:
                is_kept = True
        return report if is_kept else None

    def _is_ordered(self, text: str, task: str, attempt: int) -> bool:
        """Return whether the task was to inject this fault, and has not reported it yet."""
        fault = chaos.injected(self._faults, text, by=task, attempt=attempt)
        return fault is not None and all(entry["fault"] != text for entry in self._state.chaos)

    def _has_room_for_note(self, task: str, attempt: int) -> bool:
        self._notes[task, attempt] += 1
        if self._notes[task, attempt] == budgets.NOTES + 1:
            self._tell(f"{task} has sent more than {budgets.NOTES} notes: the rest is left out")
        return self._notes[task, attempt] <= budgets.NOTES

    def _has_room_for_trial(self, trial: str) -> bool:
        if trial in self._trials:
            return True
        if len(self._trials) < budgets.TRIALS:
            self._trials.add(trial)
            return True
        if not self._has_warned:
            self._has_warned = True
            limit = f"{budgets.TRIALS:,}"
            self._tell(f"the search has more than {limit} trials: its own folder lists the rest")
        return False


def last_text(log: Path) -> str:
    """Return the last 64 KiB of a log; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


def last_line(paths: RunPaths, member: Member) -> str:
    """Return the last non-empty line of a member's log; of a progress bar its latest state."""
    text = last_text(paths.task_log(member.id, member.attempt))
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def last_output(paths: RunPaths, gang: Gang, now: float) -> float:
    """Return when a running task last wrote to its log, on the clock that shows `now`; or 0."""
    newest = 0.0
    for member in gang.running():
        try:
            newest = max(newest, paths.task_log(member.id, member.attempt).stat().st_mtime)
        except OSError:
            continue
    return now - max(0.0, time.time() - newest) if newest else 0.0
