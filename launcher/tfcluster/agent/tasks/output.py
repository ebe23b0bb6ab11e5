"""One task's output: its pipe, its log file, and the mask over secrets; lines are not parsed.

The pipe is large and drained in large reads, so a task never waits for a disk or a coordinator.
If the file cannot be written (disk full), draining goes on and the lost bytes are counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from tfcluster.agent.error_text import reason_of
from tfcluster.agent.net.private_folders import make_folders
from tfcluster.agent.processes import IS_LINUX

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass
    from typing import Any


PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
_USUAL_PIPE_BYTES = 1 << 16
_buffer = memoryview(bytearray(PIPE_BYTES))
"""One for all tasks: the agent is single-threaded, and memory stays flat."""


def open_pipe() -> tuple[int, int]:
    """A pipe of 1 MiB where the system allows (per-user limit), the read end non-blocking."""
    read_end, write_end = os.pipe()
    if IS_LINUX:
        with contextlib.suppress(OSError):
            fcntl.fcntl(write_end, _F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(read_end, False)
    return read_end, write_end


def size_of(pipe: int) -> int:
    """How many bytes it holds at most."""
    return fcntl.fcntl(pipe, _F_GETPIPE_SZ) if IS_LINUX else _USUAL_PIPE_BYTES


class Log:
    """The file one task's output is appended to."""

    def __init__(self, path: str, veil: Mask | None = None) -> None:
        self.path, self.veil = path, veil
        self._fd = -1
        self.size = 0
        """Bytes now in the file; what is streamed stops here."""
        self.lost_bytes = 0
        """Not yet reported by `take_loss`."""
        self.lost_because = ""
        self._gap = 0
        self._open()

    def _open(self) -> bool:
        if self._fd >= 0:
            return True
        try:
            make_folders(os.path.dirname(self.path))
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            self.size = os.fstat(self._fd).st_size
        except OSError as error:
            self.lost_because = reason_of(error)
            return False
        return True

    def append(self, data: memoryview) -> int:
        """Write what the disk takes, count the rest as lost; returns how much was written."""
        if self._gap and self._open():
            self._mark_gap()
        written = 0
        try:
            while written < len(data) and self._open():
                written += os.write(self._fd, data[written:])
        except OSError as error:
            self.lost_because = reason_of(error)
        self.size += written
        self.lost_bytes += len(data) - written
        self._gap += len(data) - written
        return written

    def _mark_gap(self) -> None:
        """Say in the file itself how much is missing here, as soon as it takes bytes again."""
        mark = f"\n[tfcluster: {self._gap} bytes lost here: {self.lost_because}]\n".encode()
        with contextlib.suppress(OSError):
            written = os.write(self._fd, mark)
            self.size += written
            if written == len(mark):
                self._gap = 0

    def take_loss(self) -> int:
        """Bytes lost since the last call."""
        lost, self.lost_bytes = self.lost_bytes, 0
        return lost

    def read(self, offset: int, size: int) -> bytes:
        if self._fd < 0:
            return b""
        return os.pread(self._fd, min(size, max(0, self.size - offset)), offset)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def drain(pipe: int, log: Log) -> tuple[int, bool, bytes]:
    """Move what the pipe holds now; returns (bytes read, end of file, bytes the file lost)."""
    try:
        count = os.readv(pipe, [_buffer])
    except BlockingIOError:
        return 0, False, _end(log)
    if count == 0:
        return 0, True, _end(log)
    data = _buffer[:count]
    if log.veil is not None:
        data = memoryview(log.veil.cover(bytes(data)))
    return count, False, bytes(data[log.append(data) :])


def _end(log: Log) -> bytes:
    """What a veil has held back goes, too; returns what the file lost of it."""
    data = memoryview(log.veil.rest() if log.veil is not None else b"")
    return bytes(data[log.append(data) :]) if data else b""


class LossReport:
    """Says when lost bytes should be told: at once the first time, then once a second."""

    def __init__(self) -> None:
        self._next = 0.0

    def is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + 1.0
        return True


COVER = b"********"


class Mask:
    """Of one stream. A value that is cut by the end of a piece is held back until more comes."""

    def __init__(self, values: list[bytes]) -> None:
        self._values = sorted(values, key=len, reverse=True)
        self._held = b""

    def cover(self, data: bytes) -> bytes:
        data = self._held + data
        for value in self._values:
            data = data.replace(value, COVER)
        end = len(data) - max(_begun(value, data) for value in self._values)
        self._held = data[end:]
        return data[:end]

    def rest(self) -> bytes:
        """What was held back: no more comes."""
        rest, self._held = self._held, b""
        return rest


def _begun(value: bytes, data: bytes) -> int:
    """How much of `value` stands at the end of `data`."""
    longest = min(len(value) - 1, len(data))
    return next((n for n in range(longest, 0, -1) if data.endswith(value[:n])), 0)


def mask_of(spec: dict[str, Any]) -> Mask | None:
    """For a task to be started: `secrets` names those of its variables that nobody may see."""
    env = spec.get("env", {})
    values = [env[name].encode("utf-8", "surrogateescape") for name in spec.get("secrets", ())]
    return Mask(values) if values else None
