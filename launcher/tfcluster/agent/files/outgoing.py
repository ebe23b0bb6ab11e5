"""Files that a node sends: listings of folders, and contents at a limited rate."""

from __future__ import annotations

import hashlib
import os

from tfcluster.agent import budgets
from tfcluster.agent.error_text import reason_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Say = Callable[[dict[str, Any]], None]
    SendBytes = Callable[[str, int, bytes], None]
    from typing import Any


_CHUNK = 256 << 10
"""Log bytes and exits wait no longer than one of these takes to be sent."""
_WINDOW = 8 << 20
"""Bytes under way at most: what the other side has not written yet waits here."""
_PAGE_BYTES = 1 << 20
_ENTRY_BYTES = 64
"""Of an entry without its path, which JSON may blow up sixfold."""
_BURST_S = 0.05
_SIGN_S = 1.0
"""Between two signs of life of a reading whose rate allows nothing more yet."""


class Outgoing:
    """Serves `scan` and `read` orders, the readings by turns."""

    def __init__(
        self, say: Say, send_bytes: SendBytes, alive: Callable[[int], None] = lambda number: None
    ) -> None:
        """`alive`: is called again and again while an order takes long."""
        self._say, self._send_bytes, self._alive = say, send_bytes, alive
        self._readings: dict[int, _Reading] = {}

    def scan(self, order: dict[str, Any]) -> None:
        """Every file and folder below `folder`, links left out; in as many answers as fit into
        frames, all but the last with `more`. Where there are more than `most`, or their names are
        too long together, the last says `left_off`."""
        number, size, count, names = order["id"], 0, 0, 0
        entries: list[list[Any]] = []
        for entry in walk(order["folder"], "", lambda: self._alive(number)):
            count, names = count + 1, names + len(entry[0])
            if count > order["most"] or names > budgets.LISTED_BYTES:
                self._say({"type": "scanned", "id": number, "entries": [], "left_off": True})
                return
            entries.append(list(entry))
            size += _ENTRY_BYTES + 6 * len(entry[0])
            if size > _PAGE_BYTES:
                self._say({"type": "scanned", "id": number, "entries": entries, "more": True})
                entries, size = [], 0
        self._say({"type": "scanned", "id": number, "entries": entries})

    def read(self, order: dict[str, Any]) -> None:
        """Send `folder`/`path` from `offset` up to `size`, `rate` bytes a second at most (null:
        all there is), then the SHA-512 of what lies between `start` and `size`. `grows`: more
        may be written behind `size` meanwhile."""
        try:
            self._readings[order["id"]] = _Reading(order)
        except OSError as error:
            self._end(order["id"], error=reason_of(error))

    def got(self, order: dict[str, Any]) -> None:
        """The other side has written all before `at`."""
        if (reading := self._readings.get(order["id"])) is not None:
            reading.may_send_to = order["at"] + _WINDOW

    def hurry(self, order: dict[str, Any]) -> None:
        """No task needs this machine any more."""
        if (reading := self._readings.get(order["id"])) is not None:
            reading.rate, reading.ready_at = 0.0, 0.0

    def cancel(self, number: int) -> None:
        """Nobody wants it any more."""
        if (reading := self._readings.pop(number, None)) is not None:
            reading.close()

    def forget(self) -> None:
        """The connection broke: what is still wanted will be asked for again."""
        for number in list(self._readings):
            self.cancel(number)

    def patience(self, now: float) -> float | None:
        """Seconds until `turn` has something to do; None: it waits for an order."""
        ready = [r.ready_at for r in self._readings.values() if r.has_leave]
        return min(_SIGN_S, max(0.0, min(ready) - now)) if ready else None

    def turn(self, now: float) -> None:
        """One slice of the reading that has waited longest, if its rate allows it."""
        has_leave = [n for n, r in self._readings.items() if r.has_leave]
        ready = [n for n in has_leave if self._readings[n].ready_at <= now]
        if not ready:
            for number in has_leave:  # its rate is low
                self._alive(number)
            return
        number = min(ready, key=lambda n: self._readings[n].ready_at)
        reading = self._readings[number]
        try:
            data = reading.next()
        except OSError as error:
            self._drop(number, error=reason_of(error))
            return
        if not data:
            self._drop(number, sha512=reading.digest, is_unchanged=reading.is_unchanged())
            return
        reading.ready_at = max(now - _BURST_S, reading.ready_at)
        if reading.was_asked_for(data):
            reading.ready_at += len(data) / reading.rate if reading.rate else 0.0
            self._send_bytes(str(number), reading.sent_at, data)
        else:
            self._alive(number)

    def _drop(self, number: int, **facts: Any) -> None:
        self.cancel(number)
        self._end(number, **facts)

    def _end(self, number: int, **facts: Any) -> None:
        self._say({"type": "read_end", "id": number, **facts})


