"""Folders of tasks on other machines, as a gatherer in a thread and a restart see them."""

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
    copy_verified,
    never,
    raise_if_cancelled,
)
from tfcluster.checkpoints.restore import KEPT_FOR_READERS, name_checkpoints
from tfcluster.checkpoints.sources import scan
from tfcluster.checkpoints.store import Gathered
from tfcluster.wire.file_sending import Sent
from tfcluster.wire.file_transfer import RemoteFileChangedError, RemoteFiles

T = TypeVar("T")

RATE = 50e6
"""Bytes per second at which a checkpoint is brought home while its task trains on."""
CURVES_RATE = 5e6
"""The same for TensorBoard files."""
_SYNC_BYTES = 64 << 20
_LOOK_S = 0.2
"""Between two questions whether to go on."""


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """A folder of another machine; its methods block, and are for threads beside the loop."""

    folder: PurePosixPath
    files: Callable[[], RemoteFiles]
    """Of the agent that is there now; raises OSError where there is none."""
    loop: asyncio.AbstractEventLoop
    rate: Callable[[], float | None]
    """Bytes per second at most; None: as fast as it goes."""
    most: int = budgets.LISTED_CHECKPOINTS
    """Files and folders that are listed; with more, nothing is."""

    def scan(self, *, stopped: Stopped = never) -> tuple[Entry, ...]:
        found = self._wait(self.files().scan(str(self.folder), most=self.most), stopped)
        return tuple(Entry(*one) for one in found if _stays_inside(one[0]))

    def copy(self, entry: Entry, target: Path, *, stopped: Stopped = never) -> str:
        """Raises OSError, too, where what was written is not what the node has."""
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            return self._bring(entry, target, 0, stopped, grows=False)
        except BaseException:
            target.unlink(missing_ok=True)
            raise

    def follow(self, entry: Entry, target: Path, *, stopped: Stopped = never) -> None:
        """The same for a file that only grows: what `target` has of it already stays."""
        target.parent.mkdir(parents=True, exist_ok=True)
        here = target.stat() if target.exists() else None
        if here and (here.st_size, here.st_mtime_ns) == (entry.size, entry.mtime_ns):
            return
        start = here.st_size if here and here.st_size <= entry.size else 0
        try:
            self._bring(entry, target, start, stopped, grows=True)
        except BaseException:
            os.truncate(target, start)
            raise

    def check(self, entries: Sequence[Entry], *, stopped: Stopped = never) -> None:
        now = set(self.scan(stopped=stopped))
        for entry in entries:
            if entry not in now:
                raise SourceChangedError(f"{entry.path}: changed while its checkpoint was copied")

    def _bring(
        self, entry: Entry, target: Path, start: int, stopped: Stopped, *, grows: bool
    ) -> str:
        try:
            digest = self._wait(self._fetch(entry, target, start, stopped, grows=grows), stopped)
        except RemoteFileChangedError as error:
            raise SourceChangedError(f"{entry.path}: {error}") from error
        os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
        return digest

    async def _fetch(
        self, entry: Entry, target: Path, start: int, stopped: Stopped, *, grows: bool
    ) -> str:
        async with _Landing(target, start) as landing:

            async def take(data: bytes) -> None:
                raise_if_cancelled(stopped)
                await landing.add(data)

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
            await landing.settle()
            if landing.digest != announced:
                raise OSError(f"{target}: what was read back is not what {entry.path} holds there")
            return announced

    def _wait(self, work: Coroutine[Any, Any, T], stopped: Stopped) -> T:
        """Not longer than it is wanted: no answer comes over a line that is cut."""
        under_way = asyncio.run_coroutine_threadsafe(work, self.loop)
        while not wait([under_way], _LOOK_S).done:
            if stopped():
                under_way.cancel()
                raise CancelledError
        return under_way.result()


def _stays_inside(path: str) -> bool:
    """Names come from another machine: none may lead out of the folder they are put into."""
    parts = path.removesuffix("/").split("/")
    return "\0" not in path and not {"", ".", ".."} & set(parts)


class _Landing:
    """A file that is written slice by slice; hashed is what can be read back from it. The disk
    writes while more comes, so that the end need not wait for it."""

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
        """The number of a closed file may be another's at once: nobody may be using it. What had
        come before an error is taken off again: who waited for it may have gone."""
        if self._busy:
            await asyncio.wait(self._busy)
        try:
            if error is not None:
                os.ftruncate(self._fd, self._start_at)
        finally:
            os.close(self._fd)

    async def add(self, data: bytes) -> None:
        """Raises OSError."""
        await asyncio.shield(self._start(self._write, data))
        is_idle = self._syncing is None or self._syncing.done()
        if is_idle and self._at >= self._synced + _SYNC_BYTES:
            self._synced = self._at
            self._syncing = self._start(os.fdatasync, self._fd)

    async def settle(self) -> None:
        """All of it is on the disk. Raises OSError."""
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
        left = len(data)
        while left and (read := os.pread(self._fd, left, self._at)):
            self._hash.update(read)
            self._at += len(read)
            left -= len(read)


