"""A profile as text: the shares of each task's time, the longest ops, and what has no trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Final

from tfcluster.rundir.step_traces import PARTS
from tfcluster.ui.render import Grid, Part
from tfcluster.ui.scaling_tables import format_ms

_MOST_OPS: Final = 12
_NAME_CHARACTERS: Final = 56
_RIGHT: Final = ("traced", "ms/step", *PARTS, "per step", "most")


def profile_parts(profile: Mapping[str, Any]) -> list[Part]:
    """Return what the command prints about a profile (`Run.profile`)."""
    traced = [task for task in profile["tasks"] if "trace" in task]
    parts: list[Part] = [_task_grid(traced), _op_grid(traced)] if traced else []
    problems = [
        f"{t['task']}: no trace: {t['problem']}" for t in profile["tasks"] if "problem" in t
    ]
    return [*parts, *(["\n".join(problems)] if problems else [])]


def _task_grid(tasks: Sequence[Mapping[str, Any]]) -> Grid:
    columns: dict[str, Callable[[Mapping[str, Any]], object]] = {
        "task": lambda task: task["task"],
        "steps": lambda task: f"{task['first']} to {task['last']}" if "first" in task else None,
        "traced": lambda task: format_ms(task["seconds"]),
        "step": lambda task: format_ms(task["seconds"] / _steps(task)) if "first" in task else None,
        **{part: partial(_share, part=part) for part in PARTS},
    }
    return Grid.of(tasks, columns, (*_RIGHT, "step"))


def _share(task: Mapping[str, Any], part: str) -> str:
    return f"{task['parts'][part] / task['seconds']:.0%}" if task["seconds"] else ""


def _steps(task: Mapping[str, Any]) -> int:
    """Return the number of steps in a trace; 1 for a task that takes none."""
    return max(1, task["last"] - task["first"] + 1) if "first" in task else 1


@dataclass(frozen=True, slots=True)
class _Op:
    """One op of several tasks, in seconds per step."""

    name: str
    type: str
    part: str
    seconds: Mapping[str, float]
    """Task → the time of a step that it is in this op."""

    @property
    def mean(self) -> float:
        return fmean(self.seconds.values())

    @property
    def slowest(self) -> str:
        return max(self.seconds, key=self.seconds.__getitem__)


def _op_grid(tasks: Sequence[Mapping[str, Any]]) -> Grid:
    """Return the table of the longest ops, on average over the tasks that have them."""
    times = defaultdict[tuple[str, str, str], dict[str, float]](dict)
    for task in tasks:
        for op in task["ops"]:
            key = op["name"], op["type"], op["part"]
            times[key][task["task"]] = op["seconds"] / _steps(task)
    ops = sorted((_Op(*key, seconds) for key, seconds in times.items()), key=lambda op: -op.mean)
    columns = {
        "op": lambda op: _cut(op.name),
        "type": lambda op: op.type,
        "part": lambda op: op.part,
        "per step": lambda op: format_ms(op.mean),
        "most": lambda op: format_ms(op.seconds[op.slowest]) if len(op.seconds) > 1 else None,
        "in": lambda op: op.slowest if len(op.seconds) > 1 else None,
    }
    return Grid.of(ops[:_MOST_OPS], columns, _RIGHT)


def _cut(name: str) -> str:
    """Return a name of at most `_NAME_CHARACTERS`, without its beginning: the end tells more."""
    return name if len(name) <= _NAME_CHARACTERS else f"…{name[1 - _NAME_CHARACTERS :]}"
