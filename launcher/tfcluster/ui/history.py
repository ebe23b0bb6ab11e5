"""What has happened to a run so far, in sentences: pure functions of its state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.rundir.states import Status
from tfcluster.ui import pages
from tfcluster.ui.formats import format_bytes, format_duration, plural

_FROM_THE_BEGINNING = "from the beginning: no checkpoint in $TFCLUSTER_CHECKPOINT_DIR"
_RESTARTS_LISTED = 10
_UNDER_A_FAILURE = (Status.RESTARTING, Status.FAILED, Status.TIMED_OUT, Status.LOST)


def attempt_of_all(snapshot: RunSnapshot) -> int:
    """How often all tasks were started together; those that restart alone have own numbers."""
    together = [event["attempt"] for event in snapshot.restarts if not event.get("task")]
    return int(together[-1]) if together else 1


def attached(snapshot: RunSnapshot) -> str:
    """The first line of `attach`: which run, how far, where to read more."""
    parts = [f"{snapshot.run} is {snapshot.status}"]
    if (attempt := attempt_of_all(snapshot)) > 1:
        parts.append(f"attempt {attempt}")
    steps = [task.step for task in snapshot.tasks if task.step is not None]
    if steps:
        parts.append(f"step {max(steps):,}")
    parts.append(plural(len(snapshot.tasks), "task"))
    return f"{', '.join(parts)}; Ctrl-C leaves it running"


def restart(event: Mapping[str, Any]) -> str:
    """``attempt 2 of 4, from step 1,200, in 2.0 s: worker:1: killed by SIGKILL``."""
    task, members = event.get("task"), event.get("members")
    text = f"attempt {event['attempt']} of {event['of']}"
    if task is not None:
        text = f"{task} alone: {text}"
    if members is not None:
        text += f", with {plural(len(members), 'task')} left"
    start = _start(event.get("from_step"), event.get("from_checkpoint"))
    if start:
        text += f", from {start}"
    if delay_s := event.get("delay_s"):
        text += f", in {format_duration(delay_s)}"
    text += f": {_reason(event).removeprefix(f'{task}: ')}"
    return text if start or task is not None else f"{text}; {_FROM_THE_BEGINNING}"


def resumed(run: str, step: int | None, checkpoint: str | None = None) -> str:
    """``RUN at step 1,200``, ``RUN at ckpt-12``."""
    start = _start(step, checkpoint)
    return f"{run} at {start}" if start else run


def gathered(checkpoint: Mapping[str, Any]) -> str:
    """``step 1,200``, else ``save 12``; empty where neither is known."""
    save = checkpoint.get("save")
    return _start(checkpoint.get("step"), None if save is None else f"save {save}")


def _start(step: int | None, name: str | None) -> str:
    return name or "" if step is None else f"step {step:,}"


def facts(snapshot: RunSnapshot) -> tuple[tuple[str, str], ...]:
    """What is out of the ordinary: where it began, restarts, rehearsed faults."""
    pairs = []
    if begun := snapshot.resumed_from:
        where = begun.get("step"), begun.get("checkpoint")
        pairs.append(("resumed", resumed(str(begun.get("run")), *where)))
    if snapshot.by_hand:
        yours = [f"{task} at {address}" for task, address in snapshot.by_hand.items()]
        pairs.append(("by hand", ", ".join(yours)))
    if (attempt := attempt_of_all(snapshot)) > 1:
        most = [event["of"] for event in snapshot.restarts if "of" in event]
        pairs.append(("attempt", f"{attempt} of {most[-1]}" if most else str(attempt)))
    if snapshot.restarts:
        pairs.append(("restarts", _restarts(snapshot.restarts)))
    if snapshot.chaos:
        pairs.append(("rehearsed", "\n".join(map(_chaos, snapshot.chaos))))
    return tuple(pairs)


def gathering(facts: Mapping[str, Any]) -> str:
    """``checkpoints from 10.0.0.1, 1.2 GB of 3.0 GB``."""
    node = f" from {facts['node']}" if facts.get("node") else ""
    text = f"{facts.get('what', 'files')}{node}"
    if facts.get("of"):
        text += f", {format_bytes(facts.get('bytes') or 0)} of {format_bytes(facts['of'])}"
    return text


def root_cause(snapshot: RunSnapshot) -> Mapping[str, Any] | None:
    """Why the run failed, or begins again; None where what once failed was overcome."""
    if snapshot.status not in _UNDER_A_FAILURE or snapshot.diagnosis is None:
        return None
    found: Mapping[str, Any] | None = snapshot.diagnosis.get("root_cause")
    return found


def collateral(snapshot: RunSnapshot) -> Sequence[str]:
    """Tasks that failed because of the root cause."""
    found: Sequence[str] = (snapshot.diagnosis or {}).get("collateral") or ()
    return found if root_cause(snapshot) else ()


def blame(snapshot: RunSnapshot, task: TaskSnapshot) -> str:
    """Whether a task's end was the cause of the others', had the same cause, or followed it."""
    found = root_cause(snapshot)
    if found is not None and task.task in (found.get("also") or ()):
        return " (same error)"
    if found is None or task.state != "failed" or task.ended_by == "tfcluster":
        return ""
    if found.get("task") == task.task and found.get("attempt", task.attempt) == task.attempt:
        return " (cause)"
    return " (collateral)" if task.task in collateral(snapshot) else ""


def log_of_cause(snapshot: RunSnapshot) -> str | None:
    """The log of the attempt that failed, relative to the run's folder."""
    found = root_cause(snapshot) or {}
    log = next((task.log for task in snapshot.tasks if task.task == found.get("task")), None)
    if log is None or "attempt" not in found:
        return log
    return re.sub(r"attempt-\d+", f"attempt-{found['attempt']}", log, count=1)


