"""What the closing summary and the looking commands say: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfcluster.run.paths import RunPaths
from tfcluster.run.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.run.status import Status
from tfcluster.ui import story, trials
from tfcluster.ui.formats import (
    cut_to_columns,
    format_bytes,
    format_duration,
    format_exit,
    format_rate,
    plural,
    signal_name,
)
from tfcluster.ui.render import Facts, Grid, Panel, Part, Verbatim, part_lines

_UNLIMITED = 100_000
_GAP = 2
_LEAST_REASON = 20
"""Columns below which a reason cut short says nothing."""
HOME_IS_LARGE = 10_000_000_000
"""Bytes of all runs together above which the summary names `prune`."""


def closing_panel(
    snapshot: RunSnapshot,
    paths: RunPaths,
    *,
    load_hint: str = "",
    home_bytes: int | None = None,
) -> Panel:
    """How the run ended: per task exit, duration, steps/s, peak memory; and where things are.

    `load_hint` is one line of Python that loads the newest checkpoint.
    """
    pairs = (*story.facts(snapshot), *_places(snapshot, paths))
    parts: list[Part] = [task_ends(snapshot), Facts(pairs)]
    if load_hint:
        parts.append(Facts((("load it", load_hint),)))
    parts += trials.parts(snapshot)
    parts += _cleaning(snapshot)
    parts += [f"warning: {warning}" for warning in _warnings(snapshot)]
    if home_bytes is not None and home_bytes > HOME_IS_LARGE:
        size = format_bytes(home_bytes)
        parts.append(f"All runs together take {size}; `tfcluster prune` removes old ones.")
    return Panel(_closing_title(snapshot), tuple(parts), _tone(snapshot.status))


def root_cause_panel(
    snapshot: RunSnapshot, paths: RunPaths, last_lines: Sequence[str] = ()
) -> Panel | None:
    """Which task failed first and why, with the last lines of its log; None for a run
    that did not fail, or not for a task's sake."""
    cause = story.root_cause(snapshot)
    if not cause:
        return None
    task = str(cause.get("task", "?"))
    how = format_exit(cause.get("exit_code"), cause.get("signal"))
    reason = str(cause.get("reason", ""))
    parts: list[Part] = [reason] if reason != f"exit code {cause.get('exit_code')}" else []
    parts += story.cures(cause)
    parts += story.consequences(snapshot)
    if last_lines:
        parts += [f"last {plural(len(last_lines), 'line')} of {task}:", Verbatim(tuple(last_lines))]
    if log := story.log_of_cause(snapshot):
        parts.append(f"whole log: {paths.root / log}")
    return Panel(f"root cause: {task}{', ' + how if how else ''}", tuple(parts), "bad")


def status_panel(
    snapshot: RunSnapshot, paths: RunPaths, *, now: float, here: str | None = None
) -> Panel:
    """One run now; `here` is this host's name."""
    ran = (snapshot.ended_at or now) - snapshot.started_at
    pairs = [("status", f"{snapshot.status}{_with_code(snapshot)}{_on(snapshot, here)}")]
    # Of a lost run nobody knows when it ended.
    if snapshot.status is not Status.LOST:
        pairs.append(("ran" if snapshot.status.is_final else "running for", format_duration(ran)))
    if snapshot.gathering:
        pairs.append(("gathering", story.gathering(snapshot.gathering)))
    if snapshot.waits_for:
        pairs.append(("waits for", snapshot.waits_for))
    if gone := [f"{node} is {state}" for node, state in snapshot.nodes.items() if state == "lost"]:
        pairs.append(("nodes", ", ".join(gone)))
    pairs += story.facts(snapshot)
    if snapshot.spec:
        pairs.append(("spec", snapshot.spec))
    pairs += _places(snapshot, paths)
    parts: list[Part] = [Facts(tuple(pairs)), _progress_grid(snapshot, now)]
    parts += trials.parts(snapshot, now=None if snapshot.status.is_final else now)
    parts += [*story.reason(snapshot), *story.cause(snapshot)]
    parts += _cleaning(snapshot)
    parts += [f"warning: {warning}" for warning in _warnings(snapshot)]
    return Panel(snapshot.run, tuple(parts), _tone(snapshot.status))


def runs_grid(
    snapshots: Sequence[RunSnapshot],
    *,
    now: float,
    here: str | None = None,
    width: int | None = None,
) -> Grid:
    """What `ps` lists, newest last; `here` is this host's name. Why runs failed is cut to what
    room is left of `width` columns."""
    rows = tuple(
        (
            run.run,
            f"{run.status}{_with_code(run)}{', gathering' * bool(run.gathering)}{_on(run, here)}",
            str(len(run.tasks)),
            _thousands(max((t.step for t in run.tasks if t.step is not None), default=None)),
            f"{format_duration(now - run.started_at)} ago",
        )
        for run in snapshots
    )
    headers = ("RUN", "STATUS", "TASKS", "STEP", "STARTED")
    grid = Grid(headers, rows, right=frozenset({"TASKS", "STEP"}))
    reasons = [story.in_short(run) for run in snapshots]
    if width is not None:
        room = width - max(map(len, part_lines(grid, _UNLIMITED)), default=0) - _GAP
        reasons = [cut_to_columns(why, room) if room >= _LEAST_REASON else "" for why in reasons]
    more = tuple((*row, why) for row, why in zip(rows, reasons, strict=True))
    return replace(grid, headers=(*headers, "REASON"), rows=more).without_empty_columns()


