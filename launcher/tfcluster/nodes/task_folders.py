"""The tasks' own folders, local or remote: gathered from, and filled before a start.

They get the state that an attempt starts from, and an evaluator's gets new checkpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Final, Protocol

from tfcluster.agent import budgets
from tfcluster.agent.catalogue import FileEntry
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.files import blobs, incoming
from tfcluster.checkpoints.copying import NOT_AS_GATHERED, Source, SourceChangedError, Stopped, scan
from tfcluster.checkpoints.recognition import CheckpointKind, Entry
from tfcluster.checkpoints.store import (
    Gathered,
    kept_for_evaluator,
    name_checkpoints,
    newest_of,
)
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.sites import Site
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.file_transfer import FilesStalledError, RemoteFiles, RemoteFilesError
from tfcluster.wire.file_trees import FileToSend, announce
from tfcluster.wire.remote_source import RemoteFolder, RemoteSource, is_same, only_grows

LISTED: Final = ".tfcluster-checkpoints.json"
"""The file in an evaluator's folder that lists its checkpoints (`tfcluster_workers.evaluator`)."""


def files_to_send(folder: Path, state: Sequence[Gathered]) -> list[FileToSend]:
    """Return the files that a task's directory needs to continue from `state`.

    `folder`: an empty folder on the store's disk, where hard links keep the files while they are
    sent.
    """
    return [*_kept_files(folder, state), *_names(folder / "names", state)]


def _kept_files(folder: Path, state: Sequence[Gathered]) -> list[FileToSend]:
    """Return the files of the checkpoints in `state`, for `files_to_send`."""
    files: dict[str, FileToSend] = {}
    for gathered in state:
        digests = dict(zip(gathered.checkpoint.files, gathered.digests, strict=True))
        for entry in gathered.checkpoint.all_files:
            kept = folder / str(len(files))
            _keep(gathered, entry, kept)
            known = digests.get(entry)
            files[entry.path] = FileToSend(entry.path, kept, mtime_ns=entry.mtime_ns, sha512=known)
    return list(files.values())


def _keep(gathered: Gathered, entry: Entry, kept: Path) -> None:
    try:
        os.link(gathered.file(entry), kept)
    except OSError:  # another disk, or one without hard links
        gathered.copy(entry, kept)


def _names(folder: Path, state: Sequence[Gathered]) -> list[FileToSend]:
    """Return the ``checkpoint`` files that name the checkpoints of `state`, made in `folder`."""
    for inside in {PurePosixPath(path).parent for path in _paths(state)}:
        (folder / inside).mkdir(parents=True, exist_ok=True)
    name_checkpoints(folder, state)
    return [
        FileToSend(entry.path, folder / entry.path, mtime_ns=entry.mtime_ns)
        for entry in scan(folder)
        if not entry.path.endswith("/")
    ]


def _paths(gathered: Sequence[Gathered]) -> set[str]:
    return {entry.path for g in gathered for entry in g.checkpoint.all_files}


class Target(Protocol):
    """A task's folder, on any machine. Its methods raise OSError."""

    @property
    def folder(self) -> PurePath: ...

    async def replace(self, files: Sequence[FileToSend]) -> None:
        """Have it hold exactly `files`, all at once."""

    async def paths(self) -> set[str]:
        """Return what it holds."""

    async def add(self, files: Sequence[FileToSend], removed: Sequence[str]) -> None:
        """Add the files in their order, each whole, and then delete the paths in `removed`."""


@dataclass(frozen=True, slots=True)
class LocalTarget:
    """A folder of this machine."""

    folder: Path

    async def paths(self) -> set[str]:
        return {entry.path for entry in await asyncio.to_thread(scan, self.folder)}

    async def replace(self, files: Sequence[FileToSend]) -> None:
        """Have it hold exactly `files`; what it held before is kept beside it."""
        await asyncio.to_thread(
            self._put, files, partial(incoming.replace_folder, kept=f"{self.folder}.replaced")
        )

    async def add(self, files: Sequence[FileToSend], removed: Sequence[str]) -> None:
        def add(into: str, entries: Sequence[FileEntry], put: incoming.Put) -> None:
            incoming.add_files(into, entries, removed, put)

        await asyncio.to_thread(self._put, files, add)

    def _put(
        self,
        files: Sequence[FileToSend],
        put_all: Callable[[str, Sequence[FileEntry], incoming.Put], None],
    ) -> None:
        """Put files here as an agent does. Raises SourceChangedError for damaged ones."""
        tree = announce(files)

        def put(file: FileEntry, target: str) -> None:
            source, _ = tree.sources[str(file.sha512)]
            try:
                blobs.copy(str(source), str(file.sha512), target, 0o644)
            except blobs.NotInCache as error:
                raise SourceChangedError(f"{file.path}: {NOT_AS_GATHERED}") from error
            if file.mtime_ns is not None:
                os.utime(target, ns=(file.mtime_ns, file.mtime_ns))

        put_all(str(self.folder), tree.entries, put)


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """A folder of another machine."""

    folder: PurePosixPath
    files: Callable[[], RemoteFiles]
    """Returns the files of the current agent, or raises RemoteFilesError."""
    is_lost: Callable[[], bool]

    async def paths(self) -> set[str]:
        return {path for path, _, _ in await self.files().scan(str(self.folder))}

    async def replace(self, files: Sequence[FileToSend]) -> None:
        """Have it hold exactly `files`; a node that is lost meanwhile is reported by its link."""
        try:
            await self.files().send_tree(str(self.folder), files, keep=False)
        except RemoteFilesError:
            if not self.is_lost():
                raise

    async def add(self, files: Sequence[FileToSend], removed: Sequence[str]) -> None:
        await self.files().add_files(str(self.folder), files, removed=removed)


