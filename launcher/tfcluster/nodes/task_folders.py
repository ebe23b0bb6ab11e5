"""The tasks' own folders, wherever they lie: read from, and filled before a start."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from tfcluster.agent import budgets
from tfcluster.agent.error_text import describe_error
from tfcluster.checkpoints import outputs
from tfcluster.checkpoints.completeness import Entry
from tfcluster.checkpoints.copying import SourceChangedError, Stopped
from tfcluster.checkpoints.outputs import Outputs
from tfcluster.checkpoints.restore import Follower, PutBack, newest_of, put_back
from tfcluster.checkpoints.sources import Source
from tfcluster.checkpoints.store import Gathered
from tfcluster.nodes import remote_checkpoints
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.remote_checkpoints import RemoteFollower
from tfcluster.nodes.remote_folders import Site
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.file_sending import FilesStalledError
from tfcluster.wire.file_transfer import RemoteFiles, RemoteFilesError, Sent


class Folders:
    """Knows each task's folder once its node was reached."""

    def __init__(self, plan: Plan, paths: RunPaths, hub: Hub) -> None:
        self._plan, self._paths, self._hub = plan, paths, hub
        self._hurries = False
        self._curves = threading.Lock()
        self._loop = asyncio.get_running_loop()

    @property
    def are_far(self) -> bool:
        """Whether the chief's lie on another machine."""
        return self._site(self._plan.chief).is_remote

    @property
    def any_are_far(self) -> bool:
        """Whether a task's lie on another machine."""
        return any(self._site(task.id).is_remote for task in self._plan.tasks)

    def hurry(self) -> None:
        """No task trains: files come home as fast as they can, also those under way."""
        self._hurries = True
        for node in self._plan.nodes:
            with contextlib.suppress(KeyError, OSError):
                self._hub.files(node.name).hurry()

    def have_time(self) -> None:
        """Tasks train again, and come first."""
        self._hurries = False

    def is_far(self, node: str) -> bool:
        """Whether the node, if it was reached, is another machine."""
        try:
            return self._hub.site(node).is_remote
        except KeyError:
            return False

    def workdir(self, task: TaskId) -> PurePosixPath:
        """Where `task` runs, as its own node names it."""
        site = self._site(task)
        return PurePosixPath(site.folder(self._plan.node(site.node).workdir))

    def checkpoints(self, task: TaskId) -> Path | Source:
        """Where `task` saves."""
        site = self._site(task)
        folder = site.paths.task_checkpoints(task)
        return self._source(task, PurePosixPath(folder)) if site.is_remote else folder

    def follower(self, evaluator: TaskId) -> Path | Follower:
        """What keeps its directory in step with what is gathered."""
        site = self._site(evaluator)
        folder = site.paths.task_checkpoints(evaluator)
        if not site.is_remote:
            return folder
        source = self._source(evaluator, PurePosixPath(folder))
        return RemoteFollower(source.folder, source.files, loop=self._loop, beside=self._paths.root)

    def bring_outputs(self, globs: Sequence[str], into: Path, *, stopped: Stopped) -> Outputs:
        """What the globs name in the chief's far workdir; blocks. Raises OSError,
        CancelledError."""
        chief = self._plan.chief
        source = replace(self._source(chief, self.workdir(chief)), most=budgets.LISTED_AT_MOST)
        entries = {entry.path: entry for entry in source.scan(stopped=stopped)}
        found = outputs.matching(entries.values(), globs)
        copied, notes = list[str](), list(found.notes)
        for path in found.files:
            try:
                source.copy(entries[path], into / path, stopped=stopped)
                copied.append(path)
            except SourceChangedError as error:
                notes.append(f"checkpoints.outputs: {path} was not copied: {describe_error(error)}")
        return Outputs(tuple(copied), tuple(notes))

    def bring_tensorboard(self, *, stopped: Stopped) -> dict[str, tuple[PurePosixPath, str]]:
        """What the TensorBoard files of far tasks have more than those here; blocks.

        Node → its folder, and why not all of it came; nodes that are lost are told of by
        themselves. Raises as `Source.copy`, but OSError.
        """
        failed = dict[str, tuple[PurePosixPath, str]]()
        with self._curves:
            for node in self._plan.nodes:
                if not self.is_far(node.name) or self._hub.is_lost(node.name):
                    continue
                site = self._hub.site(node.name)
                try:
                    why = self._bring_curves(site, stopped)
                except OSError as error:
                    why = describe_error(error)
                if why:
                    failed[node.name] = PurePosixPath(site.paths.curves), why
        return failed

    def _bring_curves(self, site: Site, stopped: Stopped) -> str:
        """One look at the folders of all the node's tasks, however many; why one did not come."""
        source = self._source_on(
            site.node, PurePosixPath(site.paths.curves), remote_checkpoints.CURVES_RATE
        )
        why = ""
        own = {task.id.file_name for task in self._plan.tasks if task.node == site.node}
        for entry in source.scan(stopped=stopped):
            if PurePosixPath(entry.path).parts[0] in own:
                try:
                    self._bring_curve(source, entry, stopped)
                except FilesStalledError:
                    raise
                except OSError as error:  # the others' are brought all the same
                    why = f"{entry.path}: {describe_error(error)}"
        return why

    def _bring_curve(
        self, source: remote_checkpoints.RemoteSource, entry: Entry, stopped: Stopped
    ) -> None:
        target = self._paths.curves / entry.path
        if "tfevents" in PurePosixPath(entry.path).name:  # which TensorFlow only appends to
            source.follow(entry, target, stopped=stopped)
        elif not entry.path.endswith("/") and not _is_same(target, entry):
            source.copy(entry, target, stopped=stopped)

    def _source(self, task: TaskId, folder: PurePosixPath) -> remote_checkpoints.RemoteSource:
        return self._source_on(self._plan.task(task).node, folder, remote_checkpoints.RATE)

    def _source_on(
        self, node: str, folder: PurePosixPath, rate: float
    ) -> remote_checkpoints.RemoteSource:
        loop = self._loop

        def files() -> RemoteFiles:
            try:
                return self._hub.files(node)
            except KeyError:
                raise OSError(f"{node} is lost") from None

        return remote_checkpoints.RemoteSource(
            folder, files, loop, lambda: None if self._hurries else rate
        )

    async def put_back(self, state: Sequence[Gathered], tasks: Iterable[TaskId]) -> PutBack:
        """Make the tasks' folders hold `state`: all here or none, then those elsewhere.

        Raises SourceChangedError, OSError.
        """
        here, there = list[Path](), list[tuple[TaskId, Site]]()
        for task in tasks:
            site = self._site(task)
            if site.is_remote:
                there.append((task, site))
            else:
                here.append(site.paths.task_checkpoints(task))
        if there:
            await self._send(state, there)
        if here:
            return await asyncio.to_thread(put_back, state, here)
        return PutBack(newest_of(state).step, tuple(state), ())

    async def _send(self, state: Sequence[Gathered], tasks: Sequence[tuple[TaskId, Site]]) -> None:
        with tempfile.TemporaryDirectory(prefix=".outgoing-", dir=self._paths.root) as folder:
            files = await asyncio.to_thread(remote_checkpoints.trees, Path(folder), state)
            sending = (self._fill(site, task, files) for task, site in tasks)
            results = await asyncio.gather(*sending, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _fill(self, site: Site, task: TaskId, files: Sequence[Sent]) -> None:
        """A node that is lost meanwhile tells that by itself, and its tasks are not started."""
        try:
            into = str(site.paths.task_checkpoints(task))
            await self._hub.files(site.node).send_tree(into, files, keep=False)
        except RemoteFilesError:
            if not self._hub.is_lost(site.node):
                raise

    def _site(self, task: TaskId) -> Site:
        return self._hub.site(self._plan.task(task).node)


def _is_same(target: Path, entry: Entry) -> bool:
    try:
        found = target.stat()
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns) == (entry.size, entry.mtime_ns)
