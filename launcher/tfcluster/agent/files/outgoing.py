"""Files that a node sends: listings of folders, and contents at a limited rate."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator

from tfcluster.agent import budgets
from tfcluster.agent import catalogue as msg
from tfcluster.agent.error_text import reason_of
from tfcluster.agent.message_fields import UNREADABLE

Send = Callable[[msg.FileReport], None]
SendBytes = Callable[[str, int, bytes], None]

_CHUNK = 256 << 10
"""The bytes sent at once; log bytes and exits wait for one such piece at most."""
_WINDOW = 8 << 20
"""The bytes sent and not yet written by the other side, at most."""
_PAGE_BYTES = 1 << 20
_ENTRY_BYTES = 64
"""The bytes of an entry without its path; JSON may make a path six times longer."""
_BURST_S = 0.05
_KEEP_ALIVE_S = 1.0
"""The time between two signs of life of a reading that waits for its rate."""
_GONE_ERRORS = (FileNotFoundError, NotADirectoryError, PermissionError)
"""The errors for a file that no longer exists or that this user may not read."""
_MARK_BYTES = 256


class Outgoing:
    """The `scan` and `read` orders of a node; the readings take turns."""

    def __init__(
        self,
        send: Send,
        send_bytes: SendBytes,
        keep_alive: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Prepare; `keep_alive` is called repeatedly during a long order."""
        self._send, self._send_bytes, self._keep_alive = send, send_bytes, keep_alive
        self._readings: dict[int, _SentFile] = {}
        self._listed: dict[str, dict[str, tuple[int, int]]] = {}
        """Folder → path → size and time, as they were listed for who wants changes only."""

    def scan(self, order: msg.Scan) -> None:
        """List every file and folder below `folder`, except links.

        The list comes in as many answers as fit into frames, all but the last with `more`. If
        there are more than `most` entries, or their names are too long, the last answer is empty
        and has `left_off`.
        """
        number, size, count, names = order.id, 0, 0, 0
        entries: list[tuple[str, int, int]] = []
        listed = self._listed.setdefault(order.folder, {}) if order.changes else None
        for entry in walk(order.folder, "", lambda: self._keep_alive(number)):
            count, names = count + 1, names + len(entry[0])
            if count > order.most or names > budgets.LISTED_BYTES:
                self._send(msg.Scanned(id=number, entries=[], left_off=True))
                return
            if listed is not None:
                if listed.get(entry[0]) == entry[1:]:
                    continue
                listed[entry[0]] = entry[1:]
            entries.append(entry)
            size += _ENTRY_BYTES + 6 * len(entry[0])
            if size > _PAGE_BYTES:
                self._send(msg.Scanned(id=number, entries=entries, more=True))
                entries, size = [], 0
        self._send(msg.Scanned(id=number, entries=entries))

    def read(self, order: msg.Read) -> None:
        """Begin to send a file."""
        try:
            self._readings[order.id] = _SentFile(order)
        except OSError as error:
            self._send(msg.FileFailed(id=order.id, error=reason_of(error)))

    def got(self, order: msg.Written) -> None:
        """Note that the other side has written all bytes before `at`."""
        if (reading := self._readings.get(order.id)) is not None:
            reading.may_send_to = order.at + _WINDOW

    def hurry(self, order: msg.LiftRate) -> None:
        """Lift the rate limit: no task needs this machine any more."""
        if (reading := self._readings.get(order.id)) is not None:
            reading.rate, reading.ready_at = 0.0, 0.0

    def cancel(self, number: int) -> None:
        """Drop a reading."""
        if (reading := self._readings.pop(number, None)) is not None:
            reading.close()

    def forget(self) -> None:
        """Drop all readings after a lost connection: the coordinator repeats its orders."""
        for number in list(self._readings):
            self.cancel(number)

    def patience(self, now: float) -> float | None:
        """Return the seconds until `turn` has something to do, or None without a reading."""
        ready = [r.ready_at for r in self._readings.values() if r.may_send]
        return min(_KEEP_ALIVE_S, max(0.0, min(ready) - now)) if ready else None

    def turn(self, now: float) -> None:
        """Send one piece of the reading that has waited longest, if its rate allows it."""
        may_send = [n for n, r in self._readings.items() if r.may_send]
        ready = [n for n in may_send if self._readings[n].ready_at <= now]
        if not ready:
            for number in may_send:  # their rates are low
                self._keep_alive(number)
            return
        number = min(ready, key=lambda n: self._readings[n].ready_at)
        reading = self._readings[number]
        try:
            data = reading.next_bytes()
        except OSError as error:
            self.cancel(number)
            self._send(msg.FileFailed(id=number, error=reason_of(error)))
            return
        if not data:
            is_unchanged = reading.is_unchanged()
            self.cancel(number)
            self._send(msg.ReadEnd(id=number, sha512=reading.digest, is_unchanged=is_unchanged))
            return
        reading.ready_at = max(now - _BURST_S, reading.ready_at)
        if reading.is_new(data):
            reading.ready_at += len(data) / reading.rate if reading.rate else 0.0
            self._send_bytes(str(number), reading.sent_from, data)
        else:
            self._keep_alive(number)


