"""The files that tasks' folders get: the state that an attempt starts from, and new checkpoints for
an evaluator."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import Protocol

from tfcluster.agent.catalogue import FileEntry
from tfcluster.agent.files import blobs, incoming
from tfcluster.checkpoints.completeness import CheckpointKind, Entry
from tfcluster.checkpoints.copying import NOT_AS_GATHERED, SourceChangedError, scan
from tfcluster.checkpoints.restore import name_checkpoints
from tfcluster.checkpoints.store import Gathered
from tfcluster.wire.file_transfer import RemoteFiles, RemoteFilesError
from tfcluster.wire.file_trees import Sent, announce

KEPT_FOR_READERS = 5
"""The number of checkpoints that stay for a slow evaluator, however few the store keeps."""


def files_to_send(folder: Path, state: Sequence[Gathered]) -> list[Sent]:
    """Return the files that a task's directory needs to continue from `state`.

    `folder`: an empty folder on the store's disk, where hard links keep the files while they are
    sent.
    """
    files: dict[str, Sent] = {}
    for gathered in state:
        digests = dict(zip(gathered.checkpoint.files, gathered.digests, strict=True))
        for entry in gathered.checkpoint.all_files:
            kept = folder / str(len(files))
            _keep(gathered, entry, kept)
            known = digests.get(entry)
            files[entry.path] = Sent(entry.path, kept, mtime_ns=entry.mtime_ns, sha512=known)
    return [*files.values(), *_names(folder / "names", state)]


def _keep(gathered: Gathered, entry: Entry, kept: Path) -> None:
    try:
        os.link(gathered.file(entry), kept)
    except OSError:  # another disk, or one without hard links
        gathered.copy(entry, kept)


def _names(folder: Path, state: Sequence[Gathered]) -> list[Sent]:
    """Return the ``checkpoint`` files that name the checkpoints of `state`, made in `folder`."""
    for inside in {PurePosixPath(path).parent for path in _paths(state)}:
        (folder / inside).mkdir(parents=True, exist_ok=True)
    name_checkpoints(folder, state)
    return [
        Sent(entry.path, folder / entry.path, mtime_ns=entry.mtime_ns)
        for entry in scan(folder)
        if not entry.path.endswith("/")
    ]


def _paths(gathered: Sequence[Gathered]) -> set[str]:
    return {entry.path for g in gathered for entry in g.checkpoint.all_files}


class Target(Protocol):
    """A task's folder, on any machine. Its methods raise OSError."""

    @property
    def folder(self) -> PurePath: ...

    async def replace(self, files: Sequence[Sent]) -> None:
        """Have it hold exactly `files`, all at once."""

    async def paths(self) -> set[str]:
        """Return what it holds."""

    async def add(self, files: Sequence[Sent], removed: Sequence[str]) -> None:
        """Add the files in their order, each whole, and then delete the paths in `removed`."""


@dataclass(frozen=True, slots=True)
class LocalTarget:
    """A folder of this machine."""

    folder: Path

    async def paths(self) -> set[str]:
        return {entry.path for entry in await asyncio.to_thread(scan, self.folder)}

    async def replace(self, files: Sequence[Sent]) -> None:
        """Have it hold exactly `files`; what it held before is kept beside it."""
        await asyncio.to_thread(
            self._put, files, partial(incoming.replace_folder, kept=f"{self.folder}.replaced")
        )

    async def add(self, files: Sequence[Sent], removed: Sequence[str]) -> None:
        def add(into: str, entries: Sequence[FileEntry], put: incoming.Put) -> None:
            incoming.add_files(into, entries, removed, put)

        await asyncio.to_thread(self._put, files, add)

    def _put(
        self,
        files: Sequence[Sent],
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

    async def replace(self, files: Sequence[Sent]) -> None:
        """Have it hold exactly `files`; a node that is lost meanwhile is reported by its link."""
        try:
            await self.files().send_tree(str(self.folder), files, keep=False)
        except RemoteFilesError:
            if not self.is_lost():
                raise

    async def add(self, files: Sequence[Sent], removed: Sequence[str]) -> None:
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

    async def follow(self, held: Sequence[Gathered]) -> None:
        """Add the new checkpoints among `held`, the ``checkpoint`` file last.

        Raises SourceChangedError or OSError; the next call tries again.
        """
        known = {placed.checkpoint for placed in self._placed}
        new = [g for g in held if g.kind is not CheckpointKind.BACKUP and g.checkpoint not in known]
        if not new:
            return
        # A restart may have replaced the whole folder meanwhile.
        present = await self.target.paths()
        placed = [g for g in self._placed if {e.path for e in g.checkpoint.files} <= present]
        placed += new
        kept = {g.checkpoint for g in (*held, *placed[-KEPT_FOR_READERS:])}
        staying = [g for g in placed if g.checkpoint in kept]
        dropped = [g for g in placed if g.checkpoint not in kept]
        with tempfile.TemporaryDirectory(
            prefix=".outgoing-", dir=self._beside, ignore_cleanup_errors=True
        ) as folder:
            try:
                sent = await asyncio.to_thread(_files_of, Path(folder), new, staying)
                await self.target.add(sent, sorted(_paths(dropped) - _paths(staying)))
            except FileNotFoundError as error:  # the store has replaced them by newer ones
                raise SourceChangedError(str(error)) from error
        self._placed = staying


def _files_of(folder: Path, new: Sequence[Gathered], staying: Sequence[Gathered]) -> list[Sent]:
    """Return the files of the `new` checkpoints, and last those that name all `staying`."""
    files = folder / "files"
    files.mkdir()
    sent = [file for file in files_to_send(files, new) if PurePath(file.path).name != "checkpoint"]
    return [*sent, *_names(folder / "names", staying)]