async def put_back(state: Sequence[Gathered], targets: Iterable[Target], *, beside: Path) -> None:
    """Have each folder hold exactly `state` (see `Store.state`), each all at once.

    TensorFlow's strategies need every worker to restore the same step, so before an attempt a
    task's folder holds this state and nothing else.

    `beside`: a folder on the store's disk. Raises SourceChangedError, OSError.
    """
    with tempfile.TemporaryDirectory(prefix=".outgoing-", dir=beside) as folder:
        files = await asyncio.to_thread(files_to_send, Path(folder), state)
        filling = (target.replace(files) for target in targets)
        for result in await asyncio.gather(*filling, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


class Follower:
    """The folder of an evaluator, which gets new checkpoints; foreign files stay untouched."""

    def __init__(self, target: Target, *, beside: Path) -> None:
        """Prepare; `beside`: a folder on the store's disk."""
        self.target, self._beside = target, beside
        self._placed: list[Gathered] = []
        self._listed: list[dict[str, Any]] = []

    def forget(self) -> None:
        """Note that the folder was replaced: the next call fills it again."""
        self._placed, self._listed = [], []

    async def follow(self, held: Sequence[Gathered]) -> None:
        """Add the new checkpoints among `held`, the files that list them last.

        Raises SourceChangedError or OSError; the next call tries again.
        """
        known = {placed.checkpoint for placed in self._placed}
        new = [g for g in held if g.kind is not CheckpointKind.BACKUP and g.checkpoint not in known]
        if not new and self._listed == _list_of(self._placed, held):
            return
        # A restart may have replaced the whole folder meanwhile.
        present = await self.target.paths()
        placed = [g for g in self._placed if {e.path for e in g.checkpoint.files} <= present]
        placed += new
        staying = kept_for_evaluator(placed, held)
        dropped = [g for g in placed if g not in staying]
        with tempfile.TemporaryDirectory(
            prefix=".outgoing-", dir=self._beside, ignore_cleanup_errors=True
        ) as folder:
            try:
                sent = await asyncio.to_thread(_files_of, Path(folder), new, staying)
                listed = _list_of(staying, held)
                (Path(folder) / LISTED).write_text(json.dumps(listed), encoding="utf-8")
                sent.append(FileToSend(LISTED, Path(folder) / LISTED))
                await self.target.add(sent, sorted(_paths(dropped) - _paths(staying)))
            except FileNotFoundError as error:  # the store has replaced them by newer ones
                raise SourceChangedError(str(error)) from error
        self._placed, self._listed = staying, listed


def _list_of(placed: Sequence[Gathered], held: Sequence[Gathered]) -> list[dict[str, Any]]:
    """Return what an evaluator reads of the checkpoints in its folder, oldest first.

    Steps may be reported after their checkpoints were placed.
    """
    steps = {gathered.checkpoint: gathered.step for gathered in held}
    return [
        {
            "path": gathered.checkpoint.path,
            "kind": str(gathered.kind),
            "step": steps.get(gathered.checkpoint, gathered.step),
        }
        for gathered in placed
    ]


def _files_of(
    folder: Path, new: Sequence[Gathered], staying: Sequence[Gathered]
) -> list[FileToSend]:
    """Return the files of the `new` checkpoints, and last those that name all `staying`."""
    return [*_kept_files(folder, new), *_names(folder / "names", staying)]


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
        why = ""
        source = self._source(site.node, site.paths.curves, _TENSORBOARD_RATE)
        folders = {task.id.file_name for task in self._plan.tasks if task.node == site.node}
        for entry in source.scan(stopped=stopped):
            if PurePosixPath(entry.path).parts[0] in folders:
                target = self._paths.curves / entry.path
                try:
                    if only_grows(entry.path):
                        source.follow(entry, target, stopped=stopped)
                    elif not entry.path.endswith("/") and not is_same(target, entry):
                        source.copy(entry, target, stopped=stopped)
                except FilesStalledError:
                    raise
                except OSError as error:  # other files are copied all the same
                    why = f"{entry.path}: {describe_error(error)}"
        return why

    async def fetch_trace(self, task: TaskId, profile: str) -> Path:
        """Have the run folder hold the trace of a task, and its node no longer; return its path.

        Raises OSError.
        """
        site, kept = self._site(task), self._paths.trace(profile, task)
        if site.is_remote:
            files, trace = self._hub.files(site.node), site.paths.trace(profile, task)
            folder = RemoteFolder(files, PurePosixPath(trace.parent), _RATE)
            entry = next((e for e in await folder.scan() if e.path == trace.name), None)
            if entry is None:
                raise FileNotFoundError(f"{trace} is not on {site.node}")
            await folder.copy(entry, kept)
            await files.add_files(str(trace.parent), [], removed=[trace.name])
        return kept

    def trace(self, task: TaskId, profile: str) -> PurePath:
        """Return the path at which a task writes its trace, on its node."""
        return self._site(task).paths.trace(profile, task)

    def _source(self, node: str, folder: PurePath, rate: float = _RATE) -> RemoteSource:
        return RemoteSource(
            PurePosixPath(folder),
            lambda: self._hub.files(node),
            self._loop,
            lambda: None if self._at_full_speed else rate,
        )

    async def put_back(self, state: Sequence[Gathered], tasks: Iterable[TaskId]) -> int | None:
        """Have the tasks' folders hold `state`; return its step, None if it is unknown.

        The tf.data service keeps its own state there.

        Raises SourceChangedError, OSError.
        """
        targets = [self._target(task) for task in tasks if not task.serves_data]
        await put_back(state, targets, beside=self._paths.root)
        return newest_of(state).step

    def _site(self, task: TaskId) -> Site:
        return self._hub.site(self._plan.task(task).node)
