"""The folders of a run on each node, and the logs of remote nodes.

On this machine a run's files are in the run folder, on a remote node in its cache.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfcluster.agent.catalogue import Welcome
from tfcluster.agent.protocol import NOT_IN_FILE
from tfcluster.agent.tasks.output import TimeIndex
from tfcluster.nodes.reports import STEPS
from tfcluster.plans.plan import Command, TaskId
from tfcluster.plans.remote_paths import NodePaths, node_folder
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.messages import Log


@dataclass(frozen=True, slots=True)
class Site:
    """The folders of one node, as its tasks see them."""

    node: str
    run_id: str
    paths: RunPaths
    there: NodePaths | None = None
    """The folders of a remote node; None for this machine."""

    @property
    def is_remote(self) -> bool:
        return self.there is not None

    @property
    def cache(self) -> str | None:
        """The folder where a remote node keeps what it is sent; None for this machine."""
        return self.there.cache if self.there is not None else None

    @property
    def shares_code(self) -> bool:
        """True if the node's tasks run in the workdir itself, maybe over a shared file system."""
        return self.there is None or self.there.shared is not None

    def sharing(self, workdir: str, folder: str) -> Site:
        """Return this site with the shared `folder` in the place of the plan's `workdir`."""
        assert self.there is not None
        return replace(self, there=replace(self.there, shared=(workdir, folder)))

    def folder(self, path: str) -> str:
        """Return a path of the plan as it is on the node."""
        return path if self.there is None else self.there.folder(path)

    def command(self, command: Command) -> Command:
        """Return `command` with the node's folders in the place of the plan's names."""
        return command if self.there is None else self.there.command(command)


def site_of(node: str, paths: RunPaths, welcome: Welcome) -> Site:
    """Return the site of a node, from its agent's welcome; a local agent names no cache."""
    if welcome.cache is None:
        return Site(node, paths.run_id, paths)
    there = NodePaths(welcome.cache, paths.run_id, welcome.executable)
    return Site(node, paths.run_id, RunPaths(Path(there.folder(node_folder(node)))), there)


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
