"""File trees that a node receives; files that it already has are not sent again.

An order names a folder and its files, each by its SHA-512. The answer names the missing digests,
which then come as `F` frames. When all are there, the folder is built beside its place and renamed.
Code is kept in a content-addressed cache for the next run; other files are moved to their places,
not copied.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable

from tfcluster.agent import catalogue as msg
from tfcluster.agent.catalogue import FileEntry
from tfcluster.agent.error_text import reason_of
from tfcluster.agent.files.blobs import BadTree, Blob, NotInCache, copy, move
from tfcluster.agent.files.cache import new_transit_folder, remove, remove_older
from tfcluster.agent.message_fields import replace
from tfcluster.agent.net.private_folders import make_folders

Send = Callable[[msg.FileReport], None]
Put = Callable[[FileEntry, str], None]

_PAGE = 10_000
"""The digests in one answer: 0.7 MB."""
_STALE_S = 86_400.0
_DIGEST = re.compile("[0-9a-f]{128}")


def add_files(
    into: str,
    files: Iterable[FileEntry],
    removed: Iterable[str],
    put: Put,
) -> None:
    """Put each of `files` in its place below `into`, then remove the paths in `removed`.

    Other files stay. `put` creates a file under a free name. Raises OSError, BadTree for a path
    that a link of the task leads out of the folder, and what `put` raises.
    """
    make_folders(into)
    for file in files:
        target = _place(into, file.path)
        beside = f"{target}.{os.urandom(6).hex()}.incoming"
        try:
            put(file, beside)
            os.replace(beside, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
    for path in removed:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_place(into, path))


def replace_folder(
    into: str, files: Iterable[FileEntry], put: Put, *, kept: str | None = None
) -> None:
    """Replace the folder `into` by one with exactly `files`; a reader sees the old or the new.

    What it held before is removed, or moved to `kept`. Raises OSError and what `put` raises.
    """
    fresh = f"{into}.{os.getpid()}.incoming"
    remove(fresh)
    make_folders(fresh)
    try:
        for file in files:
            target = os.path.join(fresh, file.path)
            make_folders(os.path.dirname(target))
            put(file, target)
        old = f"{into}.{os.getpid()}.replaced"
        with contextlib.suppress(FileNotFoundError):
            os.rename(into, old)
        os.rename(fresh, into)
    except BaseException:
        remove(fresh)
        raise
    if kept is None or not os.path.isdir(old) or not os.listdir(old):
        remove(old)
    else:
        remove(kept)
        os.rename(old, kept)


def _place(into: str, path: str) -> str:
    target = os.path.join(into, path)
    folder = os.path.dirname(target)
    root = os.path.realpath(into)
    if os.path.commonpath([root, os.path.realpath(folder)]) != root:
        raise BadTree(f"{path!r} lies behind a link that leads out of the folder")
    make_folders(folder)
    return target


def _require_paths_inside(files: Iterable[FileEntry]) -> None:
    """Raise BadTree if a path or a link of `files` leads out of the folder."""
    links = set()
    for file in files:
        path = file.path
        if "\0" in path or {"", ".", ".."} & set(path.split("/")):
            raise BadTree(f"{path!r} is not a path below the folder")
        if file.link is not None:
            links.add(path)
            if not _is_inside(path, file.link):
                raise BadTree(f"{path!r} is a link that leads out of the folder")
        elif not _DIGEST.fullmatch(file.sha512 or ""):
            raise BadTree(f"{file.sha512!r} is not a SHA-512")
    for file in files:
        folder = os.path.dirname(file.path)
        while folder:
            if folder in links:
                raise BadTree(f"{file.path!r} lies behind a link")
            folder = os.path.dirname(folder)


def _is_inside(path: str, target: str) -> bool:
    """Return whether a link's target is inside the folder.

    All ``..`` must come first: after a name they could lead out through another link.
    """
    if not target or target.startswith("/") or "\0" in target:
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((n for n, part in enumerate(parts) if part != ".."), len(parts))
    return ups <= path.count("/") and ".." not in parts[ups:]


class Incoming:
    """The `receive` orders of a node, any number at a time."""

    def __init__(
        self,
        cache: str,
        send: Send,
        *,
        transit: str = "",
        keep_alive: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Prepare; `keep_alive` is called repeatedly during a long order."""
        self._keep_alive = keep_alive
        self._cached = os.path.join(cache, "files")
        self._transit = transit or new_transit_folder(cache)
        """The folder of files that are not to be cached, until they are moved to their places."""
        self._send = send
        self._orders: dict[int, tuple[msg.Receive, set[str]]] = {}
        """Number → the order with all `files` listed so far, and the digests that are wanted."""
        self._senders: dict[str, int] = {}
        """Digest → the order under which it is requested, for all orders that need it."""
        self._open: dict[str, Blob] = {}
        remove_older(os.path.dirname(self._transit), _STALE_S)

    def receive(self, order: msg.Receive) -> None:
        """Begin an order, or go on with its list of files."""
        number = order.id
        files = self._orders[number][0].files if number in self._orders else []
        files += order.files
        self._orders[number] = replace(order, files=files), set()
        if order.more:
            return
        if order.unless_there and os.path.isdir(order.into):
            del self._orders[number]
            self._send(msg.Received(id=number))
            return
        try:
            _require_paths_inside(files)
            _require_paths_inside(msg.FileEntry(path=path, link=".") for path in order.removed)
            self._request_missing(number)
            self._finish_if_complete(number)
        except (OSError, BadTree) as error:
            self._fail(number, error)

    def take(self, digest: str, offset: int, data: bytes) -> None:
        """Add bytes to a requested file, which is complete at its announced size."""
        sender = self._senders.get(digest)
        if sender is None:
            return
        waiting = self._waiting_for(digest)
        try:
            blob = self._open.get(digest) or self._begin(digest, sender)
            if blob.add(offset, data):
                self._send(msg.Took(id=sender, digest=digest, at=blob.at))
            if not blob.is_full:
                return
            del self._open[digest], self._senders[digest]
            blob.finish()
        except (OSError, BadTree) as error:
            for number in waiting:
                self._fail(number, error)
            return
        for number in waiting:
            self._orders[number][1].discard(digest)
        for number in waiting:
            try:
                self._finish_if_complete(number)
            except (OSError, BadTree) as error:
                self._fail(number, error)

    def cancel(self, number: int) -> None:
        """Drop an order; files that other orders need too are requested under one of those."""
        self._orders.pop(number, None)
        for digest in [d for d, n in self._senders.items() if n == number]:
            del self._senders[digest]
            if (blob := self._open.pop(digest, None)) is not None:
                blob.discard()
            if waiting := self._waiting_for(digest):
                self._request(waiting[0], [digest])

    def forget(self) -> None:
        """Drop all orders after a lost connection: the coordinator repeats them."""
        for blob in self._open.values():
            blob.discard()
        self._open.clear()
        self._senders.clear()
        self._orders.clear()

    def _waiting_for(self, digest: str) -> list[int]:
        return [number for number, (_, wanted) in self._orders.items() if digest in wanted]

    def _request_missing(self, number: int, *gone: str) -> None:
        """Request an order's missing files, except those that another order has requested."""
        order, wanted = self._orders[number]
        digests = {file.sha512 for file in order.files if file.sha512 is not None}
        missing = {digest for digest in digests if self._find(digest) is None} | {*gone}
        wanted |= missing
        self._request(number, sorted(missing - self._senders.keys()))

    def _request(self, number: int, digests: list[str]) -> None:
        self._senders.update(dict.fromkeys(digests, number))
        for at in range(0, max(1, len(digests)), _PAGE):
            self._send(msg.Wants(id=number, digests=digests[at : at + _PAGE]))

    def _begin(self, digest: str, number: int) -> Blob:
        order, _ = self._orders[number]
        size = next(file.size for file in order.files if file.sha512 == digest)
        folder = self._cached if order.keep else self._transit
        make_folders(folder)
        self._open[digest] = blob = Blob(folder, digest, size)
        return blob

    def _find(self, digest: str) -> str | None:
        places = (os.path.join(folder, digest) for folder in (self._transit, self._cached))
        return next((path for path in places if os.path.exists(path)), None)

    def _finish_if_complete(self, number: int) -> None:
        order, wanted = self._orders[number]
        if wanted:
            return
        del self._orders[number]
        others = {file.sha512 for other, _ in self._orders.values() for file in other.files}
        try:
            self._build(order, others)
        except NotInCache as error:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._cached, error.digest))
            self._orders[number] = order, wanted
            self._request_missing(number, error.digest)
            return
        self._send(msg.Received(id=number))

    def _fail(self, number: int, error: Exception) -> None:
        self.cancel(number)
        self._send(msg.FileFailed(id=number, error=reason_of(error)))

    def _build(self, order: msg.Receive, others: set[str | None]) -> None:
        """Build an order's folder from the files that the node has now.

        A file that is not cached is moved to the last place that needs it, other places get copies:
        two tasks must not share a file that one of them may overwrite. Raises OSError, BadTree,
        and NotInCache for a file that has to be sent again.
        """
        into, files = order.into, order.files
        remaining = Counter(file.sha512 for file in files)

        keep_alive = functools.partial(self._keep_alive, order.id)

        def put(file: FileEntry, target: str) -> None:
            keep_alive()
            if file.link is not None:
                os.symlink(file.link, target)
                return
            remaining[file.sha512] -= 1
            is_last = not remaining[file.sha512] and file.sha512 not in others
            self._put(file, target, keep_alive, is_last=is_last)

        run = os.path.dirname(os.path.dirname(into))
        os.makedirs(os.path.dirname(run), exist_ok=True)  # maybe shared by users: not private
        if order.adds:
            add_files(into, files, order.removed, put)
        else:
            replace_folder(into, files, put)

    def _put(
        self, file: FileEntry, target: str, keep_alive: Callable[[], None], *, is_last: bool
    ) -> None:
        digest, mode = str(file.sha512), file.mode & 0o700 | 0o600
        source = self._find(digest)
        if source is None:
            raise NotInCache(digest)
        if is_last and os.path.dirname(source) == self._transit:
            move(source, digest, target, mode, keep_alive)
        else:
            copy(source, digest, target, mode, keep_alive)
        if file.mtime_ns is not None:
            os.utime(target, ns=(file.mtime_ns, file.mtime_ns))
