"""What the tasks have written, as far as supervision looks at it: last words, signs of life."""

from __future__ import annotations

import time
from pathlib import Path

from tfcluster.run.gang import Gang
from tfcluster.run.member import Member
from tfcluster.run.paths import RunPaths

_BYTES = 64 * 1024


def last_text(log: Path) -> str:
    """The last 64 KiB of a log; empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _BYTES))
            return file.read(_BYTES).decode(errors="replace")
    except OSError:
        return ""


def last_line(paths: RunPaths, member: Member) -> str:
    """The last line that holds anything; of a progress bar its latest state."""
    text = last_text(paths.task_log(member.id, member.attempt))
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def last_output(paths: RunPaths, gang: Gang, now: float) -> float:
    """When any running task last wrote to its log, on the clock that shows `now`."""
    newest = 0.0
    for member in gang.running():
        try:
            newest = max(newest, paths.task_log(member.id, member.attempt).stat().st_mtime)
        except OSError:
            continue
    return now - max(0.0, time.time() - newest) if newest else 0.0
