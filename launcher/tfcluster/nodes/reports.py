"""Translation of agents' messages into events: the one place that knows both vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tfcluster.agent import budgets
from tfcluster.plan.plan import TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.supervision.failure import signal_name

PREPARE = "prepare"
"""The name of a node's prepare step, in the place of a task's."""
PREFLIGHT = "preflight"
"""The name of the probe before the start."""
LINKS = "links"
"""The name of the check of the links between the nodes, after a failure."""
STEPS = frozenset({PREPARE, PREFLIGHT, LINKS})
"""Names that are not tasks of the cluster."""


def to_event(node: str, message: Mapping[str, Any]) -> Event | None:
    """Return the event for a message of `node`'s agent, or None."""
    kind = message["type"]
    if message.get("task") in (PREFLIGHT, LINKS):
        return None
    if message.get("task") == PREPARE:
        return _prepare_event(node, message)
    if kind == "task_event":
        return _task_event(message)
    if (build := _BUILDERS.get(kind)) is None:
        return None
    return build(node, message)


def why_lost(message: Mapping[str, Any]) -> str | None:
    """Return why this message means that the node is lost; None if it does not."""
    match message["type"]:
        case "guard_lost":
            return "the guard beside its agent was killed"
        case "agent_ending":
            return f"its agent was ended by {signal_name(message['signal'])}"
        case "refused":
            return f"its agent could not carry out an order ({message['reason']})"
    return None


def _prepare_event(node: str, message: Mapping[str, Any]) -> Event | None:
    if message["type"] == "task_started":
        return ev.PrepareStarted(node=node)
    if message["type"] != "task_exited":
        return None
    return ev.PrepareFinished(
        node=node,
        exit_code=message["exit_code"],
        signal=message.get("signal"),
        ended_by=message.get("ended_by", "itself"),
        duration_s=message["duration_s"],
    )


def _task_event(message: Mapping[str, Any]) -> Event | None:
    """Return the event for a task's own report, which `clean` has accepted."""
    report = message["event"]
    task, attempt = message["task"], message["attempt"]
    match report["type"]:
        case "ready":
            return ev.TaskReady(task=task, attempt=attempt)
        case "progress":
            return _progress(task, attempt, report)
        case "error":
            return ev.TaskError(
                task=task,
                attempt=attempt,
                exception=report["exception"],
                message=report["message"],
                file=report.get("file"),
                line=report.get("line"),
                traceback=report.get("traceback", ""),
            )
        case "chaos":
            return ev.ChaosInjected(
                fault=report["fault"],
                # The chief also reports the step at which a fault is injected into another task.
                task=report.get("task") or task,
                attempt=attempt,
                step=report.get("step"),
            )
        case "trial" | "trial_ended":
            return _trial(task, attempt, report)
        case "note":
            return ev.Warned(message=f"{task}: {report['message']}")
    return None


class Saved(NamedTuple):
    """A task's report of a complete checkpoint."""

    path: str
    step: int | None
    at_ns: int | None
    """The time of the save on the clock of the task's machine."""


def saved(report: Mapping[str, Any]) -> Saved | None:
    """Return the content of a ``saved`` report; None for any other report."""
    if report["type"] != "saved":
        return None
    return Saved(report["path"], report.get("step"), report.get("at_ns"))


def _progress(task: str, attempt: int, report: Mapping[str, Any]) -> Event:
    return ev.Progress(
        task=task,
        attempt=attempt,
        step=report["step"],
        epoch=report.get("epoch"),
        metrics=report.get("metrics", {}),
        steps_per_second=report.get("steps_per_second"),
        mean_steps_per_second=report.get("mean_steps_per_second"),
        examples_per_second=report.get("examples_per_second"),
    )


def _trial(task: str, attempt: int, report: Mapping[str, Any]) -> Event | None:
    """Return a trial's event; the tuner's own ``trial_ended`` counts only with its message."""
    name, message = report["id"], report.get("message")
    if report["type"] == "trial_ended":
        return ev.Trial(task=task, attempt=attempt, id=name, message=message) if message else None
    tuner = report.get("tuner")
    return ev.Trial(
        task=task,
        attempt=attempt,
        id=name,
        status=report["status"],
        tuner=tuner and _task_of(tuner, reporter=task),
        score=report.get("score"),
        best_step=report.get("best_step"),
        objective=report.get("objective"),
        direction=report.get("direction"),
        values=report.get("values"),
        message=message,
    )


