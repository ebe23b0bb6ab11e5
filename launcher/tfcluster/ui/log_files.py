"""Where the logs of a run lie and whose they are: names of files to names of tasks."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from tfcluster.plan.plan import JOB_NAMES, TaskId

_ATTEMPT = re.compile(r"attempt-(\d+)")


def log_folders(logs: Path) -> list[tuple[int, Path]]:
    """Attempt number and folder, prepare (0) first."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for folder in logs.iterdir():
            if match := _ATTEMPT.fullmatch(folder.name):
                found.append((int(match[1]), folder))
            elif folder.name == "prepare":
                found.append((0, folder))
    return sorted(found)


def newest_attempts(logs: Path) -> dict[str, int]:
    """Label → the newest attempt that it has a log of; tasks restart together or alone."""
    newest: dict[str, int] = {}
    for attempt, folder in log_folders(logs):
        newest |= {label_of(path): attempt for path in folder.glob("*.log")}
    return newest


def changed_ns(folder: Path) -> int:
    """Time stamp of a folder, which changes when a file comes."""
    try:
        return folder.stat().st_mtime_ns
    except FileNotFoundError:
        # `tfcluster rm` while a view looks on.
        return 0


def prepare_label(node: str) -> str:
    """How the prepare step of a node is called in the merged stream."""
    return "prepare" if node == "local" else f"prepare@{node}"


def label_of(path: Path) -> str:
    """The task whose log this is, as lines name it."""
    if path.parent.name == "prepare":
        return prepare_label(path.stem)
    try:
        return str(TaskId.parse(path.stem))
    except ValueError:
        return path.stem


def rank(label: str) -> tuple[int, str, int]:
    """Sorts labels: prepare, chief, workers by number, ps, evaluator."""
    job, _, index = label.partition(":")
    place = JOB_NAMES.index(job) + 1 if job in JOB_NAMES else 0
    return place, job, int(index) if index.isdecimal() else 0
