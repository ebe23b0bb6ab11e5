"""Panels and tables of a run: its trials, summary, root cause, `status`, `ps` and `checkpoints`.

All functions are pure: they turn the run's state (`RunSnapshot`) into parts that `ui.render` draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfcluster.errors import count_names, signal_name
from tfcluster.rundir.figures import Figures, figures_of
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot, is_done_trial
from tfcluster.rundir.states import Status
from tfcluster.ui import history
from tfcluster.ui.figure_text import describe_results, format_epoch, format_metrics, format_step
from tfcluster.ui.formats import (
    format_bytes,
    format_duration,
    format_exit,
    format_known,
    format_large_rate,
    format_rate,
    format_value,
    keep_whole,
    plural,
)
from tfcluster.ui.render import Facts, Grid, Panel, Part, Verbatim

_MAX_TRIALS = 12
_MAX_TRIAL_REASON = 60
_RIGHT_OF_RUNS = ("TASKS", "EPOCH", "STEP", "LOSS")
_DROPPED_FIRST = ("EPOCH", "LOSS", "STEP", "TASKS", "STARTED")
_RIGHT_OF_LIVE_RUNS = ("TASKS", "EPOCH", "LOSS", "EXAMPLES/S", "STEPS/S", "MEMORY", "CORES")
_LIVE_DROPPED_FIRST = ("CORES", "MEMORY", "TASKS", "ETA", "EPOCH", "STEPS/S", "EXAMPLES/S")
_RIGHT_OF_TASKS = (
    "attempt", "pid", "ran", "step", "steps/s", "memory", "peak memory", "cores", "gpu",
)  # fmt: skip
_TASKS_DROPPED_FIRST = (
    "pid", "address", "GPUs", "gpu", "cores", "memory", "peak memory", "attempt", "metrics",
    "steps/s", "ran", "step",
)  # fmt: skip
ENDS = ("task", "end", "ran", "step", "steps/s", "peak memory")
"""The columns of a run's tasks in its summary."""
STATES = (
    "task", "state", "attempt", "address", "pid", "ran", "step", "steps/s", "memory", "cores",
    "GPUs", "metrics", "where",
)  # fmt: skip
"""The columns of a run's tasks in `status`."""
_STYLES = {"good": "green", "bad": "red", "warn": "yellow", "plain": ""}
_STATE_STYLES = {
    "running": "green", "succeeded": "green", "failed": "bold red", "lost": "bold red",
    "restarting": "yellow", "stopping": "yellow",
}  # fmt: skip
LARGE_HOME_BYTES = 10_000_000_000
"""Size of all runs together above which the summary suggests `prune`."""


def closing_panel(
    snapshot: RunSnapshot,
    paths: RunPaths,
    *,
    load_hint: str = "",
    home_bytes: int | None = None,
    has_curves: bool = False,
) -> Panel:
    """Return how the run ended: each task's exit, duration, steps/s and peak memory, and paths.

    `load_hint` is one line of Python that loads the newest checkpoint; `home_bytes` is the size of
    all runs together; `has_curves`: the run has written TensorBoard files.
    """
    facts = Facts.of(
        *describe_results(snapshot),
        *history.list_facts(snapshot),
        *_places(snapshot, paths),
        ("load it", keep_whole(load_hint)),
        ("continue", _restart_command(snapshot)),
        ("curves", _curves_command(snapshot) if has_curves else ""),
    )
    parts: list[Part] = [tasks_grid(snapshot), facts, *trial_table(snapshot), *_notes(snapshot)]
    if home_bytes is not None and home_bytes > LARGE_HOME_BYTES:
        size = format_bytes(home_bytes)
        parts.append(f"All runs together take {size}; `tfcluster prune` removes old ones.")
    return Panel(_closing_title(snapshot), tuple(parts), _tone(snapshot.status))


