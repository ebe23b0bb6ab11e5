"""A profile as text: the shares of each task's time, the longest ops, and what has no trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Final

from tfcluster.rundir.step_traces import PARTS
from tfcluster.ui.formats import format_ms
from tfcluster.ui.render import Grid, Part

_MOST_OPS: Final = 12
_NAME_CHARACTERS: Final = 56
_RIGHT: Final = ("traced", "step", *PARTS, "per step", "per second", "most")


def profile_parts(profile: Mapping[str, Any]) -> list[Part]:
    """Return what the command prints about a profile (`Run.profile`)."""
    traced = [task for task in profile["tasks"] if "trace" in task]
    parts: list[Part] = [_task_grid(traced), _op_grid(traced)] if traced else []
    missing = [task for task in profile["tasks"] if "problem" in task]
    problems = "\n".join(f"{task['task']}: no trace: {task['problem']}" for task in missing)
    return [*parts, *([problems] if problems else [])]


def _task_grid(tasks: Sequence[Mapping[str, Any]]) -> Grid:
    columns: dict[str, Callable[[Mapping[str, Any]], object]] = {
        "task": lambda task: task["task"],
        "steps": lambda task: f"{task['first']} to {task['last']}" if "first" in task else None,
        "traced": lambda task: format_ms(task["seconds"]),
        "step": lambda task: format_ms(_step_s(task)) if "first" in task else None,
        **{part: partial(_share, part=part) for part in PARTS},
    }
    return Grid.of(tasks, columns, _RIGHT)


def _share(task: Mapping[str, Any], part: str) -> str:
    return f"{task['parts'][part] / task['seconds']:.0%}" if task["seconds"] else ""


def _step_s(task: Mapping[str, Any]) -> float:
    """Return the length of a step of a task that takes steps."""
    return float(task["seconds"] / max(1, task["last"] - task["first"] + 1))


@dataclass(frozen=True, slots=True)
class _Op:
    """One op of several tasks."""

    name: str
    type: str
    part: str
    seconds: Mapping[str, float]
    """Task → its time in this op, per step of the run, or per second if no task takes steps."""

    @property
    def mean(self) -> float:
        return fmean(self.seconds.values())

    @property
    def slowest(self) -> str:
        return max(self.seconds, key=self.seconds.__getitem__)


def _op_grid(tasks: Sequence[Mapping[str, Any]]) -> Grid:
    """Return the table of the longest ops, on average over the tasks that have them."""
    steps = [_step_s(task) for task in tasks if "first" in task]
    unit, unit_s = ("per step", fmean(steps)) if steps else ("per second", 1.0)
    times = defaultdict[tuple[str, str, str], dict[str, float]](dict)
    for task in tasks:
        for op in task["ops"] if task["seconds"] else ():
            key = op["name"], op["type"], op["part"]
            times[key][task["task"]] = op["seconds"] / task["seconds"] * unit_s
    ops = sorted((_Op(*key, seconds) for key, seconds in times.items()), key=lambda op: -op.mean)
    columns = {
        "op": lambda op: _cut(op.name),
        "type": lambda op: op.type,
        "part": lambda op: op.part,
        unit: lambda op: format_ms(op.mean),
        "most": lambda op: format_ms(op.seconds[op.slowest]) if len(op.seconds) > 1 else None,
        "in": lambda op: op.slowest if len(op.seconds) > 1 else None,
    }
    return Grid.of(ops[:_MOST_OPS], columns, _RIGHT)


def _cut(name: str) -> str:
    """Return a name of at most `_NAME_CHARACTERS`, without its beginning: the end tells more."""
    return name if len(name) <= _NAME_CHARACTERS else f"…{name[1 - _NAME_CHARACTERS :]}"
