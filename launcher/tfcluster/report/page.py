"""Renders a report as one HTML page, which loads nothing and needs no script.

All text is sanitized and escaped: names, metrics and log lines come from tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tfcluster import __version__
from tfcluster.report.charts import DASHES, MOST_LINES, format_time
from tfcluster.report.drawings import AXES, figures_of, timeline_rows
from tfcluster.report.gather import (
    MOST_TASKS_IN_FULL,
    Results,
    RunReport,
    tasks_in_full,
)
from tfcluster.rundir.snapshot import RunSnapshot, describe_failure
from tfcluster.rundir.states import Status
from tfcluster.ui import history, plan_view
from tfcluster.ui.formats import format_bytes, format_count, format_duration, format_value, plural
from tfcluster.ui.lines import sanitize_text
from tfcluster.ui.panels import root_cause_panel, tasks_grid, trial_table
from tfcluster.ui.render import Facts, Grid, Part, Verbatim

if TYPE_CHECKING:
    from jinja2 import Environment

_LONGEST_LINE: Final = 2000
_PACKAGES: Final = ("tensorflow", "keras", "tf-keras")


def render_report(report: RunReport) -> str:
    """Return the page of one run."""
    state, plan = report.state, report.plan
    return (
        environment()
        .get_template("report.html")
        .render(
            report=report,
            tone=_tone(report),
            status=report.status.replace("_", " "),
            summary=Facts.of(*_summary(report)),
            places=Facts.of(*_places(report)),
            explanation=list(_explanation(report)),
            axes=AXES,
            figures=figures_of(report),
            tasks=[tasks_grid(state)] if state is not None else [],
            trials=trial_table(state) if state is not None else [],
            rows=timeline_rows(report.history),
            plan=plan_view.plan_parts(plan) if plan is not None else [],
            commands=[
                (str(task), Verbatim(tuple(plan_view.format_task(of, task))))
                for of, task in tasks_in_full(report)
            ],
            more_tasks=max(0, len(plan.tasks) - MOST_TASKS_IN_FULL) if plan is not None else 0,
            nodes=_node_grid(report),
            spec=_json_lines(report.spec),
        )
    )


def format_results(results: Results) -> tuple[tuple[str, str], ...]:
    """Return name and value of the numbers of a run that are known."""
    metrics = ((name, format_value(value)) for name, value in results.metrics.items())

    def duration(seconds: float | None) -> str | None:
        return None if seconds is None else format_duration(seconds)

    def speed(per_second: float | None) -> str | None:
        return None if per_second is None else format_count(per_second)

    peak = results.peak_memory_bytes
    return Facts.of(
        ("duration", duration(results.duration_s)),
        ("first step after", duration(results.first_step_s)),
        ("step", None if results.step is None else f"{results.step:,}"),
        *metrics,
        ("examples/s on average", speed(results.examples_per_second)),
        ("steps/s on average", speed(results.steps_per_second)),
        ("restarts", str(results.restarts) if results.restarts else None),
        ("peak memory", None if peak is None else format_bytes(peak)),
        ("checkpoint", results.checkpoint),
    ).pairs


def _summary(report: RunReport) -> Iterator[tuple[str, str | None]]:
    """Yield the short facts."""
    state = report.state
    if state is not None:
        yield "status", _status(state)
        yield "started", _date(state.started_at)
        yield "ended", _date(state.ended_at) if state.ended_at is not None else None
        if (chief := state.leader) is not None and chief.epochs:
            yield "epoch", f"{chief.epoch or '?'} of {chief.epochs}"
    yield "tasks", _count_tasks(report)
    yield from format_results(report.results)


def _places(report: RunReport) -> Iterator[tuple[str, str | None]]:
    """Yield the facts that may be long."""
    state, plan = report.state, report.plan
    if state is not None:
        yield "waiting for", state.waits_for
        yield "gathering", history.format_gathering(state.gathering)
        yield from history.list_facts(state)
    yield "strategy", plan_view.format_strategy(plan) if plan is not None else None
    yield "spec", state.spec if state is not None else None
    yield "folder", str(report.paths.root)


def _status(state: RunSnapshot) -> str:
    code = f", exit code {state.exit_code}" if state.exit_code is not None else ""
    return f"{str(state.status).replace('_', ' ')}{code}"


def _count_tasks(report: RunReport) -> str:
    names = [task.task for task in report.state.tasks] if report.state is not None else []
    jobs = [name.partition(":")[0] for name in names]
    return ", ".join(
        plural(jobs.count(job), job, "ps" if job == "ps" else "") for job in dict.fromkeys(jobs)
    )


def _explanation(report: RunReport) -> Iterator[Part]:
    """Yield why the run ended as it did, what to do, and the lines that show it."""
    state = report.state
    if state is None:
        yield f"The run is damaged: its state cannot be read: {report.damage}"
        return
    panel = root_cause_panel(state, report.paths, report.last_lines)
    message, fix = describe_failure(state)
    if message and (panel is None or state.reason):
        yield message
        yield f"→ {fix}"
    if panel is not None:
        yield panel.title
        yield from panel.parts
    elif report.last_lines:
        yield f"last {plural(len(report.last_lines), 'line')} of {report.lines_of}:"
        yield Verbatim(report.last_lines)
    yield from (f"alert: {alert}" for alert in state.alerts.values())
    yield from (f"warning: {warning}" for warning in dict.fromkeys(state.warnings))


def _node_grid(report: RunReport) -> Grid:
    columns: dict[str, Any] = {
        "node": lambda node: node.node,
        "backend": lambda node: node.backend,
        "place": lambda node: node.place,
        "Python": lambda node: node.python,
        "TensorFlow": lambda node: node.packages.get("tensorflow"),
        "Keras": lambda node: node.packages.get("keras"),
        "tf_keras": lambda node: node.packages.get("tf-keras"),
        "GPUs": lambda node: node.gpus,
    }
    return Grid.of(report.nodes, columns)


def _tone(report: RunReport) -> str:
    match report.state.status if report.state is not None else None:
        case Status.SUCCEEDED:
            return "good"
        case (
            Status.INTERRUPTED
            | Status.STOPPING
            | Status.RESTARTING
            | Status.QUEUED
            | Status.STALLED
            | Status.SUSPENDED
        ):
            return "warn"
        case Status.STARTING | Status.RUNNING:
            return "plain"
    return "bad"


def _json_lines(value: Any) -> Verbatim:
    import json

    text = json.dumps(value, indent=1, ensure_ascii=False) if value else ""
    return Verbatim(tuple(text.splitlines()))


def _date(seconds: float) -> str:
    try:
        found = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return "?"
    return f"{found:%Y-%m-%d %H:%M:%S} UTC"


def _cut(line: str) -> str:
    more = len(line) - _LONGEST_LINE
    return f"{line[:_LONGEST_LINE]}… ({more:,} more characters)" if more > 0 else line


def environment() -> Environment:
    """Return jinja2 with the package's templates, which sanitizes and escapes all text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("tfcluster.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: sanitize_text(value) if type(value) is str else value,
    )
    found.filters |= {
        "cut": _cut,
        "date": _date,
        "elapsed": lambda seconds: f"{seconds:.1f} s" if seconds < 60 else format_time(seconds),
        "paragraphs": lambda text: [line for line in text.split("\n") if line.strip()],
    }
    found.globals |= {
        "made": _date(time.time()),
        "version": __version__,
        "dashes": [DASHES[number % MOST_LINES] for number in range(MOST_LINES)],
        "kind_of": lambda part: type(part).__name__,
    }
    return found
