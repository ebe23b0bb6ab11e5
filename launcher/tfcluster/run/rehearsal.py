"""What came of rehearsed faults: when noticed, when trained on, or why never injected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfcluster.run import events as ev
from tfcluster.run.chaos import KILL_AGENT, Fault
from tfcluster.run.events import Event
from tfcluster.run.snapshot import RunSnapshot


def apply(records: list[dict[str, Any]], event: Event, now: float) -> None:
    """Fold `event` into the records of injected faults (`RunSnapshot.chaos`), oldest first.

    `detected_after_s`: until its task's end, freezing or exception, its node's loss, or a
    diagnosis or stall that followed. `resumed_after_s`: until a task of a later attempt has
    joined, then made exact by the first step it reports (`resumed_step`).
    """
    if isinstance(event, ev.ChaosInjected):
        facts = event.to_json()
        del facts["type"]
        records.append(facts | {"injected_at": now})
        return
    for record in records:
        if "detected_after_s" not in record:
            if _shows(event, record):
                record["detected_after_s"] = round(now - record["injected_at"], 3)
        elif _resumes(event, record):
            record["resumed_after_s"] = round(now - record["injected_at"], 3)
            if isinstance(event, ev.Progress):
                record["resumed_step"] = event.step


def _shows(event: Event, record: dict[str, Any]) -> bool:
    """Whether `event` is the first sign of the fault; what other tasks do is none."""
    verb, task = record["fault"].partition(" ")[0], str(record["task"])
    match event:
        case ev.TaskExited():
            by_itself = event.ended_by == "itself" and event.exit_code != 0
            return event.task == task and by_itself
        case ev.TaskError() | ev.TaskFrozen():
            return event.task == task
        case ev.NodeLost():
            return bool(verb == KILL_AGENT)
        case ev.Diagnosis():
            return str(event.root_cause.get("task")) == task
        case ev.Stalled():
            return verb in {"hang", "stop"}
    return False


def _resumes(event: Event, record: dict[str, Any]) -> bool:
    if not isinstance(event, ev.Progress | ev.TaskReady) or "resumed_step" in record:
        return False
    if event.attempt <= record.get("attempt", 1):
        return False
    # A task that serves, or takes no steps, has resumed when it is ready again.
    is_its_own = event.task == record["task"] and "resumed_after_s" not in record
    return isinstance(event, ev.Progress) or is_its_own


def not_injected(faults: Iterable[Fault], state: RunSnapshot) -> tuple[str, ...]:
    """One closing warning for each fault whose place was never reached."""
    injected = {record["fault"] for record in state.chaos}
    return tuple(
        f"'{fault.text}' was never injected: {_why(fault, state)}"
        for fault in faults
        if fault.text not in injected
    )


def _why(fault: Fault, state: RunSnapshot) -> str:
    if state.attempt < fault.attempt:
        return f"there was no attempt {fault.attempt}"
    task = next(task for task in state.tasks if task.task == str(fault.witness))
    if fault.place == "step":
        if all(other.step is None for other in state.tasks):
            return "the job reports no steps"
        if task.step is None:
            return f"{task.task} reported no steps"
        return f"{task.task} got to step {task.step}"
    if fault.place == "save":
        return f"{task.task} did not save that often"
    if fault.place == "join":
        return f"{task.task} never waited for its peers"
    return f"{task.task} did not get to its code"
