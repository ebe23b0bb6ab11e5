"""What the start panel, the closing summary and the looking commands say: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfcluster.plan.plan import Interpreter, Plan
from tfcluster.run.events import Status
from tfcluster.run.paths import RunPaths
from tfcluster.run.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.ui.formats import (
    format_bytes,
    format_duration,
    format_exit,
    format_rate,
    plural,
)
from tfcluster.ui.ports import open_ports
from tfcluster.ui.render import Facts, Grid, Panel, Part, Verbatim

HOME_IS_LARGE = 10_000_000_000
"""Bytes of all runs together above which the summary names `prune`."""
_TASKS_LISTED = 16
_PACKAGE_NAMES = {"tensorflow": "TensorFlow", "keras": "Keras", "tf-keras": "tf_keras"}


def start_panel(
    plan: Plan,
    paths: RunPaths,
    ports: Mapping[str, int] | None = None,
    *,
    resumes: tuple[str, int | None] | None = None,
) -> Panel:
    """What is being started: which Python and why, tasks, open ports, notes, the run's folder.

    `ports` maps task → held port, where the plan left it to be chosen; `resumes` is the run,
    and its step, that this one begins with.
    """
    held = ports or {}
    pairs = [*_pythons(plan), ("workdir", _joined({n.workdir for n in plan.nodes}))]
    pairs.append(("strategy", _strategy(plan)))
    cluster = [task for task in plan.tasks if task.in_cluster and plan.kind != "plain"]
    if listening := [held.get(str(task.id), task.port) for task in cluster]:
        pairs.append(("open ports", open_ports(plan, listening)))
    pairs.append(("folder", str(paths.root)))
    if resumes is not None:
        pairs.append(("resumes", resumed(*resumes)))
    parts: list[Part] = [Facts(tuple(pairs)), _task_grid(plan, held)]
    parts += [f"note: {note}" for note in plan.notes]
    return Panel(paths.run_id, tuple(parts))


def resumed(run: str, step: int | None) -> str:
    """``RUN at step 1,200``."""
    return f"{run} at step {step:,}" if step is not None else run


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
    parts: list[Part] = [task_ends(snapshot.tasks), Facts(_places(snapshot, paths))]
    if load_hint:
        parts.append(Facts((("load it", load_hint),)))
    parts += [f"warning: {warning}" for warning in _warnings(snapshot)]
    if home_bytes is not None and home_bytes > HOME_IS_LARGE:
        size = format_bytes(home_bytes)
        parts.append(f"All runs together take {size}; `tfcluster prune` removes old ones.")
    return Panel(_closing_title(snapshot), tuple(parts), _tone(snapshot.status))


def root_cause_panel(
    snapshot: RunSnapshot, paths: RunPaths, last_lines: Sequence[str] = ()
) -> Panel | None:
    """Which task failed first and why, with the last lines of its log; None without a diagnosis."""
    cause = (snapshot.diagnosis or {}).get("root_cause")
    if not cause:
        return None
    task = str(cause.get("task", "?"))
    how = format_exit(cause.get("exit_code"), cause.get("signal"))
    reason = str(cause.get("reason", ""))
    parts: list[Part] = [reason] if reason != f"exit code {cause.get('exit_code')}" else []
    if hint := cause.get("hint"):
        parts.append(f"→ {hint}")
    if collateral := (snapshot.diagnosis or {}).get("collateral"):
        parts.append(f"{', '.join(collateral)} failed because of it.")
    if last_lines:
        parts += [f"last {plural(len(last_lines), 'line')} of {task}:", Verbatim(tuple(last_lines))]
    if log := _log_of(snapshot, task):
        parts.append(f"whole log: {paths.root / log}")
    return Panel(f"root cause: {task}{', ' + how if how else ''}", tuple(parts), "bad")


def status_panel(snapshot: RunSnapshot, paths: RunPaths, *, now: float) -> Panel:
    """One run now."""
    ran = (snapshot.ended_at or now) - snapshot.started_at
    pairs = [("status", f"{snapshot.status}{_with_code(snapshot)}")]
    # Of a lost run nobody knows when it ended.
    if snapshot.status is not Status.LOST:
        pairs.append(("ran" if snapshot.status.is_final else "running for", format_duration(ran)))
    if snapshot.attempt > 1:
        pairs.append(("attempt", str(snapshot.attempt)))
    if snapshot.spec:
        pairs.append(("spec", snapshot.spec))
    pairs += _places(snapshot, paths)
    parts: list[Part] = [Facts(tuple(pairs)), _progress_grid(snapshot.tasks, now)]
    if cause := (snapshot.diagnosis or {}).get("root_cause"):
        reason = str(cause.get("reason", ""))
        parts.append(f"root cause: {cause.get('task')}: {reason}")
        if hint := cause.get("hint"):
            parts.append(f"→ {hint}")
    parts += [f"warning: {warning}" for warning in _warnings(snapshot)]
    return Panel(snapshot.run, tuple(parts), _tone(snapshot.status))


def runs_grid(snapshots: Sequence[RunSnapshot], *, now: float) -> Grid:
    """What `ps` lists, newest last."""
    rows = tuple(
        (
            run.run,
            f"{run.status}{_with_code(run)}",
            str(len(run.tasks)),
            _thousands(max((t.step for t in run.tasks if t.step is not None), default=None)),
            f"{format_duration(now - run.started_at)} ago",
        )
        for run in snapshots
    )
    headers = ("RUN", "STATUS", "TASKS", "STEP", "STARTED")
    return Grid(headers, rows, right=frozenset({"TASKS", "STEP"}))


def checkpoints_grid(checkpoints: Sequence[Mapping[str, Any]]) -> Grid:
    """What `checkpoints` lists, newest last; `checkpoints` as `RunSnapshot` holds them."""
    rows = tuple(
        (
            _thousands(found.get("step")) or "–",
            str(found.get("kind", "")),
            format_bytes(found.get("bytes") or 0),
            str(found["path"]),
        )
        for found in checkpoints
    )
    return Grid(("STEP", "KIND", "SIZE", "PATH"), rows, right=frozenset({"STEP", "SIZE"}))


def _warnings(snapshot: RunSnapshot) -> list[str]:
    lost = [
        f"{format_bytes(task.log_lost_bytes)} ({task.log_lost_bytes:,} bytes) of {task.task}'s"
        " log are lost: the disk did not take them"
        for task in snapshot.tasks
        if task.log_lost_bytes
    ]
    return [*lost, *dict.fromkeys(snapshot.warnings)]


def task_ends(tasks: Sequence[TaskSnapshot]) -> Grid:
    """Per task how it ended, how long it ran, how fast, how large it grew."""
    rows = tuple(
        (
            task.task,
            describe_end(task),
            _ran(task, task.ended_at),
            _thousands(task.step),
            format_rate(task.steps_per_second),
            format_bytes(task.peak_rss_bytes) if task.peak_rss_bytes else "",
        )
        for task in tasks
    )
    headers = ("task", "end", "ran", "step", "steps/s", "peak memory")
    right = frozenset({"ran", "step", "steps/s", "peak memory"})
    return Grid(headers, rows, right).without_empty_columns()


def describe_end(task: TaskSnapshot) -> str:
    """``exit 0``, ``SIGKILL``, ``stopped: SIGTERM`` (by tfcluster), or the state it is in."""
    how = format_exit(task.exit_code, task.signal)
    if not how:
        return "not started" if task.state == "waiting" else task.state
    return f"stopped: {how}" if task.ended_by == "tfcluster" else how


def _progress_grid(tasks: Sequence[TaskSnapshot], now: float) -> Grid:
    rows = tuple(
        (
            task.task,
            describe_end(task),
            task.address,
            str(task.pid or "") if task.ended_at is None else "",
            _ran(task, task.ended_at or now),
            _thousands(task.step),
            format_rate(task.steps_per_second),
            " ".join(f"{name} {value:.4g}" for name, value in list(task.metrics.items())[:3]),
        )
        for task in tasks
    )
    headers = ("task", "state", "address", "pid", "ran", "step", "steps/s", "metrics")
    right = frozenset({"pid", "ran", "step", "steps/s"})
    return Grid(headers, rows, right).without_empty_columns()


def _pythons(plan: Plan) -> list[tuple[str, str]]:
    several = len({node.interpreter.path for node in plan.nodes if node.interpreter}) > 1
    pairs = []
    for node in plan.nodes:
        if node.interpreter is not None:
            name = f"python on {node.name}" if several else "python"
            pairs.append((name, _python(node.interpreter)))
    return pairs if several else pairs[:1]


def _python(interpreter: Interpreter) -> str:
    versions = [f"Python {interpreter.version}"] if interpreter.version else []
    versions += [
        f"{shown} {interpreter.packages[name]}"
        for name, shown in _PACKAGE_NAMES.items()
        if name in interpreter.packages
    ]
    text = f"{interpreter.path} ({interpreter.why})"
    return f"{text}\n{', '.join(versions)}" if versions else text


def _strategy(plan: Plan) -> str:
    settings = [f"{name} {value}" for name, value in plan.settings.items()]
    return ", ".join([plan.strategy, *settings])


def _task_grid(plan: Plan, held: Mapping[str, int]) -> Part:
    if len(plan.tasks) > _TASKS_LISTED:
        rows = [
            (node.name, str(sum(task.node == node.name for task in plan.tasks)))
            for node in plan.nodes
        ]
        return Grid(("node", "tasks"), tuple(rows), frozenset({"tasks"}))
    return Grid(
        ("task", "node", "address", "cores", "gpus"),
        tuple(
            (
                str(task.id),
                task.node,
                f"{task.host}:{held.get(str(task.id), task.port) or '?'}",
                _numbers(task.cores),
                _numbers(task.gpus),
            )
            for task in plan.tasks
        ),
    ).without_empty_columns()


def _places(snapshot: RunSnapshot, paths: RunPaths) -> tuple[tuple[str, str], ...]:
    logs = paths.attempt_logs(snapshot.attempt) if snapshot.attempt else paths.logs
    pairs = [("logs", str(logs))]
    if snapshot.checkpoints:
        newest = snapshot.checkpoints[-1]
        step = f"step {newest['step']:,} in " if newest.get("step") is not None else ""
        pairs.append(("checkpoint", f"{step}{paths.root / str(newest['path'])}"))
    return tuple(pairs)


def _closing_title(snapshot: RunSnapshot) -> str:
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


def _log_of(snapshot: RunSnapshot, task: str) -> str | None:
    return next((found.log for found in snapshot.tasks if found.task == task), None)


def _ran(task: TaskSnapshot, until: float | None) -> str:
    if task.started_at is None or until is None:
        return ""
    return format_duration(until - task.started_at)


def _thousands(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _numbers(values: Sequence[int] | None) -> str:
    return "" if values is None else ",".join(map(str, values)) or "none"


def _joined(values: set[str]) -> str:
    return ", ".join(sorted(values))
