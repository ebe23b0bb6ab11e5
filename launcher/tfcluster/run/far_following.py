"""Keep an evaluator's directory on another machine in step with what is gathered here."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path, PurePosixPath

from tfcluster.backends.far_files import FarFiles
from tfcluster.backends.sent import Sent
from tfcluster.checkpoints.completeness import Kind
from tfcluster.checkpoints.copying import CancelledError, SourceChangedError, Stopped, never
from tfcluster.checkpoints.following import AT_LEAST
from tfcluster.checkpoints.listing import scan
from tfcluster.checkpoints.restore import name_checkpoints
from tfcluster.checkpoints.store import Gathered
from tfcluster.run import far

_LOOK_S = 0.2
_PATIENCE_S = 10.0
"""How long a look waits for another machine, which holds up those to come: gathering goes on
while a large file is sent, or while a line is cut."""


class FarFollower:
    """What `checkpoints.following.Follower` is for a directory here; its methods block."""

    def __init__(
        self,
        directory: PurePosixPath,
        files: Callable[[], FarFiles],
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
        while not wait([under_way], _LOOK_S).done and time.monotonic() < until:
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
        wanted = {g.checkpoint for g in (*held, *placed[-AT_LEAST:])}
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
    found = [one for one in far.trees(files, new) if PurePosixPath(one.path).name != "checkpoint"]
    for path in _paths(staying):
        (names / path).parent.mkdir(parents=True, exist_ok=True)
    name_checkpoints(names, staying)
    listed = (entry.path for entry in scan(names) if not entry.path.endswith("/"))
    return [*found, *(Sent(path, names / path) for path in listed)]


def _paths(gathered: Sequence[Gathered]) -> set[str]:
    return {entry.path for one in gathered for entry in one.checkpoint.all_files}
