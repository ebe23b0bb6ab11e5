"""The user's end of a command beside a task (`tfcluster exec`): joins descriptors to its streams.

The connection has been made by `rundir.control`, and has the frames of `agent.exec_frames`. A
control frame is its last: an `ExecEnded`, or an `ExecFailed` if the command is lost.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tfcluster.agent import catalogue as msg
from tfcluster.agent import exec_frames, protocol
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.exec_frames import STDERR, STDIN, STDOUT, Receiving, Sending
from tfcluster.agent.message_fields import parse
from tfcluster.errors import NodeLostError

_SILENCE_S = 60.0
"""Seconds without a sign of life after which the connection counts as lost; there are pings."""
_PIECE = 4096
"""The bytes that a pipe takes at once if `poll` says that it takes any (PIPE_BUF)."""
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR | select.POLLNVAL
_WRITABLE = select.POLLOUT | select.POLLHUP | select.POLLERR | select.POLLNVAL


class UserTerminal(AbstractContextManager[object], Protocol):
    """The terminal that a command's terminal follows; it passes on all keys inside of the block."""

    kind: str
    """The value of TERM."""
    resizes: int
    """A descriptor from which a byte can be read after each change of its size."""

    def size(self) -> tuple[int, int]:
        """Return rows and columns."""


@dataclass(frozen=True, slots=True)
class ExecEnd:
    """The end of a command."""

    code: int
    """The exit code; 128 + N for a signal."""
    task_has_ended: bool
    """True if it was ended with its task."""


@dataclass(slots=True)
class _Output:
    descriptor: int
    receiving: Receiving
    waiting: bytearray


class ExecStream:
    """The streams of one command. Nothing blocks: one thread serves both directions."""

    def __init__(
        self,
        connection: socket.socket,
        number: int,
        *,
        stdin: int | None,
        stdout: int,
        stderr: int,
        terminal: UserTerminal | None = None,
    ) -> None:
        """Prepare. `stdin`: None for no input; `number`: the id of the command."""
        self._connection, self._number, self._terminal = connection, number, terminal
        self._decoder, self._to_agent = protocol.Decoder(), bytearray()
        self._stdin, self._sending = stdin, Sending(number, STDIN)
        self._outputs = {
            stream: _Output(descriptor, Receiving(number, stream), bytearray())
            for stream, descriptor in ((STDOUT, stdout), (STDERR, stderr))
        }
        self._heard_at = time.monotonic()
        self._end: ExecEnd | None = None

    def run(self) -> ExecEnd:
        """Join the streams until the command has ended. Raises NodeLostError if it is lost.

        It counts as ended by SIGPIPE if nobody reads its output any more.
        """
        self._connection.setblocking(False)
        if self._stdin is None:
            self._to_agent += self._sending.frame(b"")
        try:
            while self._end is None or any(output.waiting for output in self._outputs.values()):
                self._turn()
            return self._end
        except BrokenPipeError:
            return ExecEnd(128 + signal.SIGPIPE, task_has_ended=False)
        except (OSError, protocol.ProtocolError) as error:
            raise _lost(describe_error(error)) from error

    def _turn(self) -> None:
        wanted: dict[int, int] = {}
        connection = -1 if self._end is not None else self._connection.fileno()
        if connection >= 0:
            wanted[connection] = select.POLLIN | (select.POLLOUT if self._to_agent else 0)
            if self._stdin is not None and self._sending.room:
                wanted[self._stdin] = select.POLLIN
            if self._terminal is not None:
                wanted[self._terminal.resizes] = select.POLLIN
        for output in self._outputs.values():
            if output.waiting:
                before = wanted.get(output.descriptor, 0)  # a socket can be stdin as well
                wanted[output.descriptor] = before | select.POLLOUT
        poll = select.poll()
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        ready = dict(poll.poll(_SILENCE_S / 4 * 1000))
        if connection >= 0:
            self._serve_connection(ready.get(connection, 0))
            if self._stdin is not None and self._sending.room:
                self._read_stdin(ready.get(self._stdin, 0))
            if self._terminal is not None and ready.get(self._terminal.resizes):
                os.read(self._terminal.resizes, 4096)
                self._to_agent += exec_frames.size_frame(self._number, *self._terminal.size())
        for output in self._outputs.values():
            if output.waiting and ready.get(output.descriptor, 0) & _WRITABLE:
                count = os.write(output.descriptor, output.waiting[:_PIECE])
                del output.waiting[:count]
                self._to_agent += output.receiving.note_written(count)

    def _serve_connection(self, events: int) -> None:
        if events & select.POLLOUT:
            try:
                del self._to_agent[: self._connection.send(self._to_agent)]
            except BlockingIOError:
                pass
            except BrokenPipeError:  # its last words may still be read
                self._to_agent.clear()
        if events & _READABLE:
            data = b""
            with contextlib.suppress(ConnectionResetError):
                data = self._connection.recv(1 << 18)
            if not data:
                raise _lost("its coordinator has closed the connection")
            self._heard_at = time.monotonic()
            for kind, payload in self._decoder.feed(data):
                self._take(kind, payload)
        elif time.monotonic() > self._heard_at + _SILENCE_S:
            raise _lost(f"its coordinator has been silent for {_SILENCE_S:.0f} s")

    def _read_stdin(self, events: int) -> None:
        if not events & _READABLE or self._stdin is None:
            return
        try:
            data = os.read(self._stdin, min(exec_frames.CHUNK, self._sending.room))
        except BlockingIOError:
            return
        except OSError:  # it was closed, or its terminal is gone
            data = b""
        self._to_agent += self._sending.frame(data)
        if not data:
            self._stdin = None

    def _take(self, kind: bytes, payload: bytes) -> None:
        """Take a frame. Raises ProtocolError, and NodeLostError if the command is lost."""
        if kind == protocol.EXEC:
            name, offset, data = protocol.read_data(payload)
            number, stream = exec_frames.parse_name(name)
            if number != self._number or stream == exec_frames.SIZE:
                raise protocol.ProtocolError(f"a frame of {name}")
            if stream == STDIN:
                self._sending.note_written(offset)
            else:
                self._outputs[stream].receiving.take(offset, data)
                self._outputs[stream].waiting += data
        elif kind == protocol.CONTROL:
            match parse(protocol.read_control(payload), msg.ExecReport):
                case msg.ExecEnded(exit_code=code) as ended:
                    shown = 128 + (ended.signal or 0) if code is None else code
                    self._end = ExecEnd(shown, task_has_ended=ended.task_has_ended)
                case msg.ExecFailed(error=error):
                    raise _lost(error)


def _lost(why: str) -> NodeLostError:
    return NodeLostError(f"the command is lost: {why}", fix="`tfcluster status` shows the run")