def root_cause_panel(
    snapshot: RunSnapshot, paths: RunPaths, last_lines: Sequence[str] = ()
) -> Panel | None:
    """Return which task failed first and why, with the last lines of its log.

    None for a run that did not fail, or did not fail because of a task.
    """
    cause = history.root_cause(snapshot)
    if not cause:
        return None
    task = str(cause.get("task", "?"))
    how = format_exit(cause.get("exit_code"), cause.get("signal"))
    parts: list[Part] = [] if cause.get("has_only_a_code") else [str(cause.get("reason", ""))]
    parts += history.format_fix(cause)
    parts += history.format_consequences(snapshot)
    if last_lines:
        parts += [f"last {plural(len(last_lines), 'line')} of {task}:", Verbatim(tuple(last_lines))]
    if log := history.log_of_cause(snapshot):
        parts.append(f"whole log: {keep_whole(str(paths.root / log))}")
    return Panel(f"root cause: {task}{', ' + how if how else ''}", tuple(parts), "bad")


def status_panel(
    snapshot: RunSnapshot,
    paths: RunPaths,
    *,
    now: float,
    this_host: str | None = None,
    has_curves: bool = False,
) -> Panel:
    """Return the panel of `status`; `now` is in seconds since the epoch.

    `has_curves`: as for `closing_panel`.
    """
    ran = format_duration((snapshot.ended_at or now) - snapshot.started_at)
    status = f"{snapshot.status}{_exit_code_suffix(snapshot)}{_host_suffix(snapshot, this_host)}"
    is_lost = snapshot.status is Status.LOST  # nobody knows when such a run ended
    facts = Facts.of(
        ("status", status),
        ("ran" if snapshot.status.is_final else "running for", "" if is_lost else ran),
        ("stalled", history.format_stall(snapshot.stall, now)),
        ("gathering", history.format_gathering(snapshot.gathering)),
        ("waiting for", snapshot.waits_for),
        ("job", f"{snapshot.job['backend']} {snapshot.job['id']}" if snapshot.job else None),
        ("nodes", ", ".join(f"{n} is lost" for n, s in snapshot.nodes.items() if s == "lost")),
        *describe_results(snapshot),
        *history.list_facts(snapshot),
        ("spec", keep_whole(snapshot.spec or "")),
        *_places(snapshot, paths),
        ("continue", _restart_command(snapshot)),
        ("curves", _curves_command(snapshot) if has_curves else ""),
    )
    parts: list[Part] = [facts, tasks_grid(snapshot, STATES, now=now)]
    parts += trial_table(snapshot, now=None if snapshot.status.is_final else now)
    parts += [*history.format_reason(snapshot), *history.format_cause(snapshot), *_notes(snapshot)]
    return Panel(snapshot.run, tuple(parts), _tone(snapshot.status))


def runs_grid(
    snapshots: Sequence[RunSnapshot],
    *,
    now: float,
    this_host: str | None = None,
    live: bool = False,
) -> Grid:
    """Return the table of `ps` or, with `live`, the one of `top`; newest run last."""
    figures = {run.run: figures_of(run) for run in snapshots}

    def figure(text: Callable[[Figures], object]) -> Callable[[RunSnapshot], object]:
        return lambda run: text(figures[run.run])

    def status(run: RunSnapshot) -> str:
        gathering = ", gathering" if run.gathering else ""
        return f"{run.status}{_exit_code_suffix(run)}{gathering}{_host_suffix(run, this_host)}"

    epoch = figure(lambda known: format_epoch(known, label=""))
    loss = figure(lambda known: format_known(known.metrics.get("loss"), format_value))
    columns: dict[str, Callable[[RunSnapshot], object]] = {
        "RUN": lambda run: run.run,
        "STATUS": status,
        "TASKS": lambda run: len(run.tasks),
        "EPOCH": epoch,
        "STEP": figure(lambda known: format_known(known.step, "{:,}".format)),
        "LOSS": loss,
        "STARTED": lambda run: f"{format_duration(now - run.started_at)} ago",
        "REASON": lambda run: history.format_short_reason(run, now),
    }
    if live:
        columns = {
            "NAME": lambda run: run.name,
            "ID": lambda run: run.run[-4:],
            "STATUS": lambda run: f"{run.status} {format_duration(now - run.started_at)}",
            "LOSS": loss,
            "EPOCH": epoch,
            "STEP": figure(lambda known: format_step(known, open_end="", label="")),
            "ETA": figure(lambda known: format_known(known.eta_s, format_duration)),
            "EXAMPLES/S": figure(lambda known: _format_speed(known, "examples")),
            "STEPS/S": figure(lambda known: _format_speed(known, "steps")),
            "TASKS": lambda run: len(run.tasks),
            "MEMORY": figure(lambda known: format_known(known.rss_bytes, format_bytes)),
            "CORES": figure(lambda known: format_known(known.cores, "{:.1f}".format)),
        }
    return Grid.of(
        snapshots,
        columns,
        _RIGHT_OF_LIVE_RUNS if live else _RIGHT_OF_RUNS,
        dropped_first=_LIVE_DROPPED_FIRST if live else _DROPPED_FIRST,
        cut="NAME" if live else "REASON",
        styles={"STATUS": lambda run: style_of(run.status)},
    )


