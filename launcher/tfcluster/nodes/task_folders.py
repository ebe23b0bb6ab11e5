"""The tasks' own folders, local or remote: gathered from, and filled before a start."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath, PurePosixPath

from tfcluster.agent import budgets
from tfcluster.agent.error_text import describe_error
from tfcluster.checkpoints.copying import Source, Stopped
from tfcluster.checkpoints.restore import newest_of
from tfcluster.checkpoints.store import Gathered
from tfcluster.nodes.filling import Follower, LocalTarget, RemoteTarget, Target, put_back
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.remote_folders import Site
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.file_transfer import FilesStalledError
from tfcluster.wire.remote_source import RemoteSource, grows, is_same

_RATE = 50e6
"""Bytes per second at which a checkpoint is copied while its task trains."""
_TENSORBOARD_RATE = 5e6


class TaskFolders:
    """The folder of each task whose node was reached."""

    def __init__(self, plan: Plan, paths: RunPaths, hub: Hub) -> None:
        self._plan, self._paths, self._hub = plan, paths, hub
        self._at_full_speed = False
        self._tensorboard_lock = threading.Lock()
        self._loop = asyncio.get_running_loop()

    @property
    def any_are_remote(self) -> bool:
        """True if any task's folders are on another machine."""
        return any(self.is_remote(task.node) for task in self._plan.tasks)

    def use_full_speed(self) -> None:
        """Copy without a rate limit from now on, because no task trains."""
        self._at_full_speed = True
        for node in self._plan.nodes:
            with contextlib.suppress(OSError):
                self._hub.files(node.name).hurry()

    def limit_speed(self) -> None:
        """Copy with a rate limit again, because tasks train."""
        self._at_full_speed = False

    def is_remote(self, node: str) -> bool:
        """Return whether the node was reached and is another machine."""
        try:
            return self._hub.site(node).is_remote
        except KeyError:
            return False

    def is_lost(self, node: str) -> bool:
        """Return whether the node has no agent now."""
        return self._hub.is_lost(node)

    def fetch_command(self, node: str, folder: PurePath) -> str:
        """Return the command by which the user copies `folder` from a node that was reached."""
        return self._hub.fetch_command(self._plan.node(node), folder)

    def workdir(self, task: TaskId) -> Path | Source:
        """Return the working directory of `task`, or the source that reads it."""
        site = self._site(task)
        if not site.is_remote:
            return Path(self._plan.workdir)
        folder = PurePosixPath(site.folder(self._plan.node(site.node).workdir))
        return replace(self._source(site.node, folder), most=budgets.LISTED_OUTPUTS)

    def checkpoints(self, task: TaskId) -> Path | Source:
        """Return the folder where `task` saves, or the source that reads it on another machine."""
        site = self._site(task)
        folder = site.paths.task_checkpoints(task)
        return self._source(site.node, folder) if site.is_remote else folder

    async def salvage_checkpoints(self, task: TaskId, into: Path) -> None:
        """Copy the folder where `task` saved from its node, whose agent is gone.

        Raises SetupError where that is not possible, or not before the node has another agent.
        """
        site = self._site(task)
        node, folder = self._plan.node(site.node), site.paths.task_checkpoints(task)
        await self._hub.salvage(node, folder, into)

    def follower(self, evaluator: TaskId) -> Follower:
        """Return what adds gathered checkpoints to the evaluator's folder."""
        return Follower(self._target(evaluator), beside=self._paths.root)

    def _target(self, task: TaskId) -> Target:
        site = self._site(task)
        folder = site.paths.task_checkpoints(task)
        if not site.is_remote:
            return LocalTarget(folder)
        files, is_lost = partial(self._hub.files, site.node), partial(self.is_lost, site.node)
        return RemoteTarget(PurePosixPath(folder), files, is_lost)

    def fetch_tensorboard(self, *, stopped: Stopped) -> dict[str, tuple[PurePosixPath, str]]:
        """Copy the new parts of remote tasks' TensorBoard files; blocks.

        Returns node → its folder and why not all was copied; lost nodes are left out. Raises what
        `RemoteSource.copy` raises, except OSError.
        """
        failed = dict[str, tuple[PurePosixPath, str]]()
        with self._tensorboard_lock:
            for node in self._plan.nodes:
                if not self.is_remote(node.name) or self._hub.is_lost(node.name):
                    continue
                site = self._hub.site(node.name)
                try:
                    why = self._fetch_node_tensorboard(site, stopped)
                except OSError as error:
                    why = describe_error(error)
                if why:
                    failed[node.name] = PurePosixPath(site.paths.curves), why
        return failed

    def _fetch_node_tensorboard(self, site: Site, stopped: Stopped) -> str:
        """Copy the files of all tasks of a node after one listing; return why one failed, or ""."""
        rate, why = _TENSORBOARD_RATE, ""
        source = self._source(site.node, site.paths.curves, rate)
        folders = {task.id.file_name for task in self._plan.tasks if task.node == site.node}
        for entry in source.scan(stopped=stopped):
            if PurePosixPath(entry.path).parts[0] in folders:
                target = self._paths.curves / entry.path
                try:
                    if grows(entry.path):
                        source.follow(entry, target, stopped=stopped)
                    elif not entry.path.endswith("/") and not is_same(target, entry):
                        source.copy(entry, target, stopped=stopped)
                except FilesStalledError:
                    raise
                except OSError as error:  # other files are copied all the same
                    why = f"{entry.path}: {describe_error(error)}"
        return why

    def _source(self, node: str, folder: PurePath, rate: float = _RATE) -> RemoteSource:
        return RemoteSource(
            PurePosixPath(folder),
            lambda: self._hub.files(node),
            self._loop,
            lambda: None if self._at_full_speed else rate,
        )

    async def put_back(self, state: Sequence[Gathered], tasks: Iterable[TaskId]) -> int | None:
        """Have the tasks' folders hold `state`; return its step, None if it is unknown.

        Raises SourceChangedError, OSError.
        """
        await put_back(state, [self._target(task) for task in tasks], beside=self._paths.root)
        return newest_of(state).step

    def _site(self, task: TaskId) -> Site:
        return self._hub.site(self._plan.task(task).node)
