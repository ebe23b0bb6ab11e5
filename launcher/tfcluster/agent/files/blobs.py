"""Files that a node receives: sparse writes, and blobs named by their SHA-512."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable

PARTIAL = ".partial"
"""The suffix of files that are not complete yet."""
_BLOCK = 64 << 10
_ZEROS = bytes(_BLOCK)
_CHUNK = 1 << 20
_REPORT_BYTES = 256 << 10
"""The bytes between two reports to the sender, whose window holds many such pieces: over a slow
connection these reports are the only sign of progress."""


class BadTree(ValueError):
    """A path leads out of the folder, or the bytes are not those that were announced."""


class NotInCache(Exception):
    """A file is no longer in the cache (another host with this home removed it), or is damaged."""

    def __init__(self, digest: str) -> None:
        super().__init__(digest)
        self.digest = digest


def write_at(fd: int, data: bytes, at: int) -> None:
    """Write `data` at offset `at`, where nothing was written before, as a sparse file.

    Blocks of zeros are left out; the file ends after `data` even if that ends with zeros. Raises
    OSError.
    """
    start, end = 0, len(data)
    while start < end:
        stop = start
        while stop < end and not _is_zero(data, stop):
            stop += _BLOCK
        view = memoryview(data)[start : min(stop, end)]
        while view:
            written = os.pwrite(fd, view, at + start)
            view, start = view[written:], start + written
        while start < end and _is_zero(data, start):
            start += _BLOCK
    if end and _is_zero(data, (end - 1) // _BLOCK * _BLOCK):
        os.ftruncate(fd, at + end)


def _is_zero(data: bytes, start: int) -> bool:
    if data[start]:
        return False
    block = data[start : start + _BLOCK]
    return block == _ZEROS[: len(block)]


class Blob:
    """A file that is received in order and hashed; it has its digest as a name once complete."""

    def __init__(self, folder: str, digest: str, size: int) -> None:
        """Create the partial file. Raises OSError."""
        self._path, self._digest, self._size = os.path.join(folder, digest), digest, size
        # Random, because hosts may share a home and have processes with the same number.
        self._partial = f"{self._path}.{os.urandom(6).hex()}{PARTIAL}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._partial, flags, 0o600)
        self._hash, self._reported_at = hashlib.sha512(), 0
        self.at = 0

    @property
    def is_full(self) -> bool:
        return self.at >= self._size

    def add(self, offset: int, data: bytes) -> bool:
        """Add bytes; return whether a report to the sender is due.

        Raises BadTree or OSError after discarding the file.
        """
        if offset != self.at:
            return False  # sent before a reconnect; the expected bytes will come
        if self.at + len(data) > self._size:
            self.discard()
            raise BadTree(f"more than the {self._size} bytes that were announced")
        try:
            write_at(self._fd, data, self.at)
        except OSError:
            self.discard()
            raise
        self._hash.update(data)
        self.at += len(data)
        is_due = self.at >= self._reported_at + _REPORT_BYTES
        if is_due:
            self._reported_at = self.at
        return is_due

    def finish(self) -> None:
        """Check the digest and give the file its name. Raises BadTree after discarding it."""
        os.close(self._fd)
        self._fd = -1
        if self._hash.hexdigest() != self._digest:
            self.discard()
            raise BadTree("the received bytes are not those that were announced (SHA-512)")
        os.rename(self._partial, self._path)

    def discard(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(OSError):
            os.unlink(self._partial)


def copy(
    source: str, digest: str, target: str, mode: int, keep_alive: Callable[[], None] = lambda: None
) -> None:
    """Copy `source` to a new file `target` and check its digest; `keep_alive` is called per piece.

    Raises NotInCache if the source is missing or damaged, and OSError, also if `target` exists.
    """
    try:
        reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            raise NotInCache(digest) from error
        raise
    try:
        if _copy_and_hash(reader, target, mode, keep_alive) != digest:
            raise NotInCache(digest)
        with contextlib.suppress(OSError):
            os.utime(reader)  # marks it as in use: see `cache.prune`
    finally:
        os.close(reader)


def _copy_and_hash(reader: int, target: str, mode: int, keep_alive: Callable[[], None]) -> str:
    digest = hashlib.sha512()
    writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(writer, mode)
        at = 0
        while data := os.read(reader, _CHUNK):
            keep_alive()
            digest.update(data)
            write_at(writer, data, at)
            at += len(data)
    finally:
        os.close(writer)
    return digest.hexdigest()


def move(source: str, digest: str, target: str, mode: int, keep_alive: Callable[[], None]) -> None:
    """Move `source` to `target`, by `copy` to another disk. Raises NotInCache, OSError."""
    try:
        os.rename(source, target)
    except FileNotFoundError as error:
        raise NotInCache(digest) from error
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy(source, digest, target, mode, keep_alive)
        os.unlink(source)
    else:
        os.chmod(target, mode)
