"""The log files of a run: their folders, the labels of the tasks that wrote them, their lines."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tfcluster.agent.error_text import describe_error
from tfcluster.errors import UsageError
from tfcluster.plans.context import LOCAL
from tfcluster.plans.plan import TaskId
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.spec import JOBS

_ATTEMPT = re.compile(r"attempt-(\d+)")
_TIME_STAMPS_SETTLE_NS = 1_000_000_000
"""A folder may change twice within one tick of its time stamp."""


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


def find_label(state: RunSnapshot, task: str) -> str:
    """Return the label of the task that a user names. Raises UsageError if the run lacks it."""
    if task.partition("@")[0] == "prepare":
        return task
    try:
        label = str(TaskId.parse(task))
    except ValueError as error:
        raise UsageError(describe_error(error)) from error
    known = [each.task for each in state.tasks]
    if label not in known:
        raise UsageError(f"{state.run} has no task {label}", fix=f"one of {', '.join(known)}")
    return label


def rank(label: str) -> tuple[int, str, int]:
    """Return a sort key for labels: prepare, chief, workers by number, ps, evaluator."""
    job, _, index = label.partition(":")
    place = JOBS.index(job) + 1 if job in JOBS else 0
    return place, job, int(index) if index.isdecimal() else 0


class LogFiles:
    """Finds the log files of a run as they are created."""

    def __init__(self, logs: Path, watch: Callable[[Path], None] = lambda folder: None) -> None:
        """`watch` is called with each folder that may get more."""
        self._logs, self._watch = logs, watch
        self._known: set[tuple[Path, str]] = set()
        self._folder_times: dict[Path, int] = {}

    def new(self) -> Iterator[tuple[int, Path]]:
        """Yield attempt and path of the files since the last call; cheap if there are none."""
        for attempt, folder in log_folders(self._logs):
            if folder not in self._folder_times:
                self._watch(folder)  # first: a log that is created in between is then reported
            changed = _folder_time_ns(folder)
            if self._folder_times.get(folder) == changed:
                continue
            is_settled = time.time_ns() - changed > _TIME_STAMPS_SETTLE_NS
            self._folder_times[folder] = changed if is_settled else 0
            with contextlib.suppress(FileNotFoundError):  # `tfcluster rm` while a view is open
                for name in os.listdir(folder):  # ten times as fast as `Path.glob` for a thousand
                    if name.endswith(".log") and (folder, name) not in self._known:
                        self._known.add((folder, name))
                        yield attempt, folder / name


def _folder_time_ns(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns  # changes when a file is created in the folder
    except FileNotFoundError:
        return 0  # `tfcluster rm` deleted it while a view is open