class _SentFile:
    """One file, or an appended part of it, that is being sent to the coordinator."""

    def __init__(self, order: msg.Read) -> None:
        """Open the file. Raises OSError, also for anything but a regular file."""
        self.rate = order.rate or 0.0
        self.ready_at = 0.0
        self._offset, self._at, self._grows = order.offset, order.start, order.grows
        self.may_send_to = self._offset + _WINDOW
        self._expected = (order.size, order.mtime_ns)
        self._path = os.path.join(order.folder, order.path)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would block
        self._fd = os.open(self._path, flags)
        self._hash = hashlib.sha512()
        self.sent_from = 0

    @property
    def may_send(self) -> bool:
        """True if the window has room."""
        return bool(self._at < self.may_send_to)

    def next_bytes(self) -> bytes:
        """Return the next bytes of the file, or none at its end."""
        end = self._expected[0] + (0 if self._grows else 1)  # one byte more shows an appended file
        data = os.pread(self._fd, max(0, min(_CHUNK, end - self._at)), self._at)
        self._hash.update(data)
        self.sent_from = self._at
        self._at += len(data)
        return data

    def is_new(self, data: bytes) -> bool:
        """Return False for bytes that were sent over an earlier connection, and are only hashed."""
        return self.sent_from + len(data) > self._offset

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def is_unchanged(self) -> bool:
        """Return whether the path still names this file, unchanged since it was listed."""
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


def walk(
    folder: str,
    inside: str,
    keep_alive: Callable[[], None] = lambda: None,
    enters: Callable[[str], bool] = lambda path: True,
) -> Iterator[tuple[str, int, int]]:
    """Yield (path, size, mtime in ns) of every file and folder below `folder`, sorted by name.

    A folder's path ends in a slash, and its size is 0 or `UNREADABLE`; only those that it `enters`
    are searched. `keep_alive` is called for each name. Raises OSError if the disk fails or `folder`
    itself cannot be read, which is not the same as an empty folder.
    """
    children = []
    try:
        with os.scandir(folder) as entries:
            for child in entries:
                children.append(child)
                keep_alive()
    except _GONE_ERRORS as error:
        if not inside and isinstance(error, PermissionError):
            raise
        return
    children.sort(key=lambda child: child.name)
    for child in children:
        keep_alive()
        try:
            if child.is_dir(follow_symlinks=False):
                size = 0 if os.access(child.path, os.R_OK | os.X_OK) else UNREADABLE
                yield f"{inside}{child.name}/", size, child.stat().st_mtime_ns
                if enters(f"{inside}{child.name}"):
                    yield from walk(child.path, f"{inside}{child.name}/", keep_alive, enters)
            elif child.is_file(follow_symlinks=False):
                file = child.stat(follow_symlinks=False)
                yield f"{inside}{child.name}", file.st_size, file.st_mtime_ns
        except _GONE_ERRORS:
            continue


def find_marked_folder(order: msg.FindMarkedFolder) -> msg.MarkedFolder:
    """Find the folder with the coordinator's mark, which shows that both see the same disk.

    The answer has the first of `folders` that is writable and has a file `name` with the content
    `text` and the number `inode`, or null.
    """
    folders = (os.path.expanduser(folder) for folder in order.folders)
    marked = next((folder for folder in folders if _has_mark(folder, order)), None)
    return msg.MarkedFolder(id=order.id, folder=marked)


def _has_mark(folder: str, order: msg.FindMarkedFolder) -> bool:
    path = os.path.join(folder, order.name)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        is_same = os.fstat(fd).st_ino == order.inode
        is_same = is_same and os.read(fd, _MARK_BYTES) == order.text.encode()
    except OSError:
        return False
    finally:
        os.close(fd)
    return is_same and os.access(folder, os.W_OK | os.X_OK)