def style_of(status: Status) -> str:
    """Return the style of a run's status: red once it has failed, yellow while it waits."""
    return _STYLES[_tone(status)]


def _format_speed(figures: Figures, unit: str) -> str:
    return format_known(figures.rate if figures.unit == unit else None, format_large_rate)


def checkpoints_grid(checkpoints: Sequence[Mapping[str, Any]]) -> Grid:
    """Return the table of `checkpoints`, newest last, from checkpoints as in `RunSnapshot`."""
    columns: dict[str, Callable[[Mapping[str, Any]], object]] = {
        "STEP": lambda saved: history.format_checkpoint(saved, label="") or "–",
        "KIND": lambda saved: saved.get("kind"),
        "SIZE": lambda saved: format_bytes(saved.get("bytes") or 0),
        "EVALUATED": lambda saved: history.format_evaluation(saved),
        "PATH": lambda saved: saved["path"],
    }
    if not any(saved.get("evaluated") for saved in checkpoints):
        del columns["EVALUATED"]
    return Grid.of(checkpoints, columns, ("STEP", "SIZE"))


def trial_table(snapshot: RunSnapshot, *, now: float | None = None) -> list[Part]:
    """Return a search's trials as a table, and the best of them; empty for other runs.

    `now`: seconds since the epoch; None for a run that has ended.
    """
    if not snapshot.trials:
        return []
    ranked = _rank_trials(snapshot.trials)
    shown = ranked[:_MAX_TRIALS]
    parts: list[Part] = [_trial_grid(shown, now)]
    if more := len(ranked) - len(shown):
        parts.append(f"and {plural(more, 'more trial')}: `tfcluster status --json`")
    return [*parts, Facts.of(("best", _format_best_trial(snapshot)))]


def format_trial(trial: Mapping[str, Any]) -> str | None:
    """Return one line about a trial that has completed or failed, else None."""
    status = str(trial.get("status"))
    if status == "COMPLETED" and trial.get("score") is not None:
        return f"trial {trial['id']} is done: {trial.get('objective')} {trial['score']:.5g}"
    if status in ("FAILED", "INVALID"):
        return f"trial {trial['id']} failed"
    return None


def describe_values(values: Mapping[str, Any]) -> str:
    """Return ``learning_rate 0.001, units 64``, without KerasTuner's entries (``tuner/epochs``)."""
    names = sorted(name for name in values if not name.startswith("tuner/"))
    shown = {n: format_value(v) if isinstance(v, float) else v for n, v in values.items()}
    return ", ".join(f"{name} {shown[name]}" for name in names)


