"""The folders of a run on each node.

On this machine a run's files are in the run folder, on a remote node in its cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tfcluster.agent.catalogue import Welcome
from tfcluster.plans.plan import Command
from tfcluster.plans.remote_paths import NodePaths, node_folder
from tfcluster.rundir.paths import RunPaths


@dataclass(frozen=True, slots=True)
class Site:
    """The folders of one node, as its tasks see them."""

    node: str
    run_id: str
    paths: RunPaths
    remote: NodePaths | None = None
    """The folders of a remote node; None for this machine."""

    @property
    def is_remote(self) -> bool:
        return self.remote is not None

    @property
    def cache(self) -> str | None:
        """The folder where a remote node keeps what it is sent; None for this machine."""
        return self.remote.cache if self.remote is not None else None

    @property
    def shares_code(self) -> bool:
        """True if the node's tasks run in the workdir itself, maybe over a shared file system."""
        return self.remote is None or self.remote.shared is not None

    def sharing(self, workdir: str, folder: str) -> Site:
        """Return this site with the shared `folder` in the place of the plan's `workdir`."""
        assert self.remote is not None
        return replace(self, remote=replace(self.remote, shared=(workdir, folder)))

    def folder(self, path: str) -> str:
        """Return a path of the plan as it is on the node."""
        return path if self.remote is None else self.remote.folder(path)

    def command(self, command: Command) -> Command:
        """Return `command` with the node's folders in the place of the plan's names."""
        return command if self.remote is None else self.remote.command(command)


def site_of(node: str, paths: RunPaths, welcome: Welcome) -> Site:
    """Return the site of a node, from its agent's welcome; a local agent names no cache."""
    if welcome.cache is None:
        return Site(node, paths.run_id, paths)
    remote = NodePaths(welcome.cache, paths.run_id, welcome.executable)
    return Site(node, paths.run_id, RunPaths(Path(remote.folder(node_folder(node)))), remote)
