"""Files of this node that the coordinator asks for: a listing, and contents at a bounded rate."""

from __future__ import annotations

import hashlib
import os

from tfcluster.agent import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tfcluster.agent.line import Line

_CHUNK = 256 << 10
"""Log bytes and exits wait no longer than one of these takes to be sent."""


class Outgoing:
    """Serves `scan` and `read` orders; readings are sent when the line has room for them."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._readings: list[_Reading] = []
        self._may_send_at = 0.0

    def scan(self, order: dict[str, Any]) -> None:
        """Every file and folder below `folder`, links left out."""
        entries = [list(entry) for entry in walk(order["folder"], "")]
        self._line.say({"type": "scanned", "id": order["id"], "entries": entries})

    def read(self, order: dict[str, Any]) -> None:
        """Send `folder`/`path` from `offset` on, then the SHA-256 of all of it."""
        try:
            self._readings.append(_Reading(order))
        except OSError as error:
            self._end(order["id"], error=error.strerror or str(error))

    def forget(self) -> None:
        """The connection broke: what is still wanted will be asked for again."""
        while self._readings:
            self._readings.pop().close()

    def deadline(self) -> float | None:
        return self._may_send_at if self._readings and self._line.room > 0 else None

    def on_time(self, now: float) -> None:
        """Send what there is room for, and no more than the rate allows."""
        while self._readings and self._line.room > 0 and now >= self._may_send_at:
            reading = self._readings[0]
            try:
                data = reading.next()
            except OSError as error:
                self._drop(reading, error=error.strerror or str(error))
                continue
            if not data:
                self._drop(reading, sha256=reading.digest, is_unchanged=reading.is_unchanged())
                continue
            seconds = len(data) / reading.rate if reading.rate else 0.0
            self._may_send_at = max(now - 0.05, self._may_send_at) + seconds
            if reading.was_asked_for(data):
                frame = protocol.data_frame(protocol.FILE, reading.name, reading.sent_at, data)
                self._line.queue(frame)

    def _drop(self, reading: _Reading, **facts: Any) -> None:
        self._readings.remove(reading)
        reading.close()
        self._end(reading.number, **facts)

    def _end(self, number: int, **facts: Any) -> None:
        self._line.say({"type": "read_end", "id": number, **facts})


class _Reading:
    """One file on its way home."""

    def __init__(self, order: dict[str, Any]) -> None:
        """Raises OSError for what is no plain file of that size and time."""
        self.number: int = order["id"]
        self.name = str(order["id"])
        self.rate: float = order.get("rate") or 0.0
        self._offset: int = order["offset"]
        self._path = os.path.join(order["folder"], order["path"])
        self._expected = (order["size"], order["mtime_ns"])
        self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._hash, self._at = hashlib.sha256(), 0
        self.sent_at = 0

    def next(self) -> bytes:
        """The next bytes of the file; none at its end."""
        data = os.pread(self._fd, _CHUNK, self._at)
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
        same = (named.st_dev, named.st_ino) == (read.st_dev, read.st_ino)
        return same and (read.st_size, read.st_mtime_ns) == self._expected

    def close(self) -> None:
        os.close(self._fd)


def walk(folder: str, inside: str) -> Iterator[tuple[str, int, int]]:
    """(path, size, mtime in ns), names in order; of folders a path that ends in a slash."""
    try:
        children = sorted(os.scandir(folder), key=lambda child: child.name)
    except OSError:
        return
    for child in children:
        try:
            if child.is_dir(follow_symlinks=False):
                yield f"{inside}{child.name}/", 0, child.stat().st_mtime_ns
                yield from walk(child.path, f"{inside}{child.name}/")
            elif child.is_file(follow_symlinks=False):
                found = child.stat(follow_symlinks=False)
                yield f"{inside}{child.name}", found.st_size, found.st_mtime_ns
        except FileNotFoundError:
            continue
