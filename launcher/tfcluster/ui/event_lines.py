"""The lines that a live view shows for events: at most one per event, none for most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfcluster.ui.formats import format_bytes, format_duration, format_exit, signal_name
from tfcluster.ui.history import format_checkpoint, format_gathering, format_restart
from tfcluster.ui.panels import format_trial


@dataclass(frozen=True, slots=True)
class EventLine:
    """A line about an event, and its styles where there is colour."""

    text: str
    styles: tuple[str, ...] = ()


def format_event(event: Mapping[str, Any]) -> EventLine | None:
    """Return the line for `event`, or None.

    Unknown events (of a newer version) and malformed ones have no line.
    """
    formatter = _FORMATTERS.get(str(event.get("type")))
    try:
        return formatter(event) if formatter else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _prepare_finished(event: Mapping[str, Any]) -> EventLine:
    took = format_duration(event["duration_s"])
    if event.get("exit_code") == 0:
        return EventLine(f"prepared {event['node']} in {took}", ("dim",))
    if event.get("ended_by") == "tfcluster":
        return EventLine(f"stopped prepare on {event['node']} after {took}", ("dim",))
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
    if (text := format_trial(event)) is None:
        return None
    return EventLine(text, ("dim",) if event.get("status") == "COMPLETED" else ("red",))


def _run_stopping(event: Mapping[str, Any]) -> EventLine:
    text = f"stopping the run: {event['why']}"
    if grace_s := event.get("grace_s"):
        text += f"; tasks have {format_duration(grace_s)} to exit (repeat to kill them at once)"
    return EventLine(text, ("yellow",))


def _checkpoint_gathered(event: Mapping[str, Any]) -> EventLine:
    found = format_checkpoint(event)
    which = f" of {found}" if event.get("step") is not None else f", {found}" if found else ""
    return EventLine(f"gathered a checkpoint{which}: {event['path']}", ("dim",))


def _finishing(event: Mapping[str, Any]) -> EventLine:
    names, remaining = ", ".join(event["tasks"]), format_duration(event["left_s"])
    return EventLine(
        f"the chief has finished; {names} may run for another {remaining}"
        " (supervision.finish_grace_s)",
        ("dim",),
    )


def _log_lost(event: Mapping[str, Any]) -> EventLine:
    size = format_bytes(event["bytes"])
    return EventLine(f"lost {size} of {event['task']}'s log: {event['reason']}", ("yellow",))


def _warned(event: Mapping[str, Any]) -> EventLine | None:
    if event.get("closing"):
        return None
    return EventLine(str(event["message"]), ("yellow",))


def _diagnosis(event: Mapping[str, Any]) -> EventLine | None:
    # The restart line, or the root cause panel at the end of the run, has everything else.
    task = event["root_cause"]["task"]
    if not (collateral := event.get("collateral")):
        return None
    return EventLine(f"{', '.join(collateral)} failed because of {task}", ("dim",))


def _stalled(event: Mapping[str, Any]) -> EventLine:
    text = f"no task has reported anything for {format_duration(event['silent_s'])}"
    if event.get("deadline_s") is None:
        return EventLine(f"{text}: stack traces are in the logs, training continues", ("yellow",))
    limit = format_duration(event["deadline_s"])
    return EventLine(
        f"{text} (stall_deadline_s is {limit}): stack traces are in the logs", ("yellow",)
    )


def _task_frozen(event: Mapping[str, Any]) -> EventLine:
    name = signal_name(event["signal"])
    return EventLine(
        f"{event['task']} was stopped by {name}: it neither runs nor exits", ("yellow",)
    )


def _node_unreachable(event: Mapping[str, Any]) -> EventLine:
    lease = format_duration(event["lease_s"])
    what = event.get("why") or "its tasks keep running"
    text = f"no connection to {event['node']}: {what}; the node is lost after {lease} without one"
    return EventLine(text, ("yellow",))


_FORMATTERS: dict[str, Callable[[Mapping[str, Any]], EventLine | None]] = {
    "prepare_started": lambda event: EventLine(f"preparing on {event['node']}", ("dim",)),
    "prepare_finished": _prepare_finished,
    "task_exited": _task_exited,
    "task_error": _task_error,
    "trial": _trial,
    "run_stopping": _run_stopping,
    "checkpoint_gathered": _checkpoint_gathered,
    "gathering": lambda event: EventLine(f"gathering {format_gathering(event)}", ("dim",)),
    "finishing": _finishing,
    "log_lost": _log_lost,
    "node_lost": lambda event: EventLine(f"lost node {event['node']}: {event['reason']}", ("red",)),
    "node_unreachable": _node_unreachable,
    "node_reconnected": lambda event: EventLine(
        f"node {event['node']} is connected again", ("dim",)
    ),
    "warned": _warned,
    "restarting": lambda event: EventLine(format_restart(event), ("yellow", "bold")),
    "diagnosis": _diagnosis,
    "stalled": _stalled,
    "task_frozen": _task_frozen,
    "task_thawed": lambda event: EventLine(f"{event['task']} runs again", ("dim",)),
    "chaos_injected": lambda event: EventLine(f"injected fault: {event['fault']}", ("magenta",)),
}
