"""Reads the files that stub workers write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Failed


@dataclass(frozen=True, slots=True)
class Stamp:
    """The stamp of one task: its process, and a time of the monotonic clock."""

    rank: int
    pid: int
    at: float


def stamps(folder: Path, kind: str = "stamp", *, attempt: int = 0) -> list[Stamp]:
    """Return the stamps of one kind: `stamp` for first instructions, `left` for last ones."""
    found = []
    for path in folder.glob(f"{kind}-{attempt}-*"):
        if path.suffix != ".new":
            pid, at = path.read_text().split()
            found.append(Stamp(int(path.name.rpartition("-")[2]), int(pid), float(at)))
    return found


def all_stamps(folder: Path, tasks: int, kind: str = "stamp", *, attempt: int = 0) -> list[Stamp]:
    """Return the stamps of all tasks. Raises `Failed` if one is missing, which would look fast."""
    found = stamps(folder, kind, attempt=attempt)
    if len(found) != tasks:
        raise Failed(f"{len(found)} of {tasks} tasks wrote {kind}-{attempt}-…")
    return found
