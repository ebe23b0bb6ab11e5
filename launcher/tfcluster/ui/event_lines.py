"""What a live view says about an event, one line each; most events say nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfcluster.ui import history, panels
from tfcluster.ui.formats import format_bytes, format_duration, format_exit, signal_name


@dataclass(frozen=True, slots=True)
class EventLine:
    """A line of talk and how it is painted where there is colour."""

    text: str
    styles: tuple[str, ...] = ()


def format_event(event: Mapping[str, Any]) -> EventLine | None:
    """A line for people, or None. Events of a newer version, or odd ones, say nothing."""
    tell = _TELLERS.get(str(event.get("type")))
    try:
        return tell(event) if tell else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _prepare_started(event: Mapping[str, Any]) -> EventLine:
    return EventLine(f"preparing on {event['node']}", ("dim",))


def _prepare_finished(event: Mapping[str, Any]) -> EventLine:
    took = format_duration(event["duration_s"])
    if event.get("exit_code") == 0:
        return EventLine(f"prepared {event['node']} in {took}", ("dim",))
    if event.get("ended_by") == "tfcluster":
        return EventLine(f"prepare on {event['node']} was stopped after {took}", ("dim",))
    how = format_exit(event.get("exit_code"), event.get("signal"))
    return EventLine(f"prepare failed on {event['node']} after {took}: {how}", ("red",))


def _task_exited(event: Mapping[str, Any]) -> EventLine | None:
    how = format_exit(event.get("exit_code"), event.get("signal"))
    text = f"{event['task']} ended after {format_duration(event['duration_s'])}: {how}"
    if event.get("ended_by") == "tfcluster":
        return EventLine(f"{text} (stopped by tfcluster)", ("dim",))
    return EventLine(text, ("dim",) if event.get("exit_code") == 0 else ("red",))


def _task_error(event: Mapping[str, Any]) -> EventLine:
    place = f" at {event['file']}:{event['line']}" if event.get("file") else ""
    message = str(event["message"]).partition("\n")[0][:200]
    return EventLine(f"{event['task']} raised {event['exception']}{place}: {message}", ("red",))


def _trial(event: Mapping[str, Any]) -> EventLine | None:
    text = panels.line(event)
    return (
        EventLine(text, ("dim",) if event.get("status") == "COMPLETED" else ("red",))
        if text
        else None
    )


def _run_stopping(event: Mapping[str, Any]) -> EventLine:
    text = f"stopping the run: {event['why']}"
    if grace_s := event.get("grace_s"):
        text += f"; tasks get {format_duration(grace_s)}, again kills them"
    return EventLine(text, ("yellow",))


def _checkpoint_gathered(event: Mapping[str, Any]) -> EventLine:
    found = history.gathered(event)
    which = f" of {found}" if event.get("step") is not None else f", {found}" if found else ""
    return EventLine(f"gathered a checkpoint{which}: {event['path']}", ("dim",))


def _gathering(event: Mapping[str, Any]) -> EventLine:
    return EventLine(f"gathering {history.gathering(event)}", ("dim",))


def _finishing(event: Mapping[str, Any]) -> EventLine:
    names, left = ", ".join(event["tasks"]), format_duration(event["left_s"])
    return EventLine(
        f"the chief has finished; {names} may run for {left} more (supervision.finish_grace_s)",
        ("dim",),
    )


def _log_lost(event: Mapping[str, Any]) -> EventLine:
    size = format_bytes(event["bytes"])
    return EventLine(f"{size} of {event['task']}'s log are lost: {event['reason']}", ("yellow",))


def _node_lost(event: Mapping[str, Any]) -> EventLine:
    return EventLine(f"lost node {event['node']}: {event['reason']}", ("red",))


def _warned(event: Mapping[str, Any]) -> EventLine | None:
    if event.get("closing"):
        return None
    return EventLine(str(event["message"]), ("yellow",))


def _restarting(event: Mapping[str, Any]) -> EventLine:
    return EventLine(history.restart(event), ("yellow", "bold"))


def _diagnosis(event: Mapping[str, Any]) -> EventLine | None:
    """What the lines about a restart, or the panel of the end, do not say."""
    task = event["root_cause"]["task"]
    if not (collateral := event.get("collateral")):
        return None
    return EventLine(f"{', '.join(collateral)} failed because of {task}", ("dim",))


def _stalled(event: Mapping[str, Any]) -> EventLine:
    text = f"nothing was heard of any task for {format_duration(event['silent_s'])}"
    if event.get("deadline_s") is None:
        return EventLine(f"{text}: their stacks are in the logs, training goes on", ("yellow",))
    limit = format_duration(event["deadline_s"])
    return EventLine(
        f"{text} (stall_deadline_s is {limit}): their stacks are in the logs", ("yellow",)
    )


def _task_frozen(event: Mapping[str, Any]) -> EventLine:
    name = signal_name(event["signal"])
    return EventLine(
        f"{event['task']} was stopped by {name}: it neither runs nor ends", ("yellow",)
    )


def _task_thawed(event: Mapping[str, Any]) -> EventLine:
    return EventLine(f"{event['task']} runs again", ("dim",))


def _node_unreachable(event: Mapping[str, Any]) -> EventLine:
    lease = format_duration(event["lease_s"])
    what = event.get("why") or "its tasks go on"
    text = f"no connection to {event['node']}: {what}; it is lost after {lease} without one"
    return EventLine(text, ("yellow",))


def _node_reconnected(event: Mapping[str, Any]) -> EventLine:
    return EventLine(f"node {event['node']} is back", ("dim",))


def _chaos_injected(event: Mapping[str, Any]) -> EventLine:
    return EventLine(f"rehearsed fault: {event['fault']}", ("magenta",))


_TELLERS: dict[str, Callable[[Mapping[str, Any]], EventLine | None]] = {
    "prepare_started": _prepare_started,
    "prepare_finished": _prepare_finished,
    "task_exited": _task_exited,
    "task_error": _task_error,
    "trial": _trial,
    "run_stopping": _run_stopping,
    "checkpoint_gathered": _checkpoint_gathered,
    "gathering": _gathering,
    "finishing": _finishing,
    "log_lost": _log_lost,
    "node_lost": _node_lost,
    "node_unreachable": _node_unreachable,
    "warned": _warned,
    "restarting": _restarting,
    "diagnosis": _diagnosis,
    "stalled": _stalled,
    "task_frozen": _task_frozen,
    "task_thawed": _task_thawed,
    "node_reconnected": _node_reconnected,
    "chaos_injected": _chaos_injected,
}
