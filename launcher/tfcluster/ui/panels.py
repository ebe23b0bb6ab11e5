"""Panels and tables of a run: its trials, summary, root cause, `status`, `ps` and `checkpoints`.

All functions are pure: they turn the run's state (`RunSnapshot`) into parts that `ui.render` draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.rundir.states import Status
from tfcluster.rundir.trials import is_done
from tfcluster.ui import history
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

_MOST_LISTED = 12
_LONGEST_REASON = 60


def trial_table(snapshot: RunSnapshot, *, now: float | None = None) -> list[Part]:
    """Best trial and table; nothing for a run that searches nothing. `now`: while it runs."""
    if not snapshot.trials:
        return []
    ranked = _ranked(snapshot.trials)
    shown = ranked[:_MOST_LISTED]
    found: list[Part] = [_grid(shown, now)]
    if more := len(ranked) - len(shown):
        found.append(f"and {plural(more, 'trial')} more: `tfcluster status --json`")
    return [*found, Facts((("best", _best(snapshot)),))]


def line(trial: Mapping[str, Any]) -> str | None:
    """A trial's end in one line of talk; None while it runs, and where nothing new is said."""
    status = str(trial.get("status"))
    if status == "COMPLETED" and trial.get("score") is not None:
        return f"trial {trial['id']} is done: {trial.get('objective')} {trial['score']:.5g}"
    if status in ("FAILED", "INVALID"):
        return f"trial {trial['id']} failed"
    return None


def describe_values(values: Mapping[str, Any]) -> str:
    """``learning_rate 0.001, units 64``; KerasTuner's own entries (``tuner/epochs``) left out."""
    own = {name: value for name, value in values.items() if not name.startswith("tuner/")}
    return ", ".join(f"{name} {_short(own[name])}" for name in sorted(own))


def _best(snapshot: RunSnapshot) -> str:
    trial = next((t for t in snapshot.trials if t["id"] == snapshot.best_trial), None)
    if trial is None:
        return "none: no trial was completed"
    values = describe_values(trial.get("values") or {})
    score = f"trial {trial['id']}, {trial.get('objective')} {trial['score']:.5g}"
    return f"{score}: {values}" if values else score


def _ranked(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those with a score from the best on, then the others as they came."""
    done = [trial for trial in trials if is_done(trial)]
    sign = -1 if done and done[0].get("direction") == "max" else 1
    done.sort(key=lambda trial: sign * float(trial["score"]))
    return done + [trial for trial in trials if not is_done(trial)]


def _grid(trials: list[dict[str, Any]], now: float | None) -> Grid:
    objective = next((str(t["objective"]) for t in trials if t.get("objective")), "score")
    rows = tuple(
        (
            str(trial["id"]),
            _state(trial, is_over=now is None),
            str(trial.get("tuner") or ""),
            "" if trial.get("score") is None else f"{trial['score']:.5g}",
            _trial_ran(trial, now),
            _why(trial),
        )
        for trial in trials
    )
    headers = ("trial", "state", "tuner", objective, "ran", "why")
    return Grid(headers, rows, frozenset({objective, "ran"})).without_empty_columns()


def _state(trial: Mapping[str, Any], *, is_over: bool) -> str:
    status = str(trial.get("status", "")).lower()
    return "unfinished" if status == "running" and is_over else status


def _trial_ran(trial: Mapping[str, Any], now: float | None) -> str:
    since, ended = trial.get("started_at"), trial.get("ended_at") or now
    return format_duration(ended - since) if since is not None and ended is not None else ""


def _why(trial: Mapping[str, Any]) -> str:
    lines = str(trial.get("message") or "").strip().splitlines()
    return lines[-1][:_LONGEST_REASON] if lines else ""


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
    pairs = (*history.facts(snapshot), *_places(snapshot, paths))
    parts: list[Part] = [task_ends(snapshot), Facts(pairs)]
    if load_hint:
        parts.append(Facts((("load it", load_hint),)))
    parts += trial_table(snapshot)
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
    cause = history.root_cause(snapshot)
    if not cause:
        return None
    task = str(cause.get("task", "?"))
    how = format_exit(cause.get("exit_code"), cause.get("signal"))
    reason = str(cause.get("reason", ""))
    parts: list[Part] = [reason] if reason != f"exit code {cause.get('exit_code')}" else []
    parts += history.cures(cause)
    parts += history.consequences(snapshot)
    if last_lines:
        parts += [f"last {plural(len(last_lines), 'line')} of {task}:", Verbatim(tuple(last_lines))]
    if log := history.log_of_cause(snapshot):
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
        pairs.append(("gathering", history.gathering(snapshot.gathering)))
    if snapshot.waits_for:
        pairs.append(("waits for", snapshot.waits_for))
    if gone := [f"{node} is {state}" for node, state in snapshot.nodes.items() if state == "lost"]:
        pairs.append(("nodes", ", ".join(gone)))
    pairs += history.facts(snapshot)
    if snapshot.spec:
        pairs.append(("spec", snapshot.spec))
    pairs += _places(snapshot, paths)
    parts: list[Part] = [Facts(tuple(pairs)), _progress_grid(snapshot, now)]
    parts += trial_table(snapshot, now=None if snapshot.status.is_final else now)
    parts += [*history.reason(snapshot), *history.cause(snapshot)]
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
    reasons = [history.in_short(run) for run in snapshots]
    if width is not None:
        room = width - max(map(len, part_lines(grid, _UNLIMITED)), default=0) - _GAP
        reasons = [cut_to_columns(why, room) if room >= _LEAST_REASON else "" for why in reasons]
    more = tuple((*row, why) for row, why in zip(rows, reasons, strict=True))
    return replace(grid, headers=(*headers, "REASON"), rows=more).without_empty_columns()


def checkpoints_grid(checkpoints: Sequence[Mapping[str, Any]]) -> Grid:
    """What `checkpoints` lists, newest last; `checkpoints` as `RunSnapshot` holds them."""
    rows = tuple(
        (
            _thousands(found.get("step")) or history.gathered(found) or "–",
            str(found.get("kind", "")),
            format_bytes(found.get("bytes") or 0),
            str(found["path"]),
        )
        for found in checkpoints
    )
    return Grid(("STEP", "KIND", "SIZE", "PATH"), rows, right=frozenset({"STEP", "SIZE"}))


def _cleaning(snapshot: RunSnapshot) -> list[str]:
    if not history.wants_cleaning(snapshot):
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
            describe_end(task) + history.blame(snapshot, task),
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
            describe_end(task) + history.blame(snapshot, task),
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
        which = f"{found} in " if (found := history.gathered(newest)) else ""
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
