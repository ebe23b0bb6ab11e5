"""What stubs have written, read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Failed


@dataclass(frozen=True, slots=True)
class Stamp:
    """Of one task: its process, and a moment on the monotonic clock."""

    rank: int
    pid: int
    at: float


def stamps(folder: Path, kind: str = "stamp", *, attempt: int = 0) -> list[Stamp]:
    """`stamp`: first instructions; `left`: last ones."""
    found = []
    for path in folder.glob(f"{kind}-{attempt}-*"):
        if path.suffix != ".new":
            pid, at = path.read_text().split()
            found.append(Stamp(int(path.name.rpartition("-")[2]), int(pid), float(at)))
    return found


def all_stamps(folder: Path, tasks: int, kind: str = "stamp", *, attempt: int = 0) -> list[Stamp]:
    """A benchmark that lost a task would look fast. Raises `Failed`."""
    found = stamps(folder, kind, attempt=attempt)
    if len(found) != tasks:
        raise Failed(f"{len(found)} of {tasks} tasks wrote {kind}-{attempt}-…")
    return found