def tasks_grid(
    snapshot: RunSnapshot,
    names: Sequence[str] = ENDS,
    *,
    now: float | None = None,
    tasks: Sequence[TaskSnapshot] | None = None,
) -> Grid:
    """Return the table of a run's tasks with the columns `names`, as far as they have values.

    `now`: seconds since the epoch, None for a run that has ended; `tasks`: those to show, by
    default all.
    """
    known: dict[str, Callable[[TaskSnapshot], object]] = {
        "task": lambda task: task.task,
        "end": lambda task: describe_end(task) + history.format_blame(snapshot, task),
        "state": lambda task: describe_end(task) + history.format_blame(snapshot, task),
        "attempt": lambda task: task.attempt if snapshot.attempt > 1 else None,
        "address": lambda task: task.address,
        "pid": lambda task: task.pid if task.ended_at is None else None,
        "ran": lambda task: _ran(task.started_at, task.ended_at or now),
        "step": lambda task: format_known(task.step, "{:,}".format),
        "steps/s": _speed,
        "memory": lambda task: task.rss_bytes and format_bytes(task.rss_bytes),
        "peak memory": lambda task: task.peak_rss_bytes and format_bytes(task.peak_rss_bytes),
        "cores": lambda task: format_known(task.cores, "{:.1f}".format),
        "gpu": lambda task: format_known(task.gpu, "{:.0%}".format),
        "GPUs": _gpus,
        "metrics": lambda task: format_metrics(task.metrics, 3, gap=" "),
        "where": lambda task: (snapshot.stall or {}).get("tasks", {}).get(task.task),
    }
    return Grid.of(
        snapshot.tasks if tasks is None else tasks,
        {name: known[name] for name in names},
        _RIGHT_OF_TASKS,
        dropped_first=_TASKS_DROPPED_FIRST,
        cut="where",
        styles=dict.fromkeys(("state", "end"), lambda task: _STATE_STYLES.get(task.state, "")),
    )


def describe_end(task: TaskSnapshot) -> str:
    """Return ``exit 0``, ``SIGKILL``, ``stopped: SIGTERM`` (by tfcluster), or the task's state."""
    how = format_exit(task.exit_code, task.signal)
    if task.frozen_by is not None:
        return f"stopped by {signal_name(task.frozen_by)}"
    if not how or task.state == "restarting":
        return "not started" if task.state == "waiting" else task.state
    return f"stopped: {how}" if task.ended_by == "tfcluster" else how


def _format_best_trial(snapshot: RunSnapshot) -> str:
    trial = next((t for t in snapshot.trials if t["id"] == snapshot.best_trial), None)
    if trial is None:
        return "none: no trial has completed"
    values = describe_values(trial.get("values") or {})
    score = f"trial {trial['id']}, {trial.get('objective')} {trial['score']:.5g}"
    return f"{score}: {values}" if values else score


