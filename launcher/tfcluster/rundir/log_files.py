"""The log files of a run: their folders, the labels of the tasks that wrote them, their lines."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from tfcluster.plans.context import LOCAL
from tfcluster.plans.plan import TaskId
from tfcluster.spec import JOBS

_ATTEMPT = re.compile(r"attempt-(\d+)")


def log_folders(logs: Path) -> list[tuple[int, Path]]:
    """Return attempt number and folder of each attempt; prepare (0) comes first."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for folder in logs.iterdir():
            if match := _ATTEMPT.fullmatch(folder.name):
                found.append((int(match[1]), folder))
            elif folder.name == "prepare":
                found.append((0, folder))
    return sorted(found)


def newest_attempts(logs: Path) -> dict[str, int]:
    """Return label → newest attempt that has a log; tasks restart together or alone."""
    newest: dict[str, int] = {}
    for attempt, folder in log_folders(logs):
        newest |= {label_of(path): attempt for path in folder.glob("*.log")}
    return newest


def prepare_label(node: str) -> str:
    """Return the label of a node's prepare step in the merged stream."""
    return "prepare" if node == LOCAL else f"prepare@{node}"


def label_of(path: Path) -> str:
    """Return the label of the task whose log is `path`."""
    if path.parent.name == "prepare":
        return prepare_label(path.stem)
    try:
        return str(TaskId.parse(path.stem))
    except ValueError:
        return path.stem


def rank(label: str) -> tuple[int, str, int]:
    """Return a sort key for labels: prepare, chief, workers by number, ps, evaluator."""
    job, _, index = label.partition(":")
    place = JOBS.index(job) + 1 if job in JOBS else 0
    return place, job, int(index) if index.isdecimal() else 0


class GrowingFile:
    """A reader of the new whole lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self, *, with_rest: bool = False) -> Iterator[bytes]:
        """Yield the lines since the last call; `with_rest`: a last one without newline too."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size == self._offset:
                return
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if line.endswith(b"\n") or with_rest:
                    self._offset += len(line)
                    yield line


def text_of(line: bytes) -> str:
    """Return a line as text; of a progress bar, its last state."""
    return line.rstrip(b"\r\n").rpartition(b"\r")[2].decode(errors="replace")
