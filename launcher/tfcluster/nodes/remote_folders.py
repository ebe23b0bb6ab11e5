"""Where a run's files lie on each node: here in the run folder, elsewhere in the node's cache."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from tfcluster.agent.protocol import NOT_IN_FILE
from tfcluster.nodes.reports import STEPS
from tfcluster.plan.plan import Command, TaskId
from tfcluster.plan.remote_paths import NodePaths, node_folder
from tfcluster.rundir.paths import RunPaths


@dataclass(frozen=True, slots=True)
class Site:
    """One node's folders, as its own tasks see them."""

    node: str
    run_id: str
    paths: RunPaths
    there: NodePaths | None = None
    """Of a node that is another machine."""

    @property
    def is_remote(self) -> bool:
        return self.there is not None

    @property
    def cache(self) -> str | None:
        """Where a remote node keeps what it is sent."""
        return self.there.cache if self.there is not None else None

    @property
    def sees_our_code(self) -> bool:
        """Whether its tasks run in the workdir itself, over a shared file system."""
        return self.there is None or self.there.shared is not None

    def sharing(self, workdir: str, folder: str) -> Site:
        """The same node, with our own `folder` in the place of the plan's `workdir`."""
        assert self.there is not None
        return replace(self, there=replace(self.there, shared=(workdir, folder)))

    def folder(self, path: str) -> str:
        """`path` of the plan as it is there."""
        return path if self.there is None else self.there.folder(path)

    def command(self, command: Command) -> Command:
        """`command` with the node's own folders in the place of the plan's names."""
        return command if self.there is None else self.there.command(command)


def site_of(node: str, here: RunPaths, welcome: Mapping[str, Any]) -> Site:
    """`welcome`: what the node's agent says of itself; one beside us names no cache."""
    if (cache := welcome.get("cache")) is None:
        return Site(node, here.run_id, here)
    there = NodePaths(str(cache), here.run_id, welcome.get("executable"))
    return Site(node, here.run_id, RunPaths(Path(there.folder(node_folder(node)))), there)


@dataclass(slots=True)
class LogsOfOthers:
    """Writes the log bytes that remote agents send into the run folder.

    The file here may hold more than the one there, which a full disk can cut: bytes that are in
    no file come marked, and are kept.
    """

    paths: RunPaths
    _taken: dict[str, int] = field(default_factory=dict)
    """Stream → offset, in the file there, up to which its bytes have been written here."""

    def take(self, node: str, message: Mapping[str, Any]) -> None:
        """Append what is new; a disk that is full here loses it, the node still has it."""
        name, offset, data = message["name"], message["offset"], message["data"]
        if offset != NOT_IN_FILE:
            before = self._taken.get(f"{node} {name}", 0)
            data = data[max(0, before - offset) :]
            self._taken[f"{node} {name}"] = max(before, offset + len(message["data"]))
        with contextlib.suppress(OSError, ValueError), self._open(node, name) as file:
            file.write(data)

    def _open(self, node: str, stream: str) -> IO[bytes]:
        task, _, attempt = stream.rpartition("/")
        if task in STEPS:
            path = self.paths.step_log(task, node)
        else:
            path = self.paths.task_log(TaskId.parse(task), int(attempt))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