def _task_of(tuner: str, *, reporter: str) -> str:
    """Return the task of a tuner such as ``worker-1``; a tuner that searches alone has no such
    name, and is the reporter itself."""
    try:
        return str(TaskId.parse(tuner))
    except ValueError:
        return reporter


def _connected(node: str, message: Mapping[str, Any]) -> Event:
    pid, guard_pid = message["pid"], message["guard_pid"]
    identity = message.get("identity")
    return ev.NodeConnected(node=node, pid=pid, guard_pid=guard_pid, identity=identity)


def _ports_held(node: str, message: Mapping[str, Any]) -> Event:
    return ev.PortsHeld(node=node, ports=message["ports"])


def _starts_cold(node: str, message: Mapping[str, Any]) -> Event:
    return ev.Warned(
        message=f"{node}: preloading failed, each task imports by itself: {message['error']}"
    )


def _started(node: str, message: Mapping[str, Any]) -> Event:
    return ev.TaskStarted(
        task=message["task"], attempt=message["attempt"], node=node, pid=message["pid"]
    )


def _exited(node: str, message: Mapping[str, Any]) -> Event:
    return ev.TaskExited(
        task=message["task"],
        attempt=message["attempt"],
        exit_code=message["exit_code"],
        signal=message.get("signal"),
        ended_by=message["ended_by"],
        duration_s=message["duration_s"],
        peak_rss_bytes=message.get("peak_rss_bytes"),
        out_of_memory=message.get("oom"),
    )


def _frozen(node: str, message: Mapping[str, Any]) -> Event:
    return ev.TaskFrozen(task=message["task"], attempt=message["attempt"], signal=message["signal"])


def _thawed(node: str, message: Mapping[str, Any]) -> Event:
    return ev.TaskThawed(task=message["task"], attempt=message["attempt"])


def _log_lost(node: str, message: Mapping[str, Any]) -> Event:
    return ev.LogLost(
        task=message["task"],
        attempt=message["attempt"],
        bytes=message["bytes"],
        reason=message["reason"],
    )


def _dropped(node: str, message: Mapping[str, Any]) -> Event:
    """Return the warning about dropped reports, for the first one and at the task's end."""
    task, count = message["task"], message["count"]
    per_s, size = budgets.REPORTS_PER_S, budgets.REPORT_BYTES_PER_S / 1000
    limit = f"{per_s:.0f} times or {size:.0f} kB a second"
    if count == 1:
        why = f"{task} reports more than {limit}, or faster than reports can be passed on"
        return ev.Warned(message=f"{why}: the excess is dropped")
    return ev.Warned(message=f"{count:,} reports of {task} were dropped")


def _unkillable(node: str, message: Mapping[str, Any]) -> Event:
    """Return the warning about a killed process that ends only when the kernel releases it."""
    what = message["task"] or "a process of an earlier attempt"
    pids = ", ".join(map(str, message["pids"]))
    sleep = "in uninterruptible sleep (a dead file server, a device driver)"
    return ev.Warned(message=f"{what} (pid {pids}) was killed but still lives, {sleep}")


def _unreachable(node: str, message: Mapping[str, Any]) -> Event:
    why = message.get("why") or None
    return ev.NodeUnreachable(node=node, lease_s=message["lease_s"], why=why)


def _back(node: str, message: Mapping[str, Any]) -> Event:
    return ev.NodeReconnected(node=node, pid=message["pid"], guard_pid=message["guard_pid"])


_BUILDERS = {
    "welcome": _connected,
    "link_cut": _unreachable,
    "link_back": _back,
    "ports_held": _ports_held,
    "preload_failed": _starts_cold,
    "task_started": _started,
    "task_exited": _exited,
    "task_stopped": _frozen,
    "task_continued": _thawed,
    "log_lost": _log_lost,
    "reports_dropped": _dropped,
    "unkillable": _unkillable,
}
