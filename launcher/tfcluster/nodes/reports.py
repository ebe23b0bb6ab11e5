"""Translation of agents' messages into events: the one place that knows both vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    if message.get("task") in (PREFLIGHT, LINKS):
        return None
    if message.get("task") == PREPARE:
        return _prepare_event(node, message)
    if message["type"] == "task_event":
        return _report_event(message)
    return _node_event(node, message) or _task_event(node, message)


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


def _report_event(message: Mapping[str, Any]) -> Event | None:
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
    """Return the task of a tuner such as ``worker-1``; one that searches alone is `reporter`."""
    try:
        return str(TaskId.parse(tuner))
    except ValueError:
        return reporter


def _node_event(node: str, message: Mapping[str, Any]) -> Event | None:
    match message["type"]:
        case "welcome":
            return ev.NodeConnected(
                node=node,
                pid=message["pid"],
                guard_pid=message["guard_pid"],
                identity=message.get("identity"),
            )
        case "link_cut":
            why = message.get("why") or None
            return ev.NodeUnreachable(node=node, lease_s=message["lease_s"], why=why)
        case "link_back":
            pid, guard_pid = message["pid"], message["guard_pid"]
            return ev.NodeReconnected(node=node, pid=pid, guard_pid=guard_pid)
        case "ports_held":
            return ev.PortsHeld(node=node, ports=message["ports"])
        case "preload_failed":
            what = f"{node}: preloading failed, each task imports by itself"
            return ev.Warned(message=f"{what}: {message['error']}")
        case "unkillable":  # such a process ends only when the kernel releases it
            what = message["task"] or "a process of an earlier attempt"
            pids = ", ".join(map(str, message["pids"]))
            sleep = "in uninterruptible sleep (a dead file server, a device driver)"
            return ev.Warned(message=f"{what} (pid {pids}) was killed but still lives, {sleep}")
    return None


def _task_event(node: str, message: Mapping[str, Any]) -> Event | None:
    match message:
        case {"type": "task_started", "task": task, "attempt": attempt}:
            return ev.TaskStarted(task=task, attempt=attempt, node=node, pid=message["pid"])
        case {"type": "task_exited", "task": task, "attempt": attempt}:
            return ev.TaskExited(
                task=task,
                attempt=attempt,
                exit_code=message["exit_code"],
                signal=message.get("signal"),
                ended_by=message["ended_by"],
                duration_s=message["duration_s"],
                peak_rss_bytes=message.get("peak_rss_bytes"),
                out_of_memory=message.get("oom"),
            )
        case {"type": "task_stopped", "task": task, "attempt": attempt}:
            return ev.TaskFrozen(task=task, attempt=attempt, signal=message["signal"])
        case {"type": "task_continued", "task": task, "attempt": attempt}:
            return ev.TaskThawed(task=task, attempt=attempt)
        case {"type": "log_lost", "task": task, "attempt": attempt}:
            lost, reason = message["bytes"], message["reason"]
            return ev.LogLost(task=task, attempt=attempt, bytes=lost, reason=reason)
        case {"type": "reports_dropped", "task": task, "count": count}:
            return ev.Warned(message=_describe_dropped(task, count))
    return None


def _describe_dropped(task: str, count: int) -> str:
    """Return the warning about dropped reports, for the first one and at the task's end."""
    if count != 1:
        return f"{count:,} reports of {task} were dropped"
    per_s, size = budgets.REPORTS_PER_S, budgets.REPORT_BYTES_PER_S / 1000
    limit = f"{per_s:.0f} times or {size:.0f} kB a second"
    return (
        f"{task} reports more than {limit}, or faster than reports can be passed on: the excess"
        " is dropped"
    )
