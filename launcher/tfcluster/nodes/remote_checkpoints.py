"""Folders of tasks on other machines: reading them, filling them, keeping an evaluator in step."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self, TypeVar

from tfcluster.agent import budgets
from tfcluster.agent.files.blobs import write_at
from tfcluster.checkpoints.completeness import Entry, Kind
from tfcluster.checkpoints.copying import (
    CancelledError,
    SourceChangedError,
    Stopped,
    never,
    raise_if_cancelled,
)
from tfcluster.checkpoints.restore import KEPT_FOR_READERS, name_checkpoints
from tfcluster.checkpoints.sources import scan
from tfcluster.checkpoints.store import Gathered
from tfcluster.wire.file_transfer import RemoteFileChangedError, RemoteFiles
from tfcluster.wire.file_trees import Sent

T = TypeVar("T")

RATE = 50e6
"""Bytes per second at which a checkpoint is copied while its task trains."""
TENSORBOARD_RATE = 5e6
"""Bytes per second at which TensorBoard files are copied."""
_SYNC_BYTES = 64 << 20
_POLL_S = 0.2
"""Interval at which a wait checks whether it was cancelled."""
_PATIENCE_S = 10.0
"""Time that one call waits for another machine; after it gathering goes on, while a large file is
still being sent or the link is cut."""


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """A folder of another machine. Its methods block, and are for threads beside the loop."""

    folder: PurePosixPath
    files: Callable[[], RemoteFiles]
    """Returns the files of the current agent; raises OSError if there is none."""
    loop: asyncio.AbstractEventLoop
    rate: Callable[[], float | None]
    """Returns the limit in bytes per second, None for none."""
    max_entries: int = budgets.LISTED_CHECKPOINTS
    """Limit of files and folders in a listing; a larger one is an error."""

    def scan(self, *, stopped: Stopped = never) -> tuple[Entry, ...]:
        """Return the entries of the folder; raises OSError and CancelledError."""
        found = self._wait(self.files().scan(str(self.folder), most=self.max_entries), stopped)
        return tuple(Entry(*fields) for fields in found if _stays_inside(fields[0]))

    def copy(self, entry: Entry, target: Path, *, stopped: Stopped = never) -> str:
        """Copy a file and return its SHA-512.

        Raises OSError, also if the written file differs from the node's; SourceChangedError;
        CancelledError.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            return self._fetch(entry, target, 0, stopped, grows=False)
        except BaseException:
            target.unlink(missing_ok=True)
            raise

    def follow(self, entry: Entry, target: Path, *, stopped: Stopped = never) -> None:
        """Copy the new part of a file that only grows; raises the same errors as `copy`."""
        target.parent.mkdir(parents=True, exist_ok=True)
        copied = target.stat() if target.exists() else None
        if copied and (copied.st_size, copied.st_mtime_ns) == (entry.size, entry.mtime_ns):
            return
        start = copied.st_size if copied and copied.st_size <= entry.size else 0
        try:
            self._fetch(entry, target, start, stopped, grows=True)
        except BaseException:
            os.truncate(target, start)
            raise

    def check(self, entries: Sequence[Entry], *, stopped: Stopped = never) -> None:
        """Raise SourceChangedError unless the folder still has all `entries` unchanged."""
        now = set(self.scan(stopped=stopped))
        for entry in entries:
            if entry not in now:
                raise SourceChangedError(f"{entry.path}: changed while its checkpoint was copied")

    def _fetch(
        self, entry: Entry, target: Path, start: int, stopped: Stopped, *, grows: bool
    ) -> str:
        try:
            digest = self._wait(self._receive(entry, target, start, stopped, grows=grows), stopped)
        except RemoteFileChangedError as error:
            raise SourceChangedError(f"{entry.path}: {error}") from error
        os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
        return digest

    async def _receive(
        self, entry: Entry, target: Path, start: int, stopped: Stopped, *, grows: bool
    ) -> str:
        async with _VerifyingWriter(target, start) as writer:

            async def take(data: bytes) -> None:
                raise_if_cancelled(stopped)
                await writer.add(data)

            announced = await self.files().read(
                str(self.folder),
                entry.path,
                take,
                size=entry.size,
                mtime_ns=entry.mtime_ns,
                rate=self.rate(),
                start=start,
                grows=grows,
            )
            await writer.settle()
            if writer.digest != announced:
                raise OSError(f"{target}: the written file differs from {entry.path} on the node")
            return announced

    def _wait(self, work: Coroutine[Any, Any, T], stopped: Stopped) -> T:
        """Wait for `work` until it is `stopped`: over a cut link no answer comes."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        while not wait([future], _POLL_S).done:
            if stopped():
                future.cancel()
                raise CancelledError
        return future.result()


def _stays_inside(path: str) -> bool:
    """Return whether a path from another machine stays inside the folder it is put into."""
    parts = path.removesuffix("/").split("/")
    return "\0" not in path and not {"", ".", ".."} & set(parts)


class _VerifyingWriter:
    """A file that is written in slices, and hashed as it is read back.

    Slices are synced to the disk while more arrive, so that the end has little to wait for.
    """

    def __init__(self, target: Path, start: int) -> None:
        self._fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._fd, start)
        self._hash, self._start_at, self._at = hashlib.sha512(), start, start
        self._synced = start
        self._syncing: asyncio.Task[None] | None = None
        self._busy: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Close the file; after an error first remove what was written.

        Waits for threads that use the descriptor: once closed, its number may be reused at once.
        """
        if self._busy:
            await asyncio.wait(self._busy)
        try:
            if error is not None:
                os.ftruncate(self._fd, self._start_at)
        finally:
            os.close(self._fd)

    async def add(self, data: bytes) -> None:
        """Write `data`; raises OSError."""
        await asyncio.shield(self._start(self._write, data))
        is_idle = self._syncing is None or self._syncing.done()
        if is_idle and self._at >= self._synced + _SYNC_BYTES:
            self._synced = self._at
            self._syncing = self._start(os.fdatasync, self._fd)

    async def settle(self) -> None:
        """Sync the whole file to the disk; raises OSError."""
        if self._syncing is not None:
            await asyncio.shield(self._syncing)
        await asyncio.shield(self._start(os.fsync, self._fd))

    def _start(self, work: Callable[[Any], None], subject: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(asyncio.to_thread(work, subject))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)
        return task

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def _write(self, data: bytes) -> None:
        write_at(self._fd, data, self._at)
        remaining = len(data)
        while remaining and (read := os.pread(self._fd, remaining, self._at)):
            self._hash.update(read)
            self._at += len(read)
            remaining -= len(read)


