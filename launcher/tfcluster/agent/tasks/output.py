"""One task's output: its pipe, its log file with its times, and the mask over secrets.

Lines are not parsed.

The pipe is large and drained in large reads, so a task never waits for a disk or a coordinator.
If the file cannot be written (disk full), draining goes on and the lost bytes are counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time

from tfcluster.agent.catalogue import TaskOrder
from tfcluster.agent.error_text import reason_of
from tfcluster.agent.net.private_folders import make_folders
from tfcluster.agent.processes import IS_LINUX

PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
_USUAL_PIPE_BYTES = 1 << 16
_buffer = memoryview(bytearray(PIPE_BYTES))
"""The read buffer, one for all tasks: the agent has one thread, and memory stays constant."""
MASK_TEXT = b"********"
TIMES_ENTRY = struct.Struct("<Qd")
"""An entry of a log's time index: an offset, and when what follows it was written (Unix time)."""
TIMES_INTERVAL_S = 0.1
"""The least time between two entries: a minute of output takes at most 10 KB."""


def open_pipe() -> tuple[int, int]:
    """Return a pipe's read end (non-blocking) and write end; 1 MiB if the user's limit allows."""
    read_end, write_end = os.pipe()
    if IS_LINUX:
        with contextlib.suppress(OSError):
            fcntl.fcntl(write_end, _F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(read_end, False)
    return read_end, write_end


def size_of(pipe: int) -> int:
    """Return the capacity of a pipe in bytes."""
    return fcntl.fcntl(pipe, _F_GETPIPE_SZ) if IS_LINUX else _USUAL_PIPE_BYTES


def times_path(log: str) -> str:
    """Return the path of a log's time index: ``worker-0.times`` beside ``worker-0.log``."""
    return os.path.splitext(log)[0] + ".times"


class TimeIndex:
    """The file that holds when each part of a log was written."""

    def __init__(self, log: str) -> None:
        self._path = times_path(log)
        self._next = 0.0

    def note(self, offset: int) -> None:
        """Record that what follows `offset` is written now; to be called before it is written.

        On a full disk the time of these lines is lost.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + TIMES_INTERVAL_S
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                # A crash may have left half an entry at the end, which is overwritten.
                end = os.fstat(fd).st_size // TIMES_ENTRY.size * TIMES_ENTRY.size
                os.pwrite(fd, TIMES_ENTRY.pack(offset, time.time()), end)
            finally:
                os.close(fd)


class OutputFile:
    """The file to which one task's output is appended."""

    def __init__(self, path: str, mask: Mask | None = None) -> None:
        self.path, self.mask = path, mask
        self._times = TimeIndex(path)
        self._fd = -1
        self.size = 0
        """The bytes in the file, all of which may be streamed."""
        self.lost_bytes = 0
        """The lost bytes that `take_loss` has not reported yet."""
        self.loss_reason = ""
        self._next_report = 0.0
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
            self.loss_reason = reason_of(error)
            return False
        return True

    def append(self, data: memoryview) -> int:
        """Write as much as possible and count the rest as lost; return the bytes written."""
        if self._gap and self._open():
            self._mark_gap()
        self._times.note(self.size)
        written = 0
        try:
            while written < len(data) and self._open():
                written += os.write(self._fd, data[written:])
        except OSError as error:
            self.loss_reason = reason_of(error)
        self.size += written
        self.lost_bytes += len(data) - written
        self._gap += len(data) - written
        return written

    def _mark_gap(self) -> None:
        """Write into the file how many bytes are missing, once it can be written again."""
        mark = f"\n[tfcluster: {self._gap} bytes lost here: {self.loss_reason}]\n".encode()
        with contextlib.suppress(OSError):
            written = os.write(self._fd, mark)
            self.size += written
            if written == len(mark):
                self._gap = 0

    def is_report_due(self) -> bool:
        """Return whether to report lost bytes now: at once the first time, then every second."""
        now = time.monotonic()
        if not self.lost_bytes or now < self._next_report:
            return False
        self._next_report = now + 1.0
        return True

    def take_loss(self) -> int:
        """Return the bytes lost since the last call."""
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


class Echo:
    """A second place for the output of all tasks: where a container's log is collected.

    Nobody waits for it: what it does not take at once is dropped there, and only there.
    """

    def __init__(self) -> None:
        self._fd = -1

    def open(self, path: str) -> None:
        """Use the pipe or file at `path` from now on, if it can be opened."""
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)

    def write(self, data: memoryview) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.write(self._fd, data)


echo = Echo()
"""That of this process, closed until a configuration asks for it."""


def drain(pipe: int, log: OutputFile, *, echoes: bool = False) -> tuple[int, bool, bytes]:
    """Move a pipe's data to the log, and to `echo` if it `echoes`.

    Return (bytes read, end of file, bytes the file lost).
    """
    try:
        count = os.readv(pipe, [_buffer])
    except BlockingIOError:
        return 0, False, _flush_mask(log)
    if count == 0:
        return 0, True, _flush_mask(log)
    data = _buffer[:count]
    if log.mask is not None:
        data = memoryview(log.mask.apply(bytes(data)))
    if echoes:
        echo.write(data)
    return count, False, bytes(data[log.append(data) :])


def _flush_mask(log: OutputFile) -> bytes:
    """Write what the mask held back; return what the file lost of it."""
    data = memoryview(log.mask.flush() if log.mask is not None else b"")
    return bytes(data[log.append(data) :]) if data else b""


class Mask:
    """A filter that masks secret values in one stream.

    The beginning of a value at the end of a piece is held back until more bytes come.
    """

    def __init__(self, values: list[bytes]) -> None:
        self._values = sorted(values, key=len, reverse=True)
        self._held = b""

    def apply(self, data: bytes) -> bytes:
        """Return the next bytes of the stream, masked."""
        data = self._held + data
        for value in self._values:
            data = data.replace(value, MASK_TEXT)
        end = len(data) - max((_overlap(value, data) for value in self._values), default=0)
        self._held = data[end:]
        return data[:end]

    def flush(self) -> bytes:
        """Return what was held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held


def _overlap(value: bytes, data: bytes) -> int:
    """Return how many first bytes of `value` are the end of `data`."""
    longest = min(len(value) - 1, len(data))
    return next((n for n in range(longest, 0, -1) if data.endswith(value[:n])), 0)


def mask_of(task: TaskOrder) -> Mask | None:
    """Return the mask for the values of a task's `secrets`; None without any."""
    values = [task.env[name].encode("utf-8", "surrogateescape") for name in task.secrets]
    return Mask(values) if values else None