def _rank_trials(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return completed trials from best to worst, then the others in their order."""
    done = [trial for trial in trials if is_done_trial(trial)]
    sign = -1 if done and done[0].get("direction") == "max" else 1
    done.sort(key=lambda trial: sign * float(trial["score"]))
    return done + [trial for trial in trials if not is_done_trial(trial)]


def _trial_grid(trials: list[dict[str, Any]], now: float | None) -> Grid:
    objective = next((str(t["objective"]) for t in trials if t.get("objective")), "score")
    columns: dict[str, Callable[[dict[str, Any]], object]] = {
        "trial": lambda trial: trial["id"],
        "state": lambda trial: _trial_state(trial, has_ended=now is None),
        "tuner": lambda trial: trial.get("tuner"),
        objective: lambda trial: format_known(trial.get("score"), "{:.5g}".format),
        "ran": lambda trial: _ran(trial.get("started_at"), trial.get("ended_at") or now),
        "why": _trial_reason,
    }
    return Grid.of(trials, columns, (objective, "ran"))


def _trial_state(trial: Mapping[str, Any], *, has_ended: bool) -> str:
    status = str(trial.get("status", "")).lower()
    return "unfinished" if status == "running" and has_ended else status


def _trial_reason(trial: Mapping[str, Any]) -> str:
    lines = str(trial.get("message") or "").strip().splitlines()
    return lines[-1][:_MAX_TRIAL_REASON] if lines else ""


def _notes(snapshot: RunSnapshot) -> Iterator[str]:
    if snapshot.status is Status.LOST and snapshot.ended_at is None:
        yield f"Its coordinator has died: `tfcluster down {snapshot.run}` cleans up after the run."
    for task in snapshot.tasks:
        if lost := task.log_lost_bytes:
            yield (
                f"warning: lost {format_bytes(lost)} ({lost:,} bytes) of {task.task}'s log: they"
                " could not be written to disk"
            )
    yield from (f"alert: {alert}" for alert in snapshot.alerts.values())
    yield from (f"warning: {warning}" for warning in dict.fromkeys(snapshot.warnings))


def _speed(task: TaskSnapshot) -> str:
    """Return the mean steps/s of a task that has ended, and the current steps/s of others."""
    has_mean = task.ended_at is not None and task.mean_steps_per_second is not None
    return format_rate(task.mean_steps_per_second if has_mean else task.steps_per_second)


def _gpus(task: TaskSnapshot) -> str:
    """Return the GPUs that TensorFlow has registered; empty if none, or if it is not known yet."""
    gpus = (device for device in task.devices if device.startswith("GPU"))
    return count_names(gpu.removeprefix("GPU ") for gpu in gpus)


def _places(snapshot: RunSnapshot, paths: RunPaths) -> tuple[tuple[str, str], ...]:
    logs = paths.attempt_logs(snapshot.attempt) if snapshot.attempt else paths.logs
    where = ""
    for newest in snapshot.checkpoints[-1:]:
        path = keep_whole(str(paths.root / newest["path"]))
        where = " in ".join(filter(None, [history.format_checkpoint(newest), path]))
    return ("logs", keep_whole(str(logs))), ("checkpoint", where)


def _curves_command(snapshot: RunSnapshot) -> str:
    return keep_whole(f"tfcluster tensorboard {snapshot.run[-4:]}")


def _restart_command(snapshot: RunSnapshot) -> str:
    """Return the command that goes on from the newest checkpoint of a run that broke off."""
    has_ended = snapshot.status.is_final and snapshot.status is not Status.SUCCEEDED
    has_steps = any(task.step for task in snapshot.tasks)
    has_checkpoint = snapshot.checkpoints or (snapshot.shares_checkpoints and has_steps)
    goes_on = has_ended and has_checkpoint and snapshot.can_restart
    return keep_whole(f"tfcluster restart {snapshot.run[-4:]}") if goes_on else ""


def _closing_title(snapshot: RunSnapshot) -> str:
    if snapshot.status is Status.LOST:
        return f"{snapshot.run} is lost: its coordinator died"
    ended = snapshot.ended_at or snapshot.started_at
    return f"{snapshot.run} {snapshot.status} after {format_duration(ended - snapshot.started_at)}"


def _tone(status: Status) -> str:
    if status is Status.SUCCEEDED:
        return "good"
    waits = (
        Status.QUEUED, Status.STALLED, Status.SUSPENDED, Status.STOPPING, Status.RESTARTING,
    )  # fmt: skip
    if status in (*waits, Status.INTERRUPTED):
        return "warn"
    return "bad" if status.is_final else "plain"


def _exit_code_suffix(snapshot: RunSnapshot) -> str:
    return f" ({snapshot.exit_code})" if snapshot.exit_code else ""


def _host_suffix(snapshot: RunSnapshot, this_host: str | None) -> str:
    """Name the coordinator's host if it is another host that shares this home.

    That of a run with a job does not matter: the scheduler reaches it from anywhere.
    """
    is_elsewhere = this_host and snapshot.host != this_host and snapshot.job is None
    return f" on {snapshot.host}" if is_elsewhere else ""


def _ran(since: float | None, until: float | None) -> str:
    return "" if since is None or until is None else format_duration(until - since)
