"""The lines about events in a live view and in a timeline: at most one per event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfcluster.errors import join_first, signal_name
from tfcluster.supervision import log_errors
from tfcluster.ui.formats import format_bytes, format_duration, format_exit, plural
from tfcluster.ui.history import (
    format_checkpoint,
    format_gathering,
    format_restart,
    format_resume,
    format_traced,
    is_slowing,
)
from tfcluster.ui.panels import format_trial

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventLine:
    """A line about an event, with its kind for a page and its style for a terminal."""

    text: str
    kind: str
    """``bad``, ``warn``, ``good``, ``live``, or an empty string."""
    style: str


_STYLES = {"bad": "red", "warn": "yellow", "good": "green", "live": "bold", "": "dim"}
_STYLES_OF_TYPES = {
    "run_continued": "bold yellow",
    "restarting": "bold yellow",
    "alert": "bold red",
    "chaos_injected": "magenta",
}
"""Type of event → the style of its line, if it is not that of its kind."""


def format_event(event: Event) -> EventLine | None:
    """Return the line of a live view for `event`, or None: panels show how a run begins and ends.

    Unknown events (of a newer version) and malformed ones have no line.
    """
    return _format(event, _FORMATTERS)


def format_moment(event: Event) -> EventLine | None:
    """Return the line of a timeline for `event`, or None, as `format_event` does."""
    return _format(event, _FORMATTERS | _MOMENTS)


def _format(event: Event, formatters: Mapping[str, _Formatter]) -> EventLine | None:
    kind, formatter = formatters.get(str(event.get("type")), ("", None))
    try:
        text = formatter(event) if formatter else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if text is None:
        return None
    if _has_failed(event):
        kind = "bad"
    elif event.get("status") == "interrupted" or is_slowing(event):
        kind = "warn"
    return EventLine(text, kind, _STYLES_OF_TYPES.get(event["type"], _STYLES[kind]))


def _has_failed(event: Event) -> bool:
    """Return whether the event is the end of something that failed by itself."""
    if event["type"] == "run_finished":
        return bool(event.get("status") not in ("succeeded", "interrupted"))
    if event["type"] == "trial":
        return bool(event.get("status") != "COMPLETED")
    ends = event["type"] in ("prepare_finished", "task_exited")
    return ends and event.get("exit_code") != 0 and event.get("ended_by") != "tfcluster"


def _prepare_finished(event: Event) -> str:
    took = format_duration(event["duration_s"])
    if event.get("exit_code") == 0:
        return f"prepared {event['node']} in {took}"
    if event.get("ended_by") == "tfcluster":
        return f"stopped prepare on {event['node']} after {took}"
    how = format_exit(event.get("exit_code"), event.get("signal"))
    return f"prepare failed on {event['node']} after {took}: {how}"


def _task_exited(event: Event) -> str:
    return f"{event['task']} ended after {format_duration(event['duration_s'])}: {_how(event)}"


def _task_end(event: Event) -> str:
    """Return the line without the time, so that the ends of many tasks can be one line."""
    return f"{event['task']} ended: {_how(event)}"


def _how(event: Event) -> str:
    by = " (stopped by tfcluster)" if event.get("ended_by") == "tfcluster" else ""
    return format_exit(event.get("exit_code"), event.get("signal")) + by


def _task_error(event: Event) -> str:
    place = f" at {event['file']}:{event['line']}" if event.get("file") else ""
    raised = log_errors.exception_from_report(event)
    message = log_errors.shorten(raised.message).partition("\n")[0][:200]
    return f"{event['task']} raised {raised.name}{place}" + (f": {message}" if message else "")


def _run_stopping(event: Event) -> str:
    text = f"stopping the run: {event['why']}"
    if grace_s := event.get("grace_s"):
        text += f"; tasks have {format_duration(grace_s)} to exit"
        text += "" if event.get("is_announced") else " (repeat to kill them at once)"
    return text


def _checkpoint_gathered(event: Event) -> str:
    name = format_checkpoint(event)
    which = f" of {name}" if event.get("step") is not None else f", {name}" if name else ""
    return f"gathered a checkpoint{which}: {event['path']}"


def _finishing(event: Event) -> str:
    names, remaining = ", ".join(event["tasks"]), format_duration(event["left_s"])
    return (
        f"the chief has finished; {names} may run for another {remaining}"
        " (supervision.finish_grace_s)"
    )


def _diagnosis(event: Event) -> str | None:
    # The restart line, or the root cause panel at the end of the run, has everything else.
    task, collateral = event["root_cause"]["task"], event.get("collateral")
    return f"{', '.join(collateral)} failed because of {task}" if collateral else None


def _stalled(event: Event) -> str:
    reason = event.get("what") or "no task reports anything"
    limit_s = event.get("deadline_s")
    limit = f" (stall_deadline_s is {format_duration(limit_s)})" if limit_s is not None else ""
    return (
        f"no step for {format_duration(event['silent_s'])}{limit}: {reason} (the stacks are in the"
        " logs)"
    )


def _stall_ended(event: Event) -> str:
    return f"the run goes on, after {format_duration(event['silent_s'])} without a step"


def _step_verdict(event: Event) -> str:
    return event.get("message") or "no part of a step stands out any more"


def _suspended(event: Event) -> str:
    return f"the run goes on, after {format_duration(event['seconds'])} in which it was suspended"


def _task_frozen(event: Event) -> str:
    name = signal_name(event["signal"])
    return f"{event['task']} was stopped by {name}: it neither runs nor exits"


def _log_lost(event: Event) -> str:
    return f"lost {format_bytes(event['bytes'])} of {event['task']}'s log: {event['reason']}"


def _node_unreachable(event: Event) -> str:
    lease = format_duration(event["lease_s"])
    reason = event.get("why") or "its tasks keep running"
    return f"no connection to {event['node']}: {reason}; the node is lost after {lease} without one"


def _node_back(event: Event) -> str:
    tasks, joins_in_s = ", ".join(event["tasks"]), event.get("joins_in_s")
    if joins_in_s is None:
        return f"node {event['node']} is back: `tfcluster scale-to` can take {tasks} in again"
    wait = f" after {format_duration(joins_in_s)}" if joins_in_s else ""
    return f"node {event['node']} is back: {tasks} can join at the next checkpoint{wait}"


def _run_queued(event: Event) -> str:
    return f"queued{' again' if event.get('again') else ''}: {event['reason']}"


def _nodes_allocated(event: Event) -> str:
    hosts = join_first(list(dict.fromkeys(event["hosts"].values())))
    owner = f" of {event['allocation']}" if event.get("allocation") else ""
    return f"the nodes{owner} are there{f': {hosts}' if hosts else ''}"


def _resumed(event: Event) -> str:
    return f"resumes from {format_resume(event['run'], event.get('step'), event.get('checkpoint'))}"


def _root_cause(event: Event) -> str:
    cause = event["root_cause"]
    return f"root cause: {cause['task']}: {str(cause['reason']).partition(chr(10))[0]}"


def _run_finished(event: Event) -> str:
    reason = f": {event['reason']}" if event.get("reason") else ""
    return f"the run ended: {str(event['status']).replace('_', ' ')}{reason}"


def _profile_started(event: Event) -> str:
    return f"profiling {format_traced(event)}"


def _profile_finished(event: Event) -> str:
    traces = [facts for facts in event["tasks"].values() if "problem" not in facts]
    return (
        f"profile {event['id']}: {plural(len(traces), 'trace')} of {len(event['tasks'])}"
        " (`tfcluster profile --last` shows where the time went)"
    )


_Formatter = tuple[str, Callable[[Event], str | None]]
_FORMATTERS: dict[str, _Formatter] = {
    "run_queued": ("warn", _run_queued),
    "run_continued": ("warn", "the job runs again: attempt {attempt}".format_map),
    "nodes_allocated": ("", _nodes_allocated),
    "prepare_started": ("", "preparing on {node}".format_map),
    "prepare_finished": ("", _prepare_finished),
    "task_exited": ("", _task_exited),
    "task_error": ("bad", _task_error),
    "tensorboard_started": ("live", "TensorBoard: {url}".format_map),
    "profile_started": ("", _profile_started),
    "profile_finished": ("", _profile_finished),
    "trial": ("", format_trial),
    "run_stopping": ("warn", _run_stopping),
    "checkpoint_gathered": ("", _checkpoint_gathered),
    "gathering": ("", lambda event: f"gathering {format_gathering(event)}"),
    "finishing": ("", _finishing),
    "log_lost": ("warn", _log_lost),
    "node_lost": ("bad", "lost node {node}: {reason}".format_map),
    "node_unreachable": ("warn", _node_unreachable),
    "node_reconnected": ("", "node {node} is connected again".format_map),
    "node_back": ("live", _node_back),
    "hint": ("", "{message}".format_map),
    "alert": ("bad", "{message}".format_map),
    "warned": ("warn", lambda event: None if event.get("closing") else str(event["message"])),
    "restarting": ("warn", format_restart),
    "diagnosis": ("", _diagnosis),
    "stalled": ("warn", _stalled),
    "stall_ended": ("", _stall_ended),
    "step_verdict": ("", lambda event: _step_verdict(event) if is_slowing(event) else None),
    "suspended": ("", _suspended),
    "task_frozen": ("warn", _task_frozen),
    "task_thawed": ("", "{task} runs again".format_map),
    "chaos_injected": ("warn", "injected fault: {fault}".format_map),
}
"""Type of event → kind of its line, unless it has failed, and the function that formats it."""
_MOMENTS: dict[str, _Formatter] = {
    "run_started": ("live", "the run begins with tfcluster {version}".format_map),
    "resumed": ("live", _resumed),
    "task_started": ("live", "attempt {attempt}: {task} started".format_map),
    "task_exited": ("", _task_end),
    "checkpoint_gathered": ("good", _checkpoint_gathered),
    "step_verdict": ("", _step_verdict),
    "diagnosis": ("bad", _root_cause),
    "warned": ("warn", "{message}".format_map),
    "run_finished": ("good", _run_finished),
}
