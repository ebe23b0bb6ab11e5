"""The live view of one run as lines: header, numbers, progress bar, tasks, what needs attention.

The loss comes first and is never cut off. Where the screen is narrow, parts are left out in this
order: the sparkline, metrics after the second, examples per second, the other metrics; of the
progress bar first the bar, then the rest of the line is cut; of the tasks the same columns as in
every table of tasks. Where there is not room for all tasks, the first stays, then come those with
trouble, then the slowest ones; one line counts the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from tfcluster.errors import join_first
from tfcluster.rundir.figures import Figures, figures_of
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot, is_done_trial
from tfcluster.rundir.states import Status
from tfcluster.ui import history
from tfcluster.ui.figure_text import (
    draw_trend,
    format_epoch,
    format_metric,
    format_metrics,
    format_step,
)
from tfcluster.ui.formats import (
    cut_to_columns,
    format_duration,
    format_large_rate,
    format_rate,
    plural,
)
from tfcluster.ui.lines import sanitize_text
from tfcluster.ui.merged_logs import task_colour
from tfcluster.ui.panels import describe_end, style_of, tasks_grid
from tfcluster.ui.render import GAP, UNLIMITED, part_texts

LastLine = Callable[[TaskSnapshot], str]
"""Returns the last line of a task's log; called only for lines that are shown."""

LEAST_ROWS: Final = 6
"""Rows that a frame needs; a smaller screen gets one line."""
_GAP: Final = "  "
_LONGEST_BAR: Final = 40
_LEAST_BAR: Final = 8
_LEAST_NOTE: Final = 12
"""Columns below which the last line of a log is useless."""
_TASKS_NAMED: Final = 3
_COLUMNS: Final = ("task", "state", "step", "steps/s", "memory", "cores", "gpu")


@dataclass(frozen=True, slots=True)
class Scene:
    """The facts that a frame shows; `now` is in seconds since 1970."""

    snapshot: RunSnapshot
    figures: Figures
    now: float
    samples: Sequence[float] = ()
    """The newest values of `figures.rate`."""
    this_host: str = ""


def draw_frame(scene: Scene, columns: int, rows: int, last_line: LastLine) -> list[Text]:
    """Return at most `rows` lines of at most `columns` columns."""
    head = [_header(scene, columns), *_numbers(scene, columns), *_progress(scene, columns)]
    notes = _notes(scene)[: max(0, rows - len(head) - 2)]
    tasks = _tasks(scene, columns, rows - len(head) - len(notes), last_line)
    lines = [*head, *tasks, *notes]
    for line in lines:
        line.truncate(columns, overflow="ellipsis")
    return lines


def format_status_line(
    snapshot: RunSnapshot, *, now: float, width: int, partials: Mapping[str, str] | None = None
) -> str:
    """Return ``running 12 s · loss 0.31 · step 1200 of 4000 · worker:0 41.2 steps/s``.

    `now` is in seconds since the epoch, `width` in columns. `partials` are lines still being
    written (progress bars); the first is shown at the end, cut to the remaining width.
    """
    parts = [*describe_run(snapshot, now), *describe_waits(snapshot, now)]
    parts += [f"{task.task} stopped" for task in snapshot.tasks if task.frozen_by is not None]
    if snapshot.status is Status.RESTARTING:
        return cut_to_columns(sanitize_text(" · ".join(parts)), width)
    figures = figures_of(snapshot)
    if figures.step is not None:
        parts += [format_metrics(figures.metrics, 2, gap=" · ")]
        parts += [format_epoch(figures), format_step(figures, open_end=""), *_rates(snapshot.tasks)]
    elif snapshot.status in (Status.STARTING, Status.RUNNING, Status.STALLED):
        parts += _counts(snapshot.tasks)
    parts += [f"{label} │ {text}" for label, text in list((partials or {}).items())[:1]]
    return cut_to_columns(sanitize_text(" · ".join(filter(None, parts))), width)


def describe_run(snapshot: RunSnapshot, now: float) -> list[str]:
    """Return status with duration, a stop's countdown, and the attempt."""
    ran = format_duration((snapshot.ended_at or now) - snapshot.started_at)
    parts = [f"{snapshot.status} {ran}"]
    if snapshot.status is Status.STOPPING and (snapshot.stop_by or 0) > now:
        remaining = format_duration((snapshot.stop_by or 0) - now)
        parts.append(f"{remaining} left, Ctrl-C again kills at once")
    if attempt := history.format_attempt(snapshot):
        parts.append(f"attempt {attempt}")
    return parts