def files_to_send(folder: Path, state: Sequence[Gathered]) -> list[Sent]:
    """Return the files that a task's directory needs to continue from `state`.

    `folder`: an empty folder on the store's disk, where hard links keep the files while they are
    sent.
    """
    found: dict[str, Sent] = {}
    for gathered in state:
        digests = dict(zip(gathered.checkpoint.files, gathered.digests, strict=True))
        for entry in gathered.checkpoint.all_files:
            kept = folder / str(len(found))
            _keep(gathered, entry, kept)
            known = digests.get(entry)
            found[entry.path] = Sent(entry.path, kept, mtime_ns=entry.mtime_ns, sha512=known)
    names = folder / "names"
    for inside in {PurePosixPath(path).parent for path in found}:
        (names / inside).mkdir(parents=True, exist_ok=True)
    name_checkpoints(names, state)
    for entry in scan(names):
        if not entry.path.endswith("/"):
            found[entry.path] = Sent(entry.path, names / entry.path, mtime_ns=entry.mtime_ns)
    return list(found.values())


def _keep(gathered: Gathered, entry: Entry, kept: Path) -> None:
    try:
        os.link(gathered.file(entry), kept)
    except OSError:  # another disk, or one without hard links
        gathered.copy(entry, kept)


class RemoteFollower:
    """The directory of a remote evaluator, which gets new checkpoints. Its methods block."""

    def __init__(
        self,
        directory: PurePosixPath,
        files: Callable[[], RemoteFiles],
        *,
        loop: asyncio.AbstractEventLoop,
        beside: Path,
    ) -> None:
        """Prepare the follower.

        `files` returns those of the current agent, or raises OSError; `beside`: a folder on the
        store's disk.
        """
        self.directory = directory
        self._files, self._loop, self._beside = files, loop, beside
        self._placed: list[Gathered] = []
        self._under_way: Future[None] | None = None

    def follow(self, held: Sequence[Gathered], *, stopped: Stopped = never) -> None:
        """Add the new checkpoints among `held`, the ``checkpoint`` file last.

        Files appear whole. Sending that takes longer than 10 s continues, and a later call raises
        its error. Raises SourceChangedError, CancelledError, OSError; the next call tries again.
        """
        if self._under_way is None:
            known = {placed.checkpoint for placed in self._placed}
            new = [g for g in held if g.kind is not Kind.BACKUP and g.checkpoint not in known]
            if not new:
                return
            work = self._fetch(held, new)
            self._under_way = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._wait(self._under_way, stopped)
        if stopped():
            self._under_way.cancel()
            self._under_way = None
            raise CancelledError
        if self._under_way.done():
            ended, self._under_way = self._under_way, None
            ended.result()

    def _wait(self, under_way: Future[None], stopped: Stopped) -> None:
        until = time.monotonic() + _PATIENCE_S
        while not wait([under_way], _POLL_S).done and time.monotonic() < until:
            if stopped():
                return

    async def _fetch(self, held: Sequence[Gathered], new: Sequence[Gathered]) -> None:
        with tempfile.TemporaryDirectory(
            prefix=".outgoing-", dir=self._beside, ignore_cleanup_errors=True
        ) as folder:
            await self._add(Path(folder), held, new)

    async def _add(self, folder: Path, held: Sequence[Gathered], new: Sequence[Gathered]) -> None:
        files = self._files()
        # A restart may have replaced the whole directory meanwhile.
        present = {path for path, _, _ in await files.scan(str(self.directory))}
        placed = [
            *(g for g in self._placed if {e.path for e in g.checkpoint.files} <= present),
            *new,
        ]
        kept = {g.checkpoint for g in (*held, *placed[-KEPT_FOR_READERS:])}
        staying = [g for g in placed if g.checkpoint in kept]
        try:
            sent = await asyncio.to_thread(_files_of, folder, new, staying)
        except FileNotFoundError as error:  # the store has replaced them by newer ones
            raise SourceChangedError(str(error)) from error
        dropped = _paths([g for g in placed if g.checkpoint not in kept])
        removed = sorted(dropped - _paths(staying))
        await files.add_files(str(self.directory), sent, removed=removed)
        self._placed = staying


def _files_of(folder: Path, new: Sequence[Gathered], staying: Sequence[Gathered]) -> list[Sent]:
    """Return the files of the `new` checkpoints, and last the one that names all `staying`."""
    files, names = folder / "files", folder / "names"
    files.mkdir()
    found = [f for f in files_to_send(files, new) if PurePosixPath(f.path).name != "checkpoint"]
    for path in _paths(staying):
        (names / path).parent.mkdir(parents=True, exist_ok=True)
    name_checkpoints(names, staying)
    listed = (entry.path for entry in scan(names) if not entry.path.endswith("/"))
    return [*found, *(Sent(path, names / path) for path in listed)]


def _paths(gathered: Sequence[Gathered]) -> set[str]:
    return {entry.path for g in gathered for entry in g.checkpoint.all_files}
