"""File trees that a node receives; files that it already has are not sent again.

An order names a folder and its files, each by its SHA-512. The answer names the missing digests,
which then come as `F` frames. When all are there, the folder is built beside its place and renamed.
Code is kept in a content-addressed cache for the next run; other files are moved to their places,
not copied.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter

from tfcluster.agent.error_text import reason_of
from tfcluster.agent.files.blobs import BadTree, Blob, NotInCache, check, copy, move
from tfcluster.agent.files.cache import new_passing, remove, remove_older
from tfcluster.agent.net.private_folders import make_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Say = Callable[[dict[str, Any]], None]


def add(
    into: str,
    files: Iterable[dict[str, Any]],
    removed: Iterable[str],
    put: Callable[[dict[str, Any], str], None],
) -> None:
    """Put each of `files` in its place below `into`, then take away what is `removed`.

    What else is there stays. `put` makes a file under a name that is free. Raises OSError, BadTree
    for a place that a link of the task's leads out of the folder, and what `put` raises.
    """
    make_folders(into)
    for file in files:
        target = _place(into, file["path"])
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


def _place(into: str, path: str) -> str:
    target = os.path.join(into, path)
    folder = os.path.dirname(target)
    root = os.path.realpath(into)
    if os.path.commonpath([root, os.path.realpath(folder)]) != root:
        raise BadTree(f"{path!r} lies behind a link that leads out of the folder")
    make_folders(folder)
    return target


_PAGE = 10_000
"""Digests in one answer: 0.7 MB."""
_STALE_S = 86_400.0


class Incoming:
    """Serves `receive` orders, one or several at a time."""

    def __init__(
        self,
        cache: str,
        say: Say,
        *,
        passing: str = "",
        alive: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`alive`: is called again and again while an order takes long."""
        self._alive = alive
        self._kept = os.path.join(cache, "files")
        self._passing = passing or new_passing(cache)
        """Of orders whose files are not to be kept, until they are moved into their places."""
        self._say = say
        self._parts: dict[int, list[dict[str, Any]]] = {}
        self._orders: dict[int, dict[str, Any]] = {}
        self._wanted: dict[int, set[str]] = {}
        self._senders: dict[str, int] = {}
        """Digest → the order that is to send it, for all that want it."""
        self._open: dict[str, Blob] = {}
        remove_older(os.path.dirname(self._passing), _STALE_S)

    def receive(self, order: dict[str, Any]) -> None:
        """`id`, `into` (the folder), `files`: path with sha512, size, mode, mtime_ns, or with
        link; `more`: the list goes on in the next order of this `id`; `keep`: whether the files
        stay in the cache; `unless_there`: a folder that exists stays as it is; `adds`: so does
        what else is in it, but for what is `removed`."""
        number = order["id"]
        parts = self._parts.setdefault(number, [])
        parts += order["files"]
        if order.get("more"):
            return
        files = self._parts.pop(number)
        if order.get("unless_there") and os.path.isdir(order["into"]):
            self._say({"type": "received", "id": number})
            return
        try:
            check(files)
            check({"path": path, "link": "."} for path in order.get("removed", ()))
            self._orders[number] = {**order, "files": files}
            self._want(number)
            self._finish_if_complete(number)
        except (OSError, BadTree) as error:
            self._fail(number, error)

    def take(self, digest: str, offset: int, data: bytes) -> None:
        """Bytes of a wanted file; its last come when its announced size is reached."""
        sender = self._senders.get(digest)
        if sender is None:
            return
        waiting = [n for n, wanted in self._wanted.items() if digest in wanted]
        try:
            blob = self._open.get(digest) or self._begin(digest, sender)
            if blob.add(offset, data):
                self._say({"type": "took", "id": sender, "digest": digest, "at": blob.at})
            if not blob.is_full:
                return
            del self._open[digest], self._senders[digest]
            blob.settle()
        except (OSError, BadTree) as error:
            for number in waiting:
                self._fail(number, error)
            return
        for number in waiting:
            self._wanted[number].discard(digest)
        for number in waiting:
            try:
                self._finish_if_complete(number)
            except (OSError, BadTree) as error:
                self._fail(number, error)

    def cancel(self, number: int) -> None:
        """Nobody wants it any more; what others want of it is asked of them."""
        self._parts.pop(number, None)
        self._orders.pop(number, None)
        self._wanted.pop(number, None)
        for digest in [d for d, n in self._senders.items() if n == number]:
            del self._senders[digest]
            if (blob := self._open.pop(digest, None)) is not None:
                blob.discard()
            heirs = [n for n, wanted in self._wanted.items() if digest in wanted]
            if heirs:
                self._ask(heirs[0], [digest])

    def forget(self) -> None:
        """The connection broke: what is still wanted is ordered again, from the beginning."""
        for blob in self._open.values():
            blob.discard()
        self._open.clear()
        self._senders.clear()
        self._parts.clear()
        self._orders.clear()
        self._wanted.clear()

    def _want(self, number: int, *lacking: str) -> None:
        """Ask for what is not here; what another order has asked for comes once, for both."""
        digests = {file["sha512"] for file in self._orders[number]["files"] if "sha512" in file}
        missing = {digest for digest in digests if self._find(digest) is None} | {*lacking}
        self._wanted[number] = missing
        self._ask(number, sorted(missing - self._senders.keys()))

    def _ask(self, number: int, digests: list[str]) -> None:
        self._senders.update(dict.fromkeys(digests, number))
        for at in range(0, max(1, len(digests)), _PAGE):
            page = digests[at : at + _PAGE]
            self._say({"type": "wants", "id": number, "digests": page})

    def _begin(self, digest: str, number: int) -> Blob:
        order = self._orders[number]
        size = next(int(f["size"]) for f in order["files"] if f.get("sha512") == digest)
        folder = self._kept if order.get("keep") else self._passing
        make_folders(folder)
        self._open[digest] = blob = Blob(folder, digest, size)
        return blob

    def _find(self, digest: str) -> str | None:
        places = (os.path.join(folder, digest) for folder in (self._passing, self._kept))
        return next((path for path in places if os.path.exists(path)), None)

    def _finish_if_complete(self, number: int) -> None:
        if self._wanted[number]:
            return
        order = self._orders.pop(number)
        others = {f.get("sha512") for o in self._orders.values() for f in o["files"]}
        try:
            self._place(order, others)
        except NotInCache as lack:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._kept, lack.digest))
            self._orders[number] = order
            self._want(number, lack.digest)
            return
        del self._wanted[number]
        self._say({"type": "received", "id": number})

    def _fail(self, number: int, error: Exception) -> None:
        self.cancel(number)
        reason = reason_of(error)
        self._say({"type": "receive_failed", "id": number, "error": reason})

    def _place(self, order: dict[str, Any], others: set[str | None]) -> None:
        """Make what `order` says of what is here now.

        What passes is moved to the last place that wants it, the others get copies: two tasks
        must not share a file that one of them may write anew. Raises OSError, BadTree, and
        NotInCache for a file that has to be sent (again).
        """
        into, files = order["into"], order["files"]
        left = Counter(file.get("sha512") for file in files)

        def put(file: dict[str, Any], target: str) -> None:
            alive()
            if "link" in file:
                os.symlink(file["link"], target)
                return
            left[file["sha512"]] -= 1
            is_last = not left[file["sha512"]] and file["sha512"] not in others
            self._put(file, target, alive, is_last=is_last)

        def alive() -> None:
            self._alive(order["id"])

        run = os.path.dirname(os.path.dirname(into))
        os.makedirs(os.path.dirname(run), exist_ok=True)  # maybe of several users: as they like it
        if order.get("adds"):
            add(into, files, order.get("removed", ()), put)
        else:
            _replace(into, files, put)

    def _put(
        self, file: dict[str, Any], target: str, alive: Callable[[], None], *, is_last: bool
    ) -> None:
        digest, mode = file["sha512"], int(file["mode"]) & 0o700 | 0o600
        source = self._find(digest)
        if source is None:
            raise NotInCache(digest)
        if is_last and os.path.dirname(source) == self._passing:
            move(source, digest, target, mode, alive)
        else:
            copy(source, digest, target, mode, alive)
        if "mtime_ns" in file:
            os.utime(target, ns=(file["mtime_ns"], file["mtime_ns"]))


def _replace(
    into: str, files: list[dict[str, Any]], put: Callable[[dict[str, Any], str], None]
) -> None:
    """Make `into` hold exactly `files`; what was there before is gone."""
    fresh = f"{into}.{os.getpid()}.incoming"
    remove(fresh)
    make_folders(fresh)
    try:
        for file in files:
            target = os.path.join(fresh, file["path"])
            make_folders(os.path.dirname(target))
            put(file, target)
        old = f"{into}.{os.getpid()}.replaced"
        with contextlib.suppress(FileNotFoundError):
            os.rename(into, old)
        os.rename(fresh, into)
        remove(old)
    except BaseException:
        remove(fresh)
        raise
