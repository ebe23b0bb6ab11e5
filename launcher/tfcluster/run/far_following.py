"""Keep an evaluator's directory on another machine in step with what is gathered here."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import wait
from pathlib import Path, PurePosixPath
from typing import Any

from tfcluster.backends.far_files import FarFiles
from tfcluster.backends.sent import Sent
from tfcluster.checkpoints.completeness import Kind
from tfcluster.checkpoints.copying import CancelledError, Stopped, never
from tfcluster.checkpoints.following import AT_LEAST
from tfcluster.checkpoints.listing import scan
from tfcluster.checkpoints.restore import name_checkpoints
from tfcluster.checkpoints.store import Gathered
from tfcluster.run import far

_LOOK_S = 0.2


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

    def follow(self, held: Sequence[Gathered], *, stopped: Stopped = never) -> None:
        """Add what is new, each file whole at once, the ``checkpoint`` file last.

        Raises CancelledError, OSError; the next call goes on.
        """
        known = {placed.checkpoint for placed in self._placed}
        new = [g for g in held if g.kind is not Kind.BACKUP and g.checkpoint not in known]
        if not new:
            return
        with tempfile.TemporaryDirectory(prefix=".outgoing-", dir=self._beside) as folder:
            self._wait(self._bring(Path(folder), held, new), stopped)

    async def _bring(self, folder: Path, held: Sequence[Gathered], new: Sequence[Gathered]) -> None:
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
        sent = await asyncio.to_thread(_files_of, folder, new, staying)
        gone = sorted(_paths([g for g in placed if g.checkpoint not in wanted]) - still)
        await files.add_files(str(self.directory), sent, removed=gone)
        self._placed = staying

    def _wait(self, work: Coroutine[Any, Any, None], stopped: Stopped) -> None:
        under_way = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not wait([under_way], _LOOK_S).done:
            if stopped():
                under_way.cancel()
                raise CancelledError
        under_way.result()


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