def reason(snapshot: RunSnapshot) -> list[str]:
    """Why the run ended so, where that is not only a task's own failure, as paragraphs."""
    if not snapshot.reason:
        return []
    return [f"reason: {snapshot.reason}", *([f"→ {snapshot.hint}"] if snapshot.hint else [])]


def in_short(snapshot: RunSnapshot) -> str:
    """The first line of why a run has not succeeded; empty where nothing is known."""
    found = snapshot.reason or ""
    if not found and (root := root_cause(snapshot)):
        found = f"{root.get('task')}: {root.get('reason', '')}"
    return found.partition("\n")[0]


def cause(snapshot: RunSnapshot) -> list[str]:
    """The diagnosis as paragraphs; empty without one."""
    found = root_cause(snapshot)
    if not found:
        return []
    lines = [f"root cause: {found.get('task')}: {found.get('reason', '')}", *cures(found)]
    return [*lines, *consequences(snapshot)]


def consequences(snapshot: RunSnapshot) -> list[str]:
    """What followed from the root cause, and why that was the end."""
    others, why = collateral(snapshot), (root_cause(snapshot) or {}).get("not_restarted")
    lines = [f"{', '.join(others)} failed because of it."] if others else []
    return lines + ([f"Not started again: {why}."] if why and snapshot.status.is_final else [])


def wants_cleaning(snapshot: RunSnapshot) -> bool:
    """Whether its coordinator went away and nobody has cleaned up since."""
    return snapshot.status is Status.LOST and snapshot.ended_at is None


def cures(root_cause: Mapping[str, Any]) -> list[str]:
    """What helps, and the command that prints its explanation."""
    docs = root_cause.get("docs")
    where = f" (`tfcluster help {pages.topic(str(docs))}`)" if docs else ""
    return [f"→ {root_cause['hint']}{where}"] if root_cause.get("hint") else []


def _restarts(events: Sequence[Mapping[str, Any]]) -> str:
    """One a line, with their reasons; of very many the last."""
    before = len(events) - _RESTARTS_LISTED
    more = [f"… {plural(before, 'restart')} before"] if before > 0 else []
    shown = (f"{_which(event)}: {_reason(event)}" for event in events[-_RESTARTS_LISTED:])
    return "\n".join([*more, *shown])


def _which(event: Mapping[str, Any]) -> str:
    task = f"{event['task']} " if event.get("task") else ""
    start = _start(event.get("from_step"), event.get("from_checkpoint"))
    return f"{task}attempt {event['attempt']}{' from ' if start else ''}{start}"


def _reason(event: Mapping[str, Any]) -> str:
    return str(event.get("reason", "")).partition("\n")[0]


def _chaos(record: Mapping[str, Any]) -> str:
    """``kill worker:1 at step 50: detected after 0.1 s, resumed after 2.3 s at step 41``."""
    detected, resumed = record.get("detected_after_s"), record.get("resumed_after_s")
    seen = "never detected" if detected is None else f"detected after {_short(detected)}"
    if resumed is None:
        return f"{record['fault']}: {seen}, not resumed"
    step = record.get("resumed_step")
    at = f" at step {step:,}" if step is not None else ""
    return f"{record['fault']}: {seen}, resumed after {_short(resumed)}{at}"


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 0.095 else format_duration(seconds)
