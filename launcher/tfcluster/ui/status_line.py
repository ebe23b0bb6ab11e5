"""The one line at the bottom of a live view: a pure function of the state."""

from __future__ import annotations

from collections.abc import Mapping

from tfcluster.run.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.run.status import Status
from tfcluster.ui.formats import cut_to_columns, format_duration, format_rate, plural
from tfcluster.ui.lines import harmless_text
from tfcluster.ui.story import attempt_of_all, gathering

_TASKS_NAMED = 3


def format_status_line(
    snapshot: RunSnapshot, partials: Mapping[str, str], *, now: float, width: int
) -> str:
    """``running 12 s · step 1200 · worker:0 41.2, worker:1 41.0 steps/s · loss 0.31``.

    `partials` are lines still being written (progress bars); the first is shown at the end, with
    what room is left of `width`.
    """
    parts = [
        f"{snapshot.status} {format_duration((snapshot.ended_at or now) - snapshot.started_at)}"
    ]
    if snapshot.status is Status.STOPPING and (snapshot.stop_by or 0) > now:
        left = format_duration((snapshot.stop_by or 0) - now)
        parts.append(f"{left} left, Ctrl-C again kills at once")
    if (attempt := attempt_of_all(snapshot)) > 1:
        parts.append(f"attempt {attempt}")
    if snapshot.gathering:
        parts.append(f"gathering {gathering(snapshot.gathering)}")
    if snapshot.waits_for:
        parts.append(f"waits for {snapshot.waits_for}")
    parts += [f"{task.task} stopped" for task in snapshot.tasks if task.frozen_by is not None]
    if snapshot.status is Status.RESTARTING:
        return cut_to_columns(harmless_text(" · ".join(parts)), width)
    steps = [task.step for task in snapshot.tasks if task.step is not None]
    if steps:
        parts += [f"step {max(steps):,}", *_rates(snapshot.tasks), *_metrics(snapshot.tasks)]
    elif snapshot.status in (Status.STARTING, Status.RUNNING):
        parts += _counts(snapshot.tasks)
    for label, text in list(partials.items())[:1]:
        parts.append(f"{label} │ {text}")
    return cut_to_columns(harmless_text(" · ".join(parts)), width)


def _rates(tasks: list[TaskSnapshot]) -> list[str]:
    known = [(t.task, t.steps_per_second) for t in tasks if t.steps_per_second is not None]
    rates = [rate for _, rate in known]
    if not rates:
        return []
    if len(known) > _TASKS_NAMED:
        low, high = format_rate(min(rates)), format_rate(max(rates))
        return [f"{len(known)} tasks {low}–{high} steps/s"]
    return [", ".join(f"{task} {format_rate(rate)}" for task, rate in known) + " steps/s"]


def _metrics(tasks: list[TaskSnapshot]) -> list[str]:
    metrics = next((task.metrics for task in tasks if task.metrics), {})
    return [f"{name} {value:.4g}" for name, value in list(metrics.items())[:2]]


def _counts(tasks: list[TaskSnapshot]) -> list[str]:
    states: dict[str, int] = {}
    for task in tasks:
        states[task.state] = states.get(task.state, 0) + 1
    return [f"{plural(count, 'task')} {state}" for state, count in states.items()]
