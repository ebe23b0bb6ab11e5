"""Folders of tasks on other machines: filling them, and keeping an evaluator in step."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path, PurePosixPath

from tfcluster.checkpoints.completeness import Entry, Kind
from tfcluster.checkpoints.copying import CancelledError, SourceChangedError, Stopped, never
from tfcluster.checkpoints.restore import KEPT_FOR_READERS, name_checkpoints
from tfcluster.checkpoints.sources import scan
from tfcluster.checkpoints.store import Gathered
from tfcluster.wire.file_transfer import RemoteFiles
from tfcluster.wire.file_trees import Sent

_POLL_S = 0.2
"""Interval at which a wait checks whether it was cancelled."""
_PATIENCE_S = 10.0
"""Time that one call waits for another machine; after it gathering goes on, while a large file is
still being sent or the link is cut."""


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
