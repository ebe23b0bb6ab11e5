"""What has happened to a run so far, in sentences: pure functions of its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfcluster.run.snapshot import RunSnapshot
from tfcluster.ui.formats import format_duration, plural


def attached(snapshot: RunSnapshot) -> str:
    """The first line of `attach`: which run, how far, where to read more."""
    parts = [f"{snapshot.run} is {snapshot.status}"]
    if snapshot.attempt > 1:
        parts.append(f"attempt {snapshot.attempt}")
    steps = [task.step for task in snapshot.tasks if task.step is not None]
    if steps:
        parts.append(f"step {max(steps):,}")
    parts.append(plural(len(snapshot.tasks), "task"))
    return f"{', '.join(parts)}; Ctrl-C leaves it running"


def beginning(from_step: int | None) -> str:
    """Where an attempt starts."""
    if from_step is not None:
        return f"from step {from_step:,}"
    return "from the beginning: no checkpoint in $TFCLUSTER_CHECKPOINT_DIR"


def restart(event: Mapping[str, Any]) -> str:
    """``attempt 2 of 4, from step 1,200, in 2.0 s`` of a `restarting` event."""
    task, members = event.get("task"), event.get("members")
    text = f"attempt {event['attempt']} of {event['of']}"
    if task is not None:
        text = f"{task} alone: {text}"
    if members is not None:
        text += f", with {plural(len(members), 'task')}"
    if task is None or event.get("from_step") is not None:
        text += f", {beginning(event.get('from_step'))}"
    if delay_s := event.get("delay_s"):
        text += f", in {format_duration(delay_s)}"
    return text


def cause(snapshot: RunSnapshot) -> list[str]:
    """The diagnosis as paragraphs; empty without one."""
    diagnosis = snapshot.diagnosis or {}
    found = diagnosis.get("root_cause")
    if not found:
        return []
    lines = [f"root cause: {found.get('task')}: {found.get('reason', '')}"]
    lines += cures(found)
    if collateral := diagnosis.get("collateral"):
        lines.append(f"{', '.join(collateral)} failed because of it.")
    return lines


def cures(root_cause: Mapping[str, Any]) -> list[str]:
    """What helps, and where it is explained."""
    lines = [f"→ {root_cause['hint']}"] if root_cause.get("hint") else []
    return lines + ([f"  {root_cause['docs']}"] if root_cause.get("docs") else [])


def restarts(events: Sequence[Mapping[str, Any]]) -> str:
    """All of them, one a line, with their reasons."""
    return "\n".join(f"{_which(event)}: {_reason(event)}" for event in events)


def _which(event: Mapping[str, Any]) -> str:
    task = f"{event['task']} " if event.get("task") else ""
    step = event.get("from_step")
    start = f" from step {step:,}" if step is not None else ""
    return f"{task}attempt {event['attempt']}{start}"


def _reason(event: Mapping[str, Any]) -> str:
    return str(event.get("reason", "")).partition("\n")[0]


def chaos(record: Mapping[str, Any]) -> str:
    """``kill worker:1 at step 50: detected after 0.1 s, resumed after 2.3 s at step 41``."""
    detected, resumed = record.get("detected_after_s"), record.get("resumed_after_s")
    seen = "never detected" if detected is None else f"detected after {format_duration(detected)}"
    if resumed is None:
        return f"{record['fault']}: {seen}, not resumed"
    step = record.get("resumed_step")
    at = f" at step {step:,}" if step is not None else ""
    return f"{record['fault']}: {seen}, resumed after {format_duration(resumed)}{at}"
