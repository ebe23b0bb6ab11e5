"""The live view of one run as lines: header, numbers, progress bar, tasks, what needs attention.

The loss comes first and is never cut off. Where the screen is narrow, parts are left out in this
order: the sparkline, metrics after the second, examples per second, the other metrics; of the
progress bar first the bar, then the rest of the line is cut; the columns of tasks see `task_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tfcluster.errors import join_first
from tfcluster.rundir.figures import Figures
from tfcluster.rundir.snapshot import RunSnapshot, is_done_trial
from tfcluster.rundir.states import Status
from tfcluster.ui import history
from tfcluster.ui.formats import (
    count_columns,
    cut_to_columns,
    format_count,
    format_duration,
    plural,
)
from tfcluster.ui.lines import sanitize_text
from tfcluster.ui.live.figure_text import (
    draw_trend,
    format_epoch,
    format_metric,
    format_step,
)
from tfcluster.ui.live.task_rows import LastLine, task_rows
from tfcluster.ui.terminal import Segments

LEAST_ROWS: Final = 6
"""Rows that a frame needs; a smaller screen gets one line."""
_GAP: Final = "  "
_LONGEST_BAR: Final = 40
_LEAST_BAR: Final = 8
_STYLES: Final = {
    Status.RUNNING: "green", Status.SUCCEEDED: "green", Status.FAILED: "red",
    Status.TIMED_OUT: "red", Status.LOST: "red",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scene:
    """The facts that a frame shows; `now` is in seconds since 1970."""

    snapshot: RunSnapshot
    figures: Figures
    now: float
    samples: Sequence[float] = ()
    """The newest values of `figures.rate`."""
    this_host: str = ""


def draw_frame(scene: Scene, columns: int, rows: int, last_line: LastLine) -> list[Segments]:
    """Return at most `rows` lines of at most `columns` columns."""
    head = [_header(scene, columns), *_numbers(scene, columns), *_progress(scene, columns)]
    notes = _notes(scene)[: max(0, rows - len(head) - 2)]
    tasks = task_rows(scene.snapshot, columns, rows - len(head) - len(notes), last_line)
    return [*head, *tasks, *([(cut_to_columns(text, columns), style)] for text, style in notes)]


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


def _header(scene: Scene, columns: int) -> Segments:
    snapshot = scene.snapshot
    status, *others = describe_run(snapshot, scene.now)
    facts = " · ".join([*others, _where(snapshot, scene.this_host)])
    room = columns - count_columns(status) - 7
    name = cut_to_columns(sanitize_text(snapshot.name), max(room, 8))
    used = 3 + count_columns(name) + 3 + count_columns(status)
    style = _STYLES.get(snapshot.status, "yellow")
    line = [("── ", "dim"), (name, "bold"), (" · ", "dim"), (status, style)]
    rest = cut_to_columns(f" · {facts} ", columns - used)
    rule = "─" * (columns - used - count_columns(rest))
    return [*line, (f"{rest}{rule}", "dim")]


def _where(snapshot: RunSnapshot, this_host: str) -> str:
    here = "this machine" if this_host in ("", snapshot.host) else snapshot.host
    nodes = dict.fromkeys(here if task.node == "local" else task.node for task in snapshot.tasks)
    return sanitize_text(join_first(list(nodes)))


def _numbers(scene: Scene, columns: int) -> list[Segments]:
    """Return the line of metrics and speed; the first metric is in it whatever the width is."""
    figures = scene.figures
    metrics = [format_metric(*item) for item in figures.metrics.items()]
    rate = f"{format_count(figures.rate)} {figures.unit}/s" if figures.rate is not None else ""
    room, kept = columns, set[str]()
    for text in filter(None, [*metrics[:2], rate, *metrics[2:]]):
        needed = count_columns(text) + len(_GAP)
        if needed <= room or not kept:
            kept.add(text)
            room -= needed
    line = [(text + _GAP, "bold") for text in metrics if text in kept]
    if rate in kept:
        line += [(f"{rate} ", ""), (draw_trend(scene.samples, room - 1), "cyan")]
    return [line] if line else []


def _progress(scene: Scene, columns: int) -> list[Segments]:
    figures = scene.figures
    left = format_epoch(figures)
    right = [format_step(figures)]
    if figures.eta_s is not None:
        right.append(f"ETA {format_duration(figures.eta_s)}")
    texts = [text for text in right if text]
    if figures.done is None or scene.snapshot.status is Status.RESTARTING:
        line = _GAP.join(filter(None, [left, *texts]))
        return [[(cut_to_columns(line, columns), "")]] if line else []
    percent = f"{figures.done:.0%}"
    used = sum(count_columns(text) + 2 for text in filter(None, [left, percent, *texts]))
    length = min(columns - used, _LONGEST_BAR)
    bar = _bar(figures.done, length) if length >= _LEAST_BAR else []
    start = [(left + _GAP, "")] if left else []
    end = _GAP.join([percent, *texts])
    return [[*start, *bar, (f"{_GAP if bar else ''}{end}", "")]]


def _bar(done: float, length: int) -> list[tuple[str, str]]:
    full = int(done * length)
    return [("━" * full, "green"), ("─" * (length - full), "dim")]


def _notes(scene: Scene) -> list[tuple[str, str]]:
    """Return the lines below the tasks, the most important one first, with their styles."""
    snapshot = scene.snapshot
    notes = [(text, "yellow") for text in describe_waits(snapshot, scene.now)]
    notes += [(text, "bold red") for text in snapshot.alerts.values()]
    lost = [node for node, state in snapshot.nodes.items() if state == "lost"]
    notes += [(f"node {node} is lost", "red") for node in lost]
    if snapshot.trials:
        notes.append((_describe_trials(snapshot), ""))
    if warnings := snapshot.warnings:
        newest = " ".join(warnings[-1].split())
        notes.append((f"{plural(len(warnings), 'warning')}: {newest}", "yellow"))
    if snapshot.checkpoints:
        found = history.format_checkpoint(snapshot.checkpoints[-1])
        which = found or str(snapshot.checkpoints[-1]["path"])
        notes.append((f"gathered checkpoint: {which}", "dim"))
    return [(sanitize_text(text).replace("\n", " "), style) for text, style in notes]


def _describe_trials(snapshot: RunSnapshot) -> str:
    done = sum(is_done_trial(trial) for trial in snapshot.trials)
    running = sum(trial.get("status") == "RUNNING" for trial in snapshot.trials)
    text = f"trials: {done:,} done, {running:,} running"
    best = next((t for t in snapshot.trials if t["id"] == snapshot.best_trial), None)
    if best is None:
        return text
    return f"{text}, best is {best['id']} with {best.get('objective')} {best['score']:.5g}"
