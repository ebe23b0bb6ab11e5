"""Chooses what is drawn of a run: its charts, and the rows of a timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from tfcluster.errors import join_first
from tfcluster.report.charts import MOST_LINES, Axis, Chart, Line, Mark, Unit
from tfcluster.report.gather import RunReport
from tfcluster.rundir.series import Curve, History, Moment, downsample
from tfcluster.ui.event_lines import format_event
from tfcluster.ui.history import format_checkpoint

MOST_CHARTS_OF_METRICS: Final = 8
_MOST_POINTS: Final = 400
AXES: Final[tuple[Axis, ...]] = ("step", "time")


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity over steps and over time; a page shows either."""

    title: str
    charts: tuple[Chart, ...]
    """One for each axis that has values; the first is shown first."""
    note: str = ""
    """The names of lines and charts that are left out."""

    @property
    def lines(self) -> tuple[Line, ...]:
        return self.charts[0].lines


def figures_of(report: RunReport) -> list[Figure]:
    """Return the charts of a run: its metrics, its speed, its memory and its processors."""
    history, is_gang = report.history, report.plan is None or report.plan.kind == "training"
    marks = list(_marks(history))
    chief = history.chief
    metrics = [c for c in history.curves if c.kind == "metric" and (not is_gang or c.task == chief)]
    groups: dict[str, list[Curve]] = {}
    for curve in sorted(metrics, key=lambda curve: _base_name(curve.name) != "loss"):
        groups.setdefault(_base_name(curve.name), []).append(curve)
    found = [
        _figure(name, curves, lambda c: c.name if is_gang else f"{c.name} of {c.task}", marks)
        for name, curves in list(groups.items())[:MOST_CHARTS_OF_METRICS]
    ]
    if more := list(groups)[MOST_CHARTS_OF_METRICS:]:
        found[-1] = replace(found[-1], note=f"not drawn: {join_first(more)}")
    for name, title in _quantities(history):
        curves = [c for c in history.curves if c.kind != "metric" and c.name == name]
        found.append(_figure(title, curves, lambda c: c.task, marks))
    return found


_TITLES: Final = {
    "examples_per_second": "Examples per second",
    "steps_per_second": "Steps per second",
    "rss_bytes": "Memory",
    "cores": "Processor cores in use",
    "gpu": "Use of the GPUs (1: all)",
    "gpu_memory_bytes": "GPU memory",
}


def _quantities(history: History) -> Iterator[tuple[str, str]]:
    """Yield name and title of the curves that are no metrics, speeds in examples before steps."""
    names = {curve.name for curve in history.curves if curve.kind != "metric"}
    if "examples_per_second" in names:
        names -= {"steps_per_second"}
    return ((name, title) for name, title in _TITLES.items() if name in names)


def _base_name(metric: str) -> str:
    return metric.removeprefix("val_")


def _unit(name: str, kind: str) -> Unit:
    if kind == "metric":
        return "number"
    return "bytes" if name.endswith("_bytes") else "rate"


def _figure(
    title: str,
    curves: Sequence[Curve],
    label: Callable[[Curve], str],
    marks: Sequence[tuple[Axis, Mark]],
) -> Figure:
    drawn, unit = curves[:MOST_LINES], _unit(curves[0].name, curves[0].kind)
    charts = []
    for axis in AXES:
        lines = tuple(
            Line(label(curve), points, colour)
            for colour, curve in enumerate(drawn)
            if (points := _points(curve, axis))
        )
        found = tuple(mark for of, mark in marks if of == axis)
        # Memory is that of a moment; a line without steps has none to be drawn over.
        if axis == "time" or (drawn[0].kind != "usage" and len(lines) == len(drawn)):
            charts.append(Chart(title, lines, axis, unit, found))
    more = [label(curve) for curve in curves[MOST_LINES:]]
    return Figure(title, tuple(charts), f"not drawn: {join_first(more)}" if more else "")


def _points(curve: Curve, axis: Axis) -> tuple[tuple[float, float], ...]:
    points = downsample(curve.points, _MOST_POINTS)
    if axis == "time":
        return tuple((time, value) for time, _, value in points)
    return tuple((float(step), value) for _, step, value in points if step is not None)


def _marks(history: History) -> Iterator[tuple[Axis, Mark]]:
    """Yield the marks of both axes: restarts, and where checkpoints were gathered."""
    for moment in history.timeline:
        event = moment.event
        if moment.type == "restarting":
            text = f"attempt {event.get('attempt')}: {event.get('reason')}"
            step = event.get("from_step")
            yield "time", Mark(moment.time, "restart", text)
            if isinstance(step, int):
                yield "step", Mark(float(step), "restart", text)
        elif moment.type == "checkpoint_gathered":
            yield "time", Mark(moment.time, "checkpoint", _checkpoint_text(event))
            if isinstance(step := event.get("step"), int) and abs(step) < 1 << 53:
                yield "step", Mark(float(step), "checkpoint", _checkpoint_text(event))


def _checkpoint_text(event: Mapping[str, Any]) -> str:
    try:
        return f"checkpoint gathered: {format_checkpoint(event) or event.get('path')}"
    except (TypeError, ValueError):
        return "checkpoint gathered"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a timeline."""

    time: float
    """Seconds since the run's first event."""
    text: str
    tone: str
    """``bad``, ``warn``, ``good`` or ``plain``."""


def timeline_rows(history: History) -> list[Row]:
    """Return the timeline in sentences; what many tasks do alike is one row."""
    rows = []
    for (kind, attempt), group in groupby(history.timeline, key=_likeness):
        moments = list(group)
        if kind in _TOGETHER:
            names = join_first([str(moment.event.get("task")) for moment in moments])
            again = f" (attempt {attempt})" if attempt not in (1, None) else ""
            rows.append(Row(moments[0].time, f"{names} {_TOGETHER[kind]}{again}", "plain"))
        else:
            rows += [row for moment in moments if (row := _row(moment))]
    return rows


_TOGETHER: Final = {"task_started": "started", "task_ready": "joined the cluster"}
_TONES: Final = {"red": "bad", "yellow": "warn", "bold yellow": "warn", "magenta": "warn"}


def _likeness(moment: Moment) -> tuple[str, object]:
    return moment.type, moment.event.get("attempt") if moment.type in _TOGETHER else None


def _row(moment: Moment) -> Row | None:
    event = moment.event
    if moment.type == "run_started":
        return Row(moment.time, f"the run begins with tfcluster {event.get('version')}", "plain")
    if moment.type == "resumed":
        return Row(moment.time, f"resumes from {event.get('run')}", "plain")
    if moment.type == "run_finished":
        has_succeeded = event.get("status") == "succeeded"
        code = "" if has_succeeded else f" with exit code {event.get('exit_code')}"
        status = str(event.get("status")).replace("_", " ")
        return Row(
            moment.time, f"the run ended: {status}{code}", "good" if has_succeeded else "bad"
        )
    if moment.type == "diagnosis" and isinstance(cause := event.get("root_cause"), Mapping):
        reason = str(cause.get("reason", "")).partition("\n")[0]
        return Row(moment.time, f"root cause: {cause.get('task')}: {reason}", "bad")
    line = format_event(event)
    if line is None and moment.type == "warned":
        return Row(moment.time, str(event.get("message")), "warn")
    return Row(moment.time, line.text, _TONES.get(line.style, "plain")) if line else None