def describe_waits(snapshot: RunSnapshot, now: float) -> list[str]:
    """Return what the run waits for: a task, files that are gathered, nodes, a pause."""
    parts = [history.format_stall(snapshot.stall, now)] if snapshot.stall else []
    if snapshot.gathering:
        parts.append(f"gathering {history.format_gathering(snapshot.gathering)}")
    if snapshot.waits_for:
        parts.append(f"waiting for {snapshot.waits_for}")
    return parts


def _header(scene: Scene, columns: int) -> Text:
    snapshot = scene.snapshot
    status, *others = describe_run(snapshot, scene.now)
    facts = " · ".join([*others, _where(snapshot, scene.this_host)])
    name = cut_to_columns(sanitize_text(snapshot.name), max(columns - cell_len(status) - 7, 8))
    style = "green" if snapshot.status is Status.RUNNING else style_of(snapshot.status) or "yellow"
    head = Text.assemble(("── ", "dim"), (name, "bold"), (" · ", "dim"), (status, style))
    rest = cut_to_columns(f" · {facts} ", columns - head.cell_len)
    rule = "─" * (columns - head.cell_len - cell_len(rest))
    return head.append(f"{rest}{rule}", "dim")


def _where(snapshot: RunSnapshot, this_host: str) -> str:
    here = "this machine" if this_host in ("", snapshot.host) else snapshot.host
    nodes = dict.fromkeys(here if task.node == "local" else task.node for task in snapshot.tasks)
    return sanitize_text(join_first(list(nodes)))


def _numbers(scene: Scene, columns: int) -> list[Text]:
    """Return the line of metrics and speed; the first metric is in it whatever the width is."""
    figures = scene.figures
    metrics = [format_metric(*item) for item in figures.metrics.items()]
    rate = f"{format_large_rate(figures.rate)} {figures.unit}/s" if figures.rate is not None else ""
    room, kept = columns, set[str]()
    for text in filter(None, [*metrics[:2], rate, *metrics[2:]]):
        needed = cell_len(text) + len(_GAP)
        if needed <= room or not kept:
            kept.add(text)
            room -= needed
    line = [(text + _GAP, "bold") for text in metrics if text in kept]
    if rate in kept:
        line += [(f"{rate} ", ""), (draw_trend(scene.samples, room - 1), "cyan")]
    return [Text.assemble(*line)] if line else []


def _progress(scene: Scene, columns: int) -> list[Text]:
    figures = scene.figures
    eta = f"ETA {format_duration(figures.eta_s)}" if figures.eta_s is not None else ""
    left = format_epoch(figures)
    right = [text for text in (format_step(figures), eta) if text]
    if figures.done is None or scene.snapshot.status is Status.RESTARTING:
        line = _GAP.join(filter(None, [left, *right]))
        return [Text(line)] if line else []
    start, end = f"{left}{_GAP}" if left else "", _GAP.join([f"{figures.done:.0%}", *right])
    length = min(columns - cell_len(start) - cell_len(end) - len(_GAP), _LONGEST_BAR)
    if length < _LEAST_BAR:
        return [Text(start + end)]
    full = int(figures.done * length)
    bar = [("━" * full, "green"), ("─" * (length - full), "dim")]
    return [Text.assemble(start, *bar, f"{_GAP}{end}")]


def _notes(scene: Scene) -> list[Text]:
    """Return the lines below the tasks, the most important one first."""
    snapshot = scene.snapshot
    notes = [(text, "yellow") for text in describe_waits(snapshot, scene.now)]
    notes += [(text, "bold red") for text in snapshot.alerts.values()]
    if (verdict := history.slowing_verdict(snapshot)) is not None:
        notes.append((verdict["message"], "yellow"))
    lost = [node for node, state in snapshot.nodes.items() if state == "lost"]
    notes += [(f"node {node} is lost", "red") for node in lost]
    if snapshot.trials:
        notes.append((_describe_trials(snapshot), ""))
    if warnings := snapshot.warnings:
        newest = " ".join(warnings[-1].split())
        notes.append((f"{plural(len(warnings), 'warning')}: {newest}", "yellow"))
    if snapshot.checkpoints:
        checkpoint = snapshot.checkpoints[-1]
        name = history.format_checkpoint(checkpoint) or checkpoint["path"]
        notes.append((f"gathered checkpoint: {name}", "dim"))
    return [Text(_flatten(text), style) for text, style in notes]