def trees(folder: Path, state: Sequence[Gathered]) -> list[Sent]:
    """What a task's directory shall hold to go on from `state`; `folder`, which is empty and on
    the store's disk, keeps its files there while they are sent, and holds no copies."""
    found: dict[str, Sent] = {}
    for gathered in state:
        digests = dict(zip(gathered.checkpoint.files, gathered.digests, strict=True))
        for entry in gathered.checkpoint.all_files:
            kept = folder / str(len(found))
            _keep(gathered.file(entry), kept, entry)
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


def _keep(file: Path, kept: Path, entry: Entry) -> None:
    try:
        os.link(file, kept)
    except OSError:  # no links on that disk, or another disk
        copy_verified(file, kept, entry)


_FOLLOW_EVERY_S = 0.2
_PATIENCE_S = 10.0
"""How long a look waits for another machine, which holds up those to come: gathering goes on
while a large file is sent, or while a line is cut."""


class RemoteFollower:
    """What `checkpoints.restore.LocalFollower` is for a directory here; its methods block."""

    def __init__(
        self,
        directory: PurePosixPath,
        files: Callable[[], RemoteFiles],
        *,
        loop: asyncio.AbstractEventLoop,
        beside: Path,
    ) -> None:
        """`files`: of the agent that is there now; raises OSError where there is none. `beside`:
        a folder on the store's disk."""
        self.directory = directory
        self._files, self._loop, self._beside = files, loop, beside
        self._placed: list[Gathered] = []
        self._under_way: Future[None] | None = None

    def follow(self, held: Sequence[Gathered], *, stopped: Stopped = never) -> None:
        """Add what is new, each file whole at once, the ``checkpoint`` file last.

        What takes longer than some seconds goes on, and a later call hears of its end. Raises
        SourceChangedError, CancelledError, OSError; the next call goes on.
        """
        if self._under_way is None:
            known = {placed.checkpoint for placed in self._placed}
            new = [g for g in held if g.kind is not Kind.BACKUP and g.checkpoint not in known]
            if not new:
                return
            work = self._bring(held, new)
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
        while not wait([under_way], _FOLLOW_EVERY_S).done and time.monotonic() < until:
            if stopped():
                return

    async def _bring(self, held: Sequence[Gathered], new: Sequence[Gathered]) -> None:
        with tempfile.TemporaryDirectory(
            prefix=".outgoing-", dir=self._beside, ignore_cleanup_errors=True
        ) as folder:
            await self._add(Path(folder), held, new)

    async def _add(self, folder: Path, held: Sequence[Gathered], new: Sequence[Gathered]) -> None:
        files = self._files()
        # A restart may have replaced the whole directory meanwhile.
        there = {path for path, _, _ in await files.scan(str(self.directory))}
        placed = [
            *(g for g in self._placed if {e.path for e in g.checkpoint.files} <= there),
            *new,
        ]
        wanted = {g.checkpoint for g in (*held, *placed[-KEPT_FOR_READERS:])}
        staying = [g for g in placed if g.checkpoint in wanted]
        still = _paths(staying)
        try:
            sent = await asyncio.to_thread(_files_of, folder, new, staying)
        except FileNotFoundError as error:  # the store keeps newer ones by now
            raise SourceChangedError(str(error)) from error
        gone = sorted(_paths([g for g in placed if g.checkpoint not in wanted]) - still)
        await files.add_files(str(self.directory), sent, removed=gone)
        self._placed = staying


def _files_of(folder: Path, new: Sequence[Gathered], staying: Sequence[Gathered]) -> list[Sent]:
    """Those of what is `new`, and last what names all that is `staying`."""
    files, names = folder / "files", folder / "names"
    files.mkdir()
    found = [one for one in trees(files, new) if PurePosixPath(one.path).name != "checkpoint"]
    for path in _paths(staying):
        (names / path).parent.mkdir(parents=True, exist_ok=True)
    name_checkpoints(names, staying)
    listed = (entry.path for entry in scan(names) if not entry.path.endswith("/"))
    return [*found, *(Sent(path, names / path) for path in listed)]


def _paths(gathered: Sequence[Gathered]) -> set[str]:
    return {entry.path for one in gathered for entry in one.checkpoint.all_files}
