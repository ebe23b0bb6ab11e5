"""The folders of another machine, as `RemoteFiles` reads them: files are copied whole and verified,
or followed while they grow.

A copy is read back and has the SHA-512 that the other machine computed, or it is not there.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, Self, TypeVar

from tfcluster.agent import budgets
from tfcluster.agent.files.blobs import write_at
from tfcluster.checkpoints.copying import (
    CancelledError,
    SourceChangedError,
    Stopped,
    never,
    partial_of,
    raise_if_cancelled,
)
from tfcluster.checkpoints.recognition import Entry
from tfcluster.wire.file_transfer import RemoteFileChangedError, RemoteFiles, Take

T = TypeVar("T")

_SYNC_BYTES = 64 << 20
_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
"""macOS has no `fdatasync`."""
_POLL_S = 0.2
"""Interval at which a wait checks whether it was cancelled."""
_END_S = 5.0
"""Seconds in which cancelled work removes what it has written; a dead disk may hang."""


class DiskWork(Protocol):
    """Does work on a disk: `asyncio.to_thread`, or `at_once` where nothing else uses the loop."""

    def __call__(self, work: Callable[..., Any], /, *args: Any) -> Awaitable[Any]: ...


async def at_once(work: Callable[..., T], /, *args: Any) -> T:
    return work(*args)


def only_grows(path: str) -> bool:
    """Return whether a file is only appended to: a log, a list of events, TensorFlow's curves."""
    return path.endswith((".jsonl", ".log")) or "tfevents" in path.rpartition("/")[2]


def is_same(target: Path, entry: Entry) -> bool:
    """Return whether `target` has the size and the time of the file `entry`, so is its copy."""
    try:
        status = target.stat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (entry.size, entry.mtime_ns)


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A folder of another machine; its methods are for an asyncio loop."""

    files: RemoteFiles
    path: PurePosixPath | str
    rate: float | None = None
    """The limit in bytes per second, None for none."""
    stopped: Stopped = never
    run: DiskWork = asyncio.to_thread

    async def scan(
        self, *, most: int = budgets.LISTED_CHECKPOINTS, changes: bool = False
    ) -> tuple[Entry, ...]:
        """Return what it holds, or only what has changed since the last such call.

        Paths that lead out of the folder are left out. Raises OSError, also for more than `most`
        entries.
        """
        listed = await self.files.scan(str(self.path), most=most, changes=changes)
        return tuple(Entry(*fields) for fields in listed if _stays_inside(fields[0]))

    async def copy(self, entry: Entry, target: Path, *, resumes: bool = False) -> str:
        """Copy a file and return its SHA-512; `target` appears whole, or stays as it was.

        With `resumes`, bytes that came before the connection was lost are kept beside `target`, and
        the next call goes on from there. Raises SourceChangedError, CancelledError, and OSError,
        also if the copy differs from the file.
        """
        partial = partial_of(target)
        held = await self.run(_size_of, partial)
        kept = held if resumes and held <= entry.size else 0
        try:
            async with await _Writer.open(partial, 0, kept, self.run) as writer:
                digest = await self._receive(entry, writer)
            await self.run(_put_in_place, partial, target, entry)
        except BaseException:
            if not (resumes and self.files.is_lost):
                partial.unlink(missing_ok=True)
            raise
        return digest

    async def follow(self, entry: Entry, target: Path, *, begins_at: int = 0) -> None:
        """Append the new part of a file that only grows, of which the copy begins at `begins_at`.

        Raises the same errors as `copy`; then nothing was appended.
        """
        size = max(0, await self.run(_size_of, target) - begins_at)
        if size == entry.size > 0:
            return
        at = begins_at + (size if size <= entry.size else 0)
        try:
            async with await _Writer.open(target, at, at, self.run) as writer:
                await self._receive(entry, writer, start=at - begins_at)
        except BaseException:
            os.truncate(target, at)
            raise

    async def read(self, entry: Entry) -> bytes:
        """Return the contents of a small file. Raises SourceChangedError, OSError."""
        data = bytearray()

        async def take(piece: bytes) -> None:
            data.extend(piece)

        digest = await self._read(entry, take)
        if hashlib.sha512(data).hexdigest() != digest:
            raise OSError(f"{entry.path} did not arrive as it is on the node")
        return bytes(data)

    async def _receive(self, entry: Entry, writer: _Writer, *, start: int | None = None) -> str:
        """Write what comes of a file; a `start` means that it grows. Return the SHA-512."""

        async def take(data: bytes) -> None:
            raise_if_cancelled(self.stopped)
            await writer.add(data)

        offset = writer.at if start is None else start
        digest = await self._read(entry, take, start or 0, offset, grows=start is not None)
        if start is None:
            await writer.settle()
        if writer.digest != digest:
            raise OSError(f"{writer.path}: the written file differs from {entry.path} on the node")
        return digest

    async def _read(
        self, entry: Entry, take: Take, start: int = 0, offset: int = 0, *, grows: bool = False
    ) -> str:
        try:
            return await self.files.read(
                str(self.path),
                entry.path,
                take,
                size=entry.size,
                mtime_ns=entry.mtime_ns,
                rate=self.rate,
                start=start,
                offset=offset,
                grows=grows,
            )
        except RemoteFileChangedError as error:
            raise SourceChangedError(f"{entry.path}: {error}") from error


def _stays_inside(path: str) -> bool:
    parts = path.removesuffix("/").split("/")
    return "\0" not in path and not {"", ".", ".."} & set(parts)


def _size_of(path: Path) -> int:
    """Return the size of a file, 0 if there is none; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.stat().st_size if path.exists() else 0