def _describe_trials(snapshot: RunSnapshot) -> str:
    done = sum(is_done_trial(trial) for trial in snapshot.trials)
    running = sum(trial.get("status") == "RUNNING" for trial in snapshot.trials)
    text = f"trials: {done:,} done, {running:,} running"
    best = next((t for t in snapshot.trials if t["id"] == snapshot.best_trial), None)
    if best is None:
        return text
    return f"{text}, best is {best['id']} with {best.get('objective')} {best['score']:.5g}"


def _rates(tasks: list[TaskSnapshot]) -> list[str]:
    known = [(t.task, t.steps_per_second) for t in tasks if t.steps_per_second is not None]
    rates = [rate for _, rate in known]
    if not rates:
        return []
    if len(known) > _TASKS_NAMED:
        low, high = format_rate(min(rates)), format_rate(max(rates))
        return [f"{len(known)} tasks {low}–{high} steps/s"]
    return [", ".join(f"{task} {format_rate(rate)}" for task, rate in known) + " steps/s"]


def _counts(tasks: list[TaskSnapshot]) -> list[str]:
    states = Counter(task.state for task in tasks)
    return [f"{plural(count, 'task')} {state}" for state, count in states.items()]


def _tasks(scene: Scene, columns: int, rows: int, last_line: LastLine) -> list[Text]:
    """Return at most `rows` lines: a header, the tasks, and a count of those left out."""
    snapshot = scene.snapshot
    if rows <= 0 or not snapshot.tasks:
        return []
    if rows < 3 and len(snapshot.tasks) > rows - 1:
        return [Text(count_rest(snapshot, ()))]
    shown = choose_tasks(snapshot, rows - 1)
    grid = tasks_grid(snapshot, _COLUMNS, tasks=shown).fitted(columns)
    head, *others = part_texts(grid, UNLIMITED)
    head.stylize("dim")
    for task, line in zip(shown, others, strict=True):
        line.stylize(task_colour(task.task), 0, grid.widths[0])
        if columns - grid.width - GAP >= _LEAST_NOTE:
            line.pad_right(grid.width - line.cell_len)
            note, style = note_task(snapshot, task, last_line)
            line.append(_GAP + note, style)
            line.rstrip()
    rest = [Text(count_rest(snapshot, shown), "dim")] if len(shown) < len(snapshot.tasks) else []
    return [head, *others, *rest]


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


def _has_trouble(snapshot: RunSnapshot, task: TaskSnapshot) -> bool:
    is_bad = task.state in ("failed", "lost", "restarting") or task.frozen_by is not None
    is_awaited = task.task in ((snapshot.stall or {}).get("causes") or ())
    return is_bad or is_awaited or bool(history.format_blame(snapshot, task))


def note_task(snapshot: RunSnapshot, task: TaskSnapshot, last_line: LastLine) -> tuple[str, str]:
    """Return why the task waits, else its last line, and the style."""
    if task.ended_at is not None or task.frozen_by is not None:
        return "", ""  # its state says so
    note = (snapshot.stall or {}).get("tasks", {}).get(task.task)
    if not note and task.step is None:
        note = task.phase
    if not note and task.task.startswith("evaluator"):
        note = format_metrics(task.metrics, 3, gap=" ")
    return (_flatten(str(note)), "") if note else (_flatten(last_line(task)), "dim")


def count_rest(snapshot: RunSnapshot, shown: Sequence[TaskSnapshot]) -> str:
    names = {task.task for task in shown}
    rest = [task for task in snapshot.tasks if task.task not in names]
    states = Counter(describe_end(task) for task in rest)
    counts = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    steps = [task.step for task in rest if task.step is not None]
    text = f"and {len(rest):,} more: {counts}" if shown else f"tasks: {counts}"
    if steps:
        low, high = min(steps), max(steps)
        text += f", step {low:,}" if low == high else f", steps {low:,} to {high:,}"
    return text


def _flatten(text: str) -> str:
    return sanitize_text(text).replace("\n", " ").replace("\t", " ")
