"""Folders that checkpoints are gathered from, verified copies of single files, atomic writes, and
TensorFlow's ``checkpoint`` text file.

A copy is made in chunks, synced to the disk and read back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import BinaryIO, Protocol

from tfcluster.agent import budgets
from tfcluster.agent.error_text import reason_of
from tfcluster.agent.files.blobs import write_at
from tfcluster.agent.files.outgoing import walk
from tfcluster.checkpoints.recognition import Entry

CHUNK = 4 * 1024 * 1024
"""Bytes copied between two checks for cancellation."""

PARTIAL = ".partial-"
"""The prefix of names of incomplete files and folders, which a crash may leave behind."""

NOT_AS_GATHERED = "it is not what was gathered (SHA-512)"

Stopped = Callable[[], bool]


class SourceChangedError(Exception):
    """A file was rewritten, truncated or deleted while it was copied; a retry may succeed."""


class DamagedError(SourceChangedError):
    """A gathered file is missing, or is no longer what was gathered."""


class CancelledError(Exception):
    """The caller cancelled the copy."""


def never() -> bool:
    return False


def raise_if_cancelled(stopped: Stopped) -> None:
    """Raise CancelledError if `stopped()`; called at every step of work on files.

    The call to `stopped` is also a sign of life for the caller.
    """
    if stopped():
        raise CancelledError


def copy_verified(source: Path, target: Path, expected: Entry, *, stopped: Stopped = never) -> str:
    """Copy `source`, which was listed as `expected`; return the SHA-512 of source and copy.

    The copy gets the mtime of `expected`, so that later listings recognise it. Raises
    SourceChangedError, CancelledError, or OSError for the target's disk.
    """
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise SourceChangedError(f"{expected.path}: {reason_of(error)}") from error
    with open(descriptor, "rb") as reader:
        digest, copied = _write_copy(reader, target, expected, stopped)
        if copied != expected.size or not _is_still(source, descriptor, expected):
            raise SourceChangedError(f"{expected.path}: changed while it was copied")
    _check_copy(target, digest, expected, stopped)
    return digest


def copy_gathered(
    source: Path, target: Path, entry: Entry, digest: str | None, *, stopped: Stopped = never
) -> None:
    """Copy a file of a store, which has the SHA-512 `digest`, as the task's file `entry`.

    Its own time says nothing: the store may have been copied. Raises DamagedError,
    CancelledError, or OSError for the target's disk.
    """
    try:
        reader = source.open("rb")
    except OSError as error:
        raise DamagedError(f"{source.name}: {reason_of(error)}") from error
    with reader:
        copied_digest, copied = _write_copy(reader, target, entry, stopped)
    if copied != entry.size or digest not in (None, copied_digest):
        raise DamagedError(f"{source.name}: {NOT_AS_GATHERED}")
    _check_copy(target, copied_digest, entry, stopped)


def partial_of(target: Path) -> Path:
    """Return the place beside `target` of its copy in progress; its name is never too long."""
    name = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]
    return target.with_name(f"{PARTIAL}{name}")


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a free path beside `target`, whose file then replaces it: it may be read meanwhile."""
    partial = Path(f"{partial_of(target)}-{os.getpid()}")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def replace_verified(
    source: Path, target: Path, expected: Entry, *, stopped: Stopped = never
) -> str:
    """Copy like `copy_verified`, but replace `target` atomically."""
    with replacing(target) as partial:
        return copy_verified(source, partial, expected, stopped=stopped)


def sha512(path: Path, *, stopped: Stopped = never) -> str:
    """Return the hexadecimal SHA-512 of a file. Raises CancelledError."""
    digest = hashlib.sha512()
    with path.open("rb") as reader:
        while chunk := reader.read(CHUNK):
            raise_if_cancelled(stopped)
            digest.update(chunk)
    return digest.hexdigest()


def partial_bytes(root: Path) -> int:
    """Return how many bytes of copies in progress `root` holds."""
    total = 0
    for folder in root.glob(f"{PARTIAL}*"):
        for inside, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):  # renamed meanwhile
                    total += os.lstat(os.path.join(inside, name)).st_size
    return total


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Replace the contents of `path` by `text`; a reader sees the old or the new, never a part."""
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as writer:
        writer.write(text)
        writer.flush()
        os.fsync(writer.fileno())
    sync_folder(path.parent)


def _write_copy(reader: BinaryIO, target: Path, entry: Entry, stopped: Stopped) -> tuple[str, int]:
    """Write what `reader` has to `target`; return its SHA-512 and size."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, copied = hashlib.sha512(), 0
    with target.open("wb") as writer:
        while chunk := _read(reader.read, entry, stopped):
            digest.update(chunk)
            write_at(writer.fileno(), chunk, copied)
            copied += len(chunk)
        os.fsync(writer.fileno())
    return digest.hexdigest(), copied


def _check_copy(target: Path, digest: str, entry: Entry, stopped: Stopped) -> None:
    """Set the time of a copy and read it back."""
    os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
    if sha512(target, stopped=stopped) != digest:
        raise OSError(f"{target}: the data read back differ from the data written")


def _read(read: Callable[[int], bytes], expected: Entry, stopped: Stopped) -> bytes:
    raise_if_cancelled(stopped)
    try:
        return read(CHUNK)
    except OSError as error:
        raise SourceChangedError(f"{expected.path}: {reason_of(error)}") from error


def _is_still(source: Path, descriptor: int, expected: Entry) -> bool:
    """Return whether `source` still is the file that was read, and unchanged."""
    try:
        named, read = os.stat(source, follow_symlinks=False), os.fstat(descriptor)
    except OSError:
        return False
    return (
        stat.S_ISREG(named.st_mode)
        and (named.st_dev, named.st_ino) == (read.st_dev, read.st_ino)
        and (read.st_size, read.st_mtime_ns) == (expected.size, expected.mtime_ns)
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
    entries = []
    names = walk(str(directory), "", partial(raise_if_cancelled, stopped), enters)
    for number, (path, size, mtime_ns) in enumerate(names, 1):
        if most is not None and number > most:
            raise OSError(budgets.too_many_files(str(directory), most))
        entries.append(Entry(path, size, mtime_ns))
    return tuple(entries)


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
    most: int | None = budgets.LISTED_CHECKPOINTS
    """The limit of files and folders in a listing, if any; a larger one is an error."""
    enters: Callable[[str], bool] = lambda path: True

    def scan(self, *, stopped: Stopped = never) -> tuple[Entry, ...]:
        return scan(self.folder, most=self.most, enters=self.enters, stopped=stopped)

    def copy(self, entry: Entry, target: Path, *, stopped: Stopped = never) -> str:
        return replace_verified(self.folder / entry.path, target, entry, stopped=stopped)

    def check(self, entries: Sequence[Entry], *, stopped: Stopped = never) -> None:
        for entry in entries:
            try:
                status = (self.folder / entry.path).lstat()
            except OSError as error:
                raise SourceChangedError(f"{entry.path}: {reason_of(error)}") from error
            if (status.st_size, status.st_mtime_ns) != (entry.size, entry.mtime_ns):
                raise SourceChangedError(f"{entry.path}: changed while its checkpoint was copied")


def source_of(place: Path | Source) -> Source:
    """Return `place` as a source; a path means a folder of this machine."""
    return LocalSource(place) if isinstance(place, Path) else place
