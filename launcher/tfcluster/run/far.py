"""Folders of tasks on other machines, as a gatherer in a thread and a restart see them."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from tfcluster.backends.far_files import FarFileChangedError, FarFiles, Sent
from tfcluster.checkpoints.completeness import Entry
from tfcluster.checkpoints.copying import (
    CancelledError,
    SourceChangedError,
    Stopped,
    never,
)
from tfcluster.checkpoints.listing import scan

T = TypeVar("T")

RATE = 50e6
"""Bytes per second at which a checkpoint is brought home while its task trains on."""


@dataclass(frozen=True, slots=True)
class FarSource:
    """A folder of another machine; its methods block, and are for threads beside the loop."""

    folder: PurePosixPath
    files: Callable[[], FarFiles]
    """Of the agent that is there now; raises OSError where there is none."""
    loop: asyncio.AbstractEventLoop
    rate: Callable[[], float | None]
    """Bytes per second at most; None: as fast as it goes."""

    def scan(self) -> tuple[Entry, ...]:
        found = self._wait(self.files().scan(str(self.folder)))
        return tuple(Entry(*one) for one in found if _stays_inside(one[0]))

    def copy(self, entry: Entry, target: Path, *, stopped: Stopped = never) -> str:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            digest = self._wait(self._fetch(entry, target, stopped))
        except FarFileChangedError as error:
            raise SourceChangedError(f"{entry.path}: {error}") from error
        os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
        return digest

    def check(self, entries: Sequence[Entry]) -> None:
        now = set(self.scan())
        for entry in entries:
            if entry not in now:
                raise SourceChangedError(f"{entry.path}: changed while its checkpoint was copied")

    async def _fetch(self, entry: Entry, target: Path, stopped: Stopped) -> str:
        digest = hashlib.sha256()
        contents = self.files().read(
            str(self.folder),
            entry.path,
            size=entry.size,
            mtime_ns=entry.mtime_ns,
            rate=self.rate(),
        )
        with target.open("wb") as writer:
            async for data in contents:
                if stopped():
                    raise CancelledError
                digest.update(data)
                await asyncio.to_thread(writer.write, data)
            writer.flush()
            await asyncio.to_thread(os.fsync, writer.fileno())
        return digest.hexdigest()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


def _stays_inside(path: str) -> bool:
    """Names come from another machine: none may lead out of the folder they are put into."""
    parts = path.removesuffix("/").split("/")
    return "\0" not in path and not {"", ".", ".."} & set(parts)


def tree(folder: Path) -> list[Sent]:
    """All files below `folder`, to be sent with their times."""
    return [
        Sent(entry.path, folder / entry.path, mtime_ns=entry.mtime_ns)
        for entry in scan(folder)
        if not entry.path.endswith("/")
    ]
