"""The folders checkpoints are gathered from: the interface (`Source`), and local folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Protocol

from tfcluster.agent import budgets
from tfcluster.agent.error_text import reason_of
from tfcluster.agent.files.outgoing import walk
from tfcluster.checkpoints.completeness import Entry
from tfcluster.checkpoints.copying import (
    SourceChangedError,
    Stopped,
    copy_verified,
    never,
    raise_if_cancelled,
    replacing,
)


def scan(
    directory: Path,
    *,
    most: int | None = None,
    enters: Callable[[str], bool] = lambda path: True,
    stopped: Stopped = never,
) -> tuple[Entry, ...]:
    """Return every file and folder below `directory`; links are neither followed nor listed.

    Folders below it are searched if it `enters` them. Files that vanish meanwhile are left out; a
    missing directory is empty. Agents list folders of other machines in the same way. Raises
    OSError, also if there are more than `most` entries, and CancelledError.
    """
    found = []
    names = walk(str(directory), "", partial(raise_if_cancelled, stopped), enters)
    for number, (path, size, mtime_ns) in enumerate(names, 1):
        if most is not None and number > most:
            raise OSError(budgets.too_many_files(str(directory), most))
        found.append(Entry(path, size, mtime_ns))
    return tuple(found)


class Source(Protocol):
    """A folder that a task writes to, on any machine.

    Every method may raise OSError if the folder cannot be reached, and CancelledError.
    """

    @property
    def folder(self) -> PurePath:
        """The folder's path on the task's machine."""

    def scan(self, *, stopped: Stopped = never) -> tuple[Entry, ...]:
        """Return everything in the folder; () if it does not exist."""

    def copy(self, entry: Entry, target: Path, *, stopped: Stopped = never) -> str:
        """Copy one file, which appears whole; return its SHA-512. See `copying.copy_verified`."""

    def check(self, entries: Sequence[Entry], *, stopped: Stopped = never) -> None:
        """Raise SourceChangedError unless all `entries` are unchanged."""


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A folder of this machine."""

    folder: Path
    most: int = budgets.LISTED_CHECKPOINTS
    """The limit of files and folders in a listing; a larger one is an error."""
    enters: Callable[[str], bool] = lambda path: True

    def scan(self, *, stopped: Stopped = never) -> tuple[Entry, ...]:
        return scan(self.folder, most=self.most, enters=self.enters, stopped=stopped)

    def copy(self, entry: Entry, target: Path, *, stopped: Stopped = never) -> str:
        with replacing(target) as partial:
            return copy_verified(self.folder / entry.path, partial, entry, stopped=stopped)

    def check(self, entries: Sequence[Entry], *, stopped: Stopped = never) -> None:
        for entry in entries:
            try:
                found = (self.folder / entry.path).lstat()
            except OSError as error:
                raise SourceChangedError(f"{entry.path}: {reason_of(error)}") from error
            if (found.st_size, found.st_mtime_ns) != (entry.size, entry.mtime_ns):
                raise SourceChangedError(f"{entry.path}: changed while its checkpoint was copied")


def source_of(place: Path | Source) -> Source:
    """Return `place` as a source; a path means a folder of this machine."""
    return LocalSource(place) if isinstance(place, Path) else place