class _Reading:
    """One file, or what was added to one, on its way home."""

    def __init__(self, order: dict[str, Any]) -> None:
        """Raises OSError for what is no plain file."""
        self.rate: float = order.get("rate") or 0.0
        self.ready_at = 0.0
        self._offset: int = order["offset"]
        self._at: int = order.get("start", 0)
        self.may_send_to = self._offset + _WINDOW
        self._expected = (int(order["size"]), int(order["mtime_ns"]))
        self._grows = bool(order.get("grows"))
        self._path = os.path.join(order["folder"], order["path"])
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe has no end
        self._fd = os.open(self._path, flags)
        self._hash = hashlib.sha512()
        self.sent_at = 0

    @property
    def has_leave(self) -> bool:
        """Whether the other side takes more."""
        return bool(self._at < self.may_send_to)

    def next(self) -> bytes:
        """The next bytes of the file; none at its end."""
        end = self._expected[0] + (0 if self._grows else 1)  # one more shows that it has grown
        data = os.pread(self._fd, max(0, min(_CHUNK, end - self._at)), self._at)
        self._hash.update(data)
        self.sent_at = self._at
        self._at += len(data)
        return data

    def was_asked_for(self, data: bytes) -> bool:
        """False for what had come before the connection broke: it is only hashed again."""
        return self.sent_at + len(data) > self._offset

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def is_unchanged(self) -> bool:
        """Whether the name still leads to this file, as it was when it was listed."""
        try:
            named, read = os.stat(self._path, follow_symlinks=False), os.fstat(self._fd)
        except OSError:
            return False
        if (named.st_dev, named.st_ino) != (read.st_dev, read.st_ino):
            return False
        size, mtime_ns = self._expected
        if self._grows:
            return read.st_size >= size
        return (read.st_size, read.st_mtime_ns) == (size, mtime_ns)

    def close(self) -> None:
        os.close(self._fd)


_NOTHING = (FileNotFoundError, NotADirectoryError, PermissionError)
"""It has gone, or nobody may look at it."""


UNREADABLE = -1
"""Stands for the size of a folder that cannot be looked into: it is no empty one."""


def walk(
    folder: str, inside: str, alive: Callable[[], None] = lambda: None
) -> Iterator[tuple[str, int, int]]:
    """(path, size, mtime in ns), names in order; of folders a path that ends in a slash, and 0 or
    `UNREADABLE` for a size.

    `alive` is called for each name that is found. Raises OSError where the disk fails or `folder`
    itself cannot be read: that is not the same as nothing.
    """
    children = []
    try:
        with os.scandir(folder) as found:
            for child in found:
                children.append(child)
                alive()
    except _NOTHING as error:
        if not inside and isinstance(error, PermissionError):
            raise
        return
    children.sort(key=lambda child: child.name)
    for child in children:
        alive()
        try:
            if child.is_dir(follow_symlinks=False):
                size = 0 if os.access(child.path, os.R_OK | os.X_OK) else UNREADABLE
                yield f"{inside}{child.name}/", size, child.stat().st_mtime_ns
                yield from walk(child.path, f"{inside}{child.name}/", alive)
            elif child.is_file(follow_symlinks=False):
                file = child.stat(follow_symlinks=False)
                yield f"{inside}{child.name}", file.st_size, file.st_mtime_ns
        except _NOTHING:
            continue


_MOST = 256
"""Bytes of a mark."""


def look(order: dict[str, Any]) -> dict[str, Any]:
    """The first of `folders` in which the file `name` says `text`, has the number `inode`, and
    in which this user may write; null where there is none."""
    found = (os.path.expanduser(folder) for folder in order["folders"])
    seen = next((folder for folder in found if _is_it(folder, order)), None)
    return {"type": "looked", "id": order["id"], "folder": seen}


def _is_it(folder: str, order: dict[str, Any]) -> bool:
    path = os.path.join(folder, order["name"])
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        is_same = os.fstat(fd).st_ino == order["inode"]
        is_same = is_same and os.read(fd, _MOST) == order["text"].encode()
    except OSError:
        return False
    finally:
        os.close(fd)
    return is_same and os.access(folder, os.W_OK | os.X_OK)