def checkpoints_grid(checkpoints: Sequence[Mapping[str, Any]]) -> Grid:
    """What `checkpoints` lists, newest last; `checkpoints` as `RunSnapshot` holds them."""
    rows = tuple(
        (
            _thousands(found.get("step")) or story.gathered(found) or "–",
            str(found.get("kind", "")),
            format_bytes(found.get("bytes") or 0),
            str(found["path"]),
        )
        for found in checkpoints
    )
    return Grid(("STEP", "KIND", "SIZE", "PATH"), rows, right=frozenset({"STEP", "SIZE"}))


def _cleaning(snapshot: RunSnapshot) -> list[str]:
    if not story.wants_cleaning(snapshot):
        return []
    return [f"Its coordinator is gone: `tfcluster down {snapshot.run}` cleans up after it."]


def _warnings(snapshot: RunSnapshot) -> list[str]:
    lost = [
        f"{format_bytes(task.log_lost_bytes)} ({task.log_lost_bytes:,} bytes) of {task.task}'s"
        " log are lost: the disk did not take them"
        for task in snapshot.tasks
        if task.log_lost_bytes
    ]
    return [*lost, *dict.fromkeys(snapshot.warnings)]


def task_ends(snapshot: RunSnapshot) -> Grid:
    """Per task how it ended and whose fault that was, how long it ran, how fast, how large it
    grew."""
    rows = tuple(
        (
            task.task,
            describe_end(task) + story.blame(snapshot, task),
            _ran(task, task.ended_at),
            _thousands(task.step),
            _speed(task),
            format_bytes(task.peak_rss_bytes) if task.peak_rss_bytes else "",
        )
        for task in snapshot.tasks
    )
    headers = ("task", "end", "ran", "step", "steps/s", "peak memory")
    right = frozenset({"ran", "step", "steps/s", "peak memory"})
    return Grid(headers, rows, right).without_empty_columns()


def describe_end(task: TaskSnapshot) -> str:
    """``exit 0``, ``SIGKILL``, ``stopped: SIGTERM`` (by tfcluster), or the state it is in."""
    how = format_exit(task.exit_code, task.signal)
    if task.frozen_by is not None:
        return f"stopped by {signal_name(task.frozen_by)}"
    if not how or task.state == "restarting":
        return "not started" if task.state == "waiting" else task.state
    return f"stopped: {how}" if task.ended_by == "tfcluster" else how


def _speed(task: TaskSnapshot) -> str:
    """Of a task that has ended its mean, of one that runs what it does now."""
    has_mean = task.ended_at is not None and task.mean_steps_per_second is not None
    return format_rate(task.mean_steps_per_second if has_mean else task.steps_per_second)


def _progress_grid(snapshot: RunSnapshot, now: float) -> Grid:
    rows = tuple(
        (
            task.task,
            describe_end(task) + story.blame(snapshot, task),
            str(task.attempt) if snapshot.attempt > 1 else "",
            task.address,
            str(task.pid or "") if task.ended_at is None else "",
            _ran(task, task.ended_at or now),
            _thousands(task.step),
            _speed(task),
            " ".join(f"{name} {value:.4g}" for name, value in list(task.metrics.items())[:3]),
        )
        for task in snapshot.tasks
    )
    headers = ("task", "state", "attempt", "address", "pid", "ran", "step", "steps/s", "metrics")
    right = frozenset({"attempt", "pid", "ran", "step", "steps/s"})
    return Grid(headers, rows, right).without_empty_columns()


def _places(snapshot: RunSnapshot, paths: RunPaths) -> tuple[tuple[str, str], ...]:
    logs = paths.attempt_logs(snapshot.attempt) if snapshot.attempt else paths.logs
    pairs = [("logs", str(logs))]
    if snapshot.checkpoints:
        newest = snapshot.checkpoints[-1]
        which = f"{found} in " if (found := story.gathered(newest)) else ""
        pairs.append(("checkpoint", f"{which}{paths.root / str(newest['path'])}"))
    return tuple(pairs)


def _closing_title(snapshot: RunSnapshot) -> str:
    if snapshot.status is Status.LOST:
        return f"{snapshot.run} is lost: its coordinator went away"
    ended = snapshot.ended_at or snapshot.started_at
    return f"{snapshot.run} {snapshot.status} after {format_duration(ended - snapshot.started_at)}"


def _tone(status: Status) -> str:
    if status is Status.SUCCEEDED:
        return "good"
    if status in (Status.INTERRUPTED, Status.STOPPING, Status.RESTARTING):
        return "warn"
    return "bad" if status.is_final else "plain"


def _with_code(snapshot: RunSnapshot) -> str:
    return f" ({snapshot.exit_code})" if snapshot.exit_code else ""


def _on(snapshot: RunSnapshot, here: str | None) -> str:
    """Another host, which shares this home, is the one that knows."""
    return f" on {snapshot.host}" if here and snapshot.host != here else ""


def _ran(task: TaskSnapshot, until: float | None) -> str:
    if task.started_at is None or until is None:
        return ""
    return format_duration(until - task.started_at)


def _thousands(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
