"""The log files in the run folder for tasks of remote nodes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from tfcluster.agent.protocol import NOT_IN_FILE
from tfcluster.agent.tasks.output import TimeIndex
from tfcluster.nodes.reports import STEPS
from tfcluster.plans.plan import TaskId
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.messages import Log


@dataclass(slots=True)
class RemoteLogs:
    """The log files in the run folder for tasks of remote nodes.

    A file may hold more than the one on the node, which a full disk can cut: bytes that the node
    could not write have the offset NOT_IN_FILE, and are kept.
    """

    paths: RunPaths
    _taken: dict[str, int] = field(default_factory=dict)
    """Stream → the offset in the node's file up to which its bytes are written here."""
    _times: dict[Path, TimeIndex] = field(default_factory=dict)
    """The time of a line is when it came here."""

    def take(self, node: str, log: Log) -> None:
        """Append the new bytes of a log message; a full disk loses them here, not on the node."""
        name, offset, data = log.name, log.offset, log.data
        if offset != NOT_IN_FILE:
            before = self._taken.get(f"{node} {name}", 0)
            data = data[max(0, before - offset) :]
            self._taken[f"{node} {name}"] = max(before, offset + len(log.data))
        task, _, attempt = name.rpartition("/")
        with contextlib.suppress(OSError, ValueError):
            path = (
                self.paths.step_log(task, node)
                if task in STEPS
                else self.paths.task_log(TaskId.parse(task), int(attempt))
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                if path not in self._times:
                    self._times[path] = TimeIndex(str(path))
                self._times[path].note(file.tell())
                file.write(data)
