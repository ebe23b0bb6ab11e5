"""The tasks of a run as rows of a table that fits: which tasks, and which of their columns.

Where there is not room for all tasks, the first stays, then come those with trouble, then the
slowest ones; one row counts the others. Where there is not room for all columns, they are left out
in the order of `_DROPPED_FIRST`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.ui import history
from tfcluster.ui.formats import (
    count_columns,
    cut_to_columns,
    format_bytes,
    format_exit,
    format_metrics,
    format_rate,
    signal_name,
)
from tfcluster.ui.lines import sanitize_text
from tfcluster.ui.merged_logs import task_colour
from tfcluster.ui.terminal import Segments

LastLine = Callable[[TaskSnapshot], str]
"""Returns the last line of a task's log; called only for lines that are shown."""

_GAP: Final = 2
_LEAST_NOTE: Final = 12
"""Columns below which the last line of a log is useless."""
_DROPPED_FIRST: Final = ("gpu", "cores", "memory", "steps/s")
_STATE_STYLES: Final = {
    "running": "green", "succeeded": "green", "failed": "bold red", "lost": "bold red",
    "restarting": "yellow", "stopping": "yellow",
}  # fmt: skip
_LONGEST_NAME: Final = 24


def task_rows(
    snapshot: RunSnapshot, columns: int, rows: int, last_line: LastLine
) -> list[Segments]:
    """Return at most `rows` lines: a header, the tasks, and a count of those left out."""
    if rows < 3 and len(snapshot.tasks) > rows - 1:
        return [[(cut_to_columns(_count_rest(snapshot, ()), columns), "")]] if rows > 0 else []
    shown = choose_tasks(snapshot, rows - 1)
    cells = _cells_of(shown)
    while _width(cells) > columns and (name := _first_to_drop(cells)):
        del cells[name]
    room = columns - _width(cells) - _GAP
    lines: list[Segments] = [_join(list(cells), cells, "dim")]
    for number, task in enumerate(shown):
        texts = [column[number] for column in cells.values()]
        line = _join(texts, cells, "")
        line[0] = (line[0][0], task_colour(task.task))
        line[1] = (line[1][0], _STATE_STYLES.get(task.state, ""))
        lines.append([*line, *_note(snapshot, task, room, last_line)])
    if len(shown) < len(snapshot.tasks):
        lines.append([(cut_to_columns(_count_rest(snapshot, shown), columns), "dim")])
    return lines


def choose_tasks(snapshot: RunSnapshot, room: int) -> list[TaskSnapshot]:
    """Return the tasks to show in `room` lines, in the run's order."""
    tasks = snapshot.tasks
    if len(tasks) <= room:
        return list(tasks)
    room -= 1  # for the line that counts the others
    troubled = [task for task in tasks if _has_trouble(snapshot, task)]
    slowest = sorted(
        (task for task in tasks if task.state in ("starting", "running")),
        key=lambda task: (task.step is not None, task.step or 0, task.steps_per_second or 0.0),
    )
    ranked = dict.fromkeys(task.task for task in [tasks[0], *troubled, *slowest, *tasks])
    chosen = set(list(ranked)[: max(room, 1)])
    return [task for task in tasks if task.task in chosen]


def describe_state(task: TaskSnapshot) -> str:
    """Return the state of a task, or that a signal has stopped it."""
    return "stopped" if task.frozen_by is not None else task.state


def _has_trouble(snapshot: RunSnapshot, task: TaskSnapshot) -> bool:
    is_bad = task.state in ("failed", "lost", "restarting") or task.frozen_by is not None
    is_awaited = task.task in ((snapshot.stall or {}).get("causes") or ())
    return is_bad or is_awaited or bool(history.format_blame(snapshot, task))


def _cells_of(tasks: Sequence[TaskSnapshot]) -> dict[str, list[str]]:
    """Return name → cells of the columns in which at least one task has a value."""
    columns: dict[str, Callable[[TaskSnapshot], str]] = {
        "task": lambda task: cut_to_columns(sanitize_text(task.task), _LONGEST_NAME),
        "state": describe_state,
        "step": lambda task: "" if task.step is None else f"{task.step:,}",
        "steps/s": lambda task: format_rate(task.steps_per_second),
        "memory": lambda task: "" if task.rss_bytes is None else format_bytes(task.rss_bytes),
        "cores": lambda task: "" if task.cores is None else f"{task.cores:.1f}",
        "gpu": lambda task: "" if task.gpu is None else f"{task.gpu:.0%}",
    }
    found = {name: [cell(task) for task in tasks] for name, cell in columns.items()}
    return {name: cells for name, cells in found.items() if any(cells)}


def _first_to_drop(cells: dict[str, list[str]]) -> str | None:
    return next((name for name in _DROPPED_FIRST if name in cells), None)


def _width(cells: dict[str, list[str]]) -> int:
    return sum(_column_width(name, cells) + _GAP for name in cells) - _GAP


def _column_width(name: str, cells: dict[str, list[str]]) -> int:
    return max(map(count_columns, (name, *cells[name])))


def _join(texts: Sequence[str], cells: dict[str, list[str]], style: str) -> list[tuple[str, str]]:
    """Return one line with the columns aligned: names to the left, numbers to the right."""
    line: list[tuple[str, str]] = []
    for name, text in zip(cells, texts, strict=True):
        blank = " " * (_column_width(name, cells) - count_columns(text))
        padded = text + blank if name in ("task", "state") else blank + text
        line.append((f"{'' if not line else ' ' * _GAP}{padded}", style))
    return line


def _note(
    snapshot: RunSnapshot, task: TaskSnapshot, room: int, last_line: LastLine
) -> list[tuple[str, str]]:
    """Return why the task waits or how it ended, else its last line, cut to `room` columns."""
    if room < _LEAST_NOTE:
        return []
    reason = _reason(snapshot, task)
    text = reason or last_line(task)
    style = "" if reason else "dim"
    return [(" " * _GAP, ""), (cut_to_columns(sanitize_text(text), room), style)] if text else []


def _reason(snapshot: RunSnapshot, task: TaskSnapshot) -> str:
    if task.frozen_by is not None:
        return f"stopped by {signal_name(task.frozen_by)}"
    if task.ended_at is not None:
        how = format_exit(task.exit_code, task.signal)
        by = "stopped by tfcluster: " if task.ended_by == "tfcluster" else ""
        return f"{by}{how}{history.format_blame(snapshot, task)}" if how else task.state
    if snapshot.stall and (where := snapshot.stall.get("tasks", {}).get(task.task)):
        return str(where)
    if task.step is None and task.phase:
        return task.phase
    if task.task.startswith("evaluator") and task.metrics:
        return " ".join(format_metrics(task.metrics, 3))
    return ""


def _count_rest(snapshot: RunSnapshot, shown: Sequence[TaskSnapshot]) -> str:
    names = {task.task for task in shown}
    rest = [task for task in snapshot.tasks if task.task not in names]
    states = Counter(describe_state(task) for task in rest)
    counts = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    steps = [task.step for task in rest if task.step is not None]
    text = f"and {len(rest):,} more: {counts}" if shown else f"tasks: {counts}"
    if steps:
        low, high = min(steps), max(steps)
        text += f", step {low:,}" if low == high else f", steps {low:,} to {high:,}"
    return text