def _put_in_place(partial: Path, target: Path, entry: Entry) -> None:
    os.utime(partial, ns=(entry.mtime_ns, entry.mtime_ns))
    partial.replace(target)


class _Writer:
    """A file that is written in slices, and hashed as it is read back.

    Slices are synced to the disk while more arrive, so that the end has little to wait for.
    """

    def __init__(self, path: Path, run: DiskWork) -> None:
        self.path, self._run = path, run
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        self._hash = hashlib.sha512()
        self.at = self._synced = 0
        self._syncing: asyncio.Future[None] | None = None
        self._busy: set[asyncio.Future[None]] = set()

    @classmethod
    async def open(cls, path: Path, start: int, end: int, run: DiskWork) -> Self:
        """Open a file of which the bytes before `end` stay; those from `start` on are hashed."""
        writer = cls(path, run)
        os.ftruncate(writer._fd, end)
        writer.at, writer._synced = start, end
        if end > start:
            await run(writer._read_back, end - start)
        return writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the file, once no thread uses the descriptor: its number may be reused at once."""
        if self._busy:
            await asyncio.wait(self._busy)
        os.close(self._fd)

    async def add(self, data: bytes) -> None:
        """Write `data`; raises OSError."""
        await asyncio.shield(self._start(self._write, data))
        is_idle = self._syncing is None or self._syncing.done()
        if is_idle and self.at >= self._synced + _SYNC_BYTES:
            self._synced = self.at
            self._syncing = self._start(_sync, self._fd)

    async def settle(self) -> None:
        """Sync the whole file to the disk; raises OSError."""
        if self._syncing is not None:
            await asyncio.shield(self._syncing)
        await asyncio.shield(self._start(os.fsync, self._fd))

    def _start(self, work: Callable[[Any], None], subject: Any) -> asyncio.Future[None]:
        working = asyncio.ensure_future(self._run(work, subject))
        self._busy.add(working)
        working.add_done_callback(self._busy.discard)
        return working

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def _write(self, data: bytes) -> None:
        write_at(self._fd, data, self.at)
        self._read_back(len(data))

    def _read_back(self, remaining: int) -> None:
        while remaining and (read := os.pread(self._fd, min(remaining, 1 << 22), self.at)):
            self._hash.update(read)
            self.at += len(read)
            remaining -= len(read)


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """A folder of a node (`checkpoints.copying.Source`), for threads beside the loop.

    Its methods do what those of `RemoteFolder` do, and block.
    """

    folder: PurePosixPath
    files: Callable[[], RemoteFiles]
    """Returns the files of the current agent; raises OSError if there is none."""
    loop: asyncio.AbstractEventLoop
    rate: Callable[[], float | None]
    most: int = budgets.LISTED_CHECKPOINTS
    """Limit of files and folders in a listing; a larger one is an error."""

    def scan(self, *, stopped: Stopped = never) -> tuple[Entry, ...]:
        return self._wait(self._remote_folder(stopped).scan(most=self.most), stopped)

    def copy(self, entry: Entry, target: Path, *, stopped: Stopped = never) -> str:
        return self._wait(self._remote_folder(stopped).copy(entry, target), stopped)

    def follow(self, entry: Entry, target: Path, *, stopped: Stopped = never) -> None:
        self._wait(self._remote_folder(stopped).follow(entry, target), stopped)

    def check(self, entries: Sequence[Entry], *, stopped: Stopped = never) -> None:
        """Raise SourceChangedError unless the folder still has all `entries` unchanged."""
        listed = set(self.scan(stopped=stopped))
        for entry in entries:
            if entry not in listed:
                raise SourceChangedError(f"{entry.path}: changed while its checkpoint was copied")

    def _remote_folder(self, stopped: Stopped) -> RemoteFolder:
        return RemoteFolder(self.files(), self.folder, self.rate(), stopped)

    def _wait(self, work: Coroutine[Any, Any, T], stopped: Stopped) -> T:
        """Wait for `work` until it is `stopped`: over a cut link no answer comes."""
        has_ended = threading.Event()

        async def do() -> T:
            try:
                return await work
            finally:
                has_ended.set()

        future = asyncio.run_coroutine_threadsafe(do(), self.loop)
        while not wait([future], _POLL_S).done:
            if stopped():
                future.cancel()
                has_ended.wait(_END_S)
                raise CancelledError
        return future.result()
