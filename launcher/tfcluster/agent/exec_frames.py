"""The streams of a command beside a task (`tfcluster exec`), as frames with windows.

The user's command and the agent exchange frames of kind `X`, which the coordinator passes on. A
frame is called ``ID/STREAM``:

==================  ================  ============================================================
`stdin`             command → agent   bytes; without any: the end
`stdout`, `stderr`  agent → command   bytes
each of them        back              no bytes; the offset: how much of the stream was written
`size`              command → agent   the rows and columns of the terminal, as text
==================  ================  ============================================================

A sender is ahead of what was written by a window at most. So each of the three holds that much of
a stream at most, however fast the sender and however slow the other end.
"""

from __future__ import annotations

from tfcluster.agent import budgets, protocol
from tfcluster.agent.protocol import ProtocolError

STDIN, STDOUT, STDERR, SIZE = "stdin", "stdout", "stderr", "size"
CHUNK = 64 << 10
"""The bytes of one frame."""
_TELL_EVERY = budgets.EXEC_BYTES_AHEAD // 4


def parse_name(name: str) -> tuple[int, str]:
    """Return the id and the stream that a frame's name consists of. Raises ProtocolError."""
    number, _, stream = name.partition("/")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise ProtocolError(f"a frame of the command {name[:80]!r}")
    if stream not in (STDIN, STDOUT, STDERR, SIZE):
        raise ProtocolError(f"a frame of a command's stream {stream[:80]!r}")
    return int(number), stream


def size_frame(number: int, rows: int, columns: int) -> bytes:
    return protocol.data_frame(protocol.EXEC, f"{number}/{SIZE}", 0, b"%d %d" % (rows, columns))


def parse_size(data: bytes) -> tuple[int, int]:
    """Return rows and columns. Raises ProtocolError."""
    try:
        rows, columns = map(int, data[:40].split())
    except ValueError:
        raise ProtocolError(f"a terminal's size {data[:40]!r}") from None
    return rows, columns


class Sending:
    """The sender's end of a stream."""

    def __init__(self, number: int, stream: str) -> None:
        self.stream, self._name = stream, f"{number}/{stream}"
        self._sent = self._written = 0

    @property
    def room(self) -> int:
        """The bytes that may be sent now."""
        return max(0, budgets.EXEC_BYTES_AHEAD - (self._sent - self._written))

    def frame(self, data: bytes) -> bytes:
        """Return the frame of the next bytes; without any, that of the end."""
        offset, self._sent = self._sent, self._sent + len(data)
        return protocol.data_frame(protocol.EXEC, self._name, offset, data)

    def note_written(self, offset: int) -> None:
        """Note that the other end has written the stream up to `offset`. Raises ProtocolError."""
        if not self._written <= offset <= self._sent:
            raise ProtocolError(f"{self._name} was written to {offset}, and sent to {self._sent}")
        self._written = offset


class Receiving:
    """The receiver's end of a stream."""

    def __init__(self, number: int, stream: str) -> None:
        self._name = f"{number}/{stream}"
        self._received = self._written = self._told = 0

    def take(self, offset: int, data: bytes) -> None:
        """Check that `data` is what follows. Raises ProtocolError."""
        if offset != self._received:
            raise ProtocolError(f"{self._name} goes on at {offset}, not at {self._received}")
        self._received += len(data)

    def note_written(self, count: int) -> bytes:
        """Note that so many bytes more were written; return the frame that tells it, if due."""
        self._written += count
        if self._written - self._told < _TELL_EVERY:
            return b""
        self._told = self._written
        return protocol.data_frame(protocol.EXEC, self._name, self._written, b"")
