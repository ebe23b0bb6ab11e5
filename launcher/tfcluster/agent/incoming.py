"""Trees of files that come over the line: what is here already is not sent again.

An order names a folder and what it shall hold, each file by its SHA-256. The agent answers with
the digests it lacks, takes those as `F` frames into a content-addressed cache, and then makes the
folder: all of it beside the place first, then one rename.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os

from tfcluster.agent.announced import BadTree, check
from tfcluster.agent.private import make_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Say = Callable[[dict[str, Any]], None]

_CHUNK = 1 << 20
PARTIAL = ".partial"
"""Ends the names of files that are still coming."""


class NotInCache(Exception):
    """A file that was there is gone (another host with this home cleared away), or damaged."""

    def __init__(self, digest: str) -> None:
        super().__init__(digest)
        self.digest = digest


class Incoming:
    """Serves `receive` orders, one or several at a time."""

    def __init__(self, cache: str, say: Say) -> None:
        self._files, self._say = os.path.join(cache, "files"), say
        self._orders: dict[int, dict[str, Any]] = {}
        self._wanted: dict[int, set[str]] = {}
        self._open: dict[str, _Blob] = {}

    def receive(self, order: dict[str, Any]) -> None:
        """`id`, `into` (the folder), `files`: path with sha256, size, mode, mtime_ns, or with
        link; `keep`: whether the files stay in the cache; `unless_there`: a folder that exists
        stays as it is. Asked again, it starts again."""
        number = order["id"]
        if order.get("unless_there") and os.path.isdir(order["into"]):
            self._say({"type": "received", "id": number})
            return
        try:
            check(order["files"])
            digests = {file["sha256"] for file in order["files"] if "sha256" in file}
            make_folders(self._files)
            missing = {d for d in digests if not os.path.exists(self._path(d))}
            others = {d for n, wanted in self._wanted.items() if n != number for d in wanted}
            self._orders[number], self._wanted[number] = order, missing
            # What another order has asked for comes once, for both.
            self._say({"type": "wants", "id": number, "digests": sorted(missing - others)})
            self._finish_if_complete(number)
        except (OSError, BadTree) as error:
            self._fail(number, error)

    def take(self, digest: str, offset: int, data: bytes) -> None:
        """Bytes of a wanted file; its last come when its announced size is reached."""
        numbers = [n for n, wanted in self._wanted.items() if digest in wanted]
        if not numbers:
            return
        try:
            blob = self._open.get(digest) or self._begin(digest, numbers[0])
            blob.add(offset, data)
            if not blob.is_full:
                return
            blob.settle(self._path(digest))
            del self._open[digest]
        except (OSError, BadTree) as error:
            self._drop(digest)
            for number in numbers:
                self._fail(number, error)
            return
        for number in numbers:
            try:
                self._wanted[number].discard(digest)
                self._finish_if_complete(number)
            except OSError as error:
                self._fail(number, error)

    def forget(self) -> None:
        """The connection broke: what is still wanted is ordered again, from the beginning."""
        for digest in list(self._open):
            self._drop(digest)
        self._orders.clear()
        self._wanted.clear()

    def _begin(self, digest: str, number: int) -> _Blob:
        files = self._orders[number]["files"]
        size = next(int(f["size"]) for f in files if f.get("sha256") == digest)
        # Several hosts may have one home, and each its own process of this number.
        partial = f"{self._path(digest)}.{os.urandom(6).hex()}{PARTIAL}"
        self._open[digest] = blob = _Blob(partial, digest, size)
        return blob

    def _finish_if_complete(self, number: int) -> None:
        if self._wanted[number]:
            return
        order = self._orders[number]
        try:
            place(order["into"], order["files"], self._path)
        except NotInCache as lack:
            with contextlib.suppress(OSError):
                os.unlink(self._path(lack.digest))
            self._wanted[number] = {lack.digest}
            self._say({"type": "wants", "id": number, "digests": [lack.digest]})
            return
        except BaseException:
            self._forget(number)
            raise
        self._forget(number)
        self._say({"type": "received", "id": number})

    def _forget(self, number: int) -> None:
        order = self._orders.pop(number)
        del self._wanted[number]
        if not order.get("keep"):
            self._clear_away(order)

    def _clear_away(self, order: dict[str, Any]) -> None:
        for digest in {f["sha256"] for f in order["files"] if "sha256" in f}:
            if not any(_names(digest, other) for other in self._orders.values()):
                with contextlib.suppress(OSError):
                    os.unlink(self._path(digest))

    def _fail(self, number: int, error: Exception) -> None:
        self._orders.pop(number, None)
        self._wanted.pop(number, None)
        reason = getattr(error, "strerror", None) or str(error)
        self._say({"type": "receive_failed", "id": number, "error": reason})

    def _path(self, digest: str) -> str:
        return os.path.join(self._files, digest)

    def _drop(self, digest: str) -> None:
        blob = self._open.pop(digest, None)
        if blob is not None:
            blob.discard()


def _names(digest: str, order: dict[str, Any]) -> bool:
    return any(file.get("sha256") == digest for file in order["files"])


class _Blob:
    """One file on its way into the cache."""

    def __init__(self, partial: str, digest: str, size: int) -> None:
        self._partial, self._digest, self._size = partial, digest, size
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(partial, flags, 0o600)
        self._hash, self._at = hashlib.sha256(), 0

    @property
    def is_full(self) -> bool:
        return self._at >= self._size

    def add(self, offset: int, data: bytes) -> None:
        if offset != self._at:
            return  # of a sender that goes on from before a reconnect; the right ones will come
        if self._at + len(data) > self._size:
            raise BadTree(f"more than the {self._size} bytes that were announced")
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self._hash.update(data)
        self._at += len(data)

    def settle(self, path: str) -> None:
        os.close(self._fd)
        self._fd = -1
        if self._hash.hexdigest() != self._digest:
            raise BadTree("what came is not what was announced (SHA-256)")
        os.rename(self._partial, path)

    def discard(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        with contextlib.suppress(OSError):
            os.unlink(self._partial)


def place(into: str, files: Iterable[dict[str, Any]], path_of: Callable[[str], str]) -> None:
    """Make `into` hold exactly `files`; what was there before is gone.

    Raises OSError, and NotInCache for a file that has to be sent (again).
    """
    fresh = f"{into}.{os.getpid()}.incoming"
    remove(fresh)
    run = os.path.dirname(os.path.dirname(into))
    os.makedirs(os.path.dirname(run), exist_ok=True)  # maybe of several users: as they like it
    make_folders(os.path.dirname(into))
    os.mkdir(fresh)
    try:
        for file in files:
            target = os.path.join(fresh, file["path"])
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if "link" in file:
                os.symlink(file["link"], target)
            else:
                _copy(path_of(file["sha256"]), file["sha256"], target, int(file["mode"]) & 0o777)
                if "mtime_ns" in file:
                    os.utime(target, ns=(file["mtime_ns"], file["mtime_ns"]))
        old = f"{into}.{os.getpid()}.replaced"
        with contextlib.suppress(FileNotFoundError):
            os.rename(into, old)
        os.rename(fresh, into)
        remove(old)
    except BaseException:
        remove(fresh)
        raise


def _copy(source: str, digest: str, target: str, mode: int) -> None:
    """What lies in the cache is trusted no further than its digest goes."""
    try:
        reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            raise NotInCache(digest) from error
        raise
    try:
        found = hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        writer = os.open(target, flags, mode | 0o600)
        try:
            os.fchmod(writer, mode | 0o600)
            while data := os.read(reader, _CHUNK):
                found.update(data)
                view = memoryview(data)
                while view:
                    view = view[os.write(writer, view) :]
        finally:
            os.close(writer)
        if found.hexdigest() != digest:
            raise NotInCache(digest)
        with contextlib.suppress(OSError):
            os.utime(reader)  # it is in use: see agent.cache
    finally:
        os.close(reader)


def remove(folder: str) -> None:
    """A folder and all below it, links themselves and never what they lead to."""
    if os.path.islink(folder):
        os.unlink(folder)
        return
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return
        raise
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(folder)
