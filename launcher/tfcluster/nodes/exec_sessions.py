"""Commands beside tasks (`tfcluster exec`): the coordinator joins a user's command to an agent.

It passes the frames of `agent.exec_frames` on, both ways, and changes nothing of the run's state.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from tfcluster.agent import budgets, exec_frames, protocol
from tfcluster.agent import catalogue as msg
from tfcluster.errors import UsageError
from tfcluster.wire.messages import ExecData

START_S = 15.0
"""Seconds in which an agent must have started a command."""
PING_S = 5.0
"""Seconds between two signs of life to the user's command."""
_MOST_UNREAD = 16 * budgets.EXEC_BYTES_AHEAD
"""The bytes that wait for the user's command: two windows, and what was left at its end."""

SendOrder = Callable[[str, msg.Order], None]
SendFrame = Callable[[str, str, int, bytes], Awaitable[None]]


class ExecSessions:
    """The commands of one run that run now."""

    def __init__(self, order: SendOrder, send: SendFrame) -> None:
        """`order` sends an order to a node, `send` a frame: its name, its offset, its bytes."""
        self._order, self._send = order, send
        self._numbers = itertools.count(1)
        self._sessions: dict[int, ExecSession] = {}

    @contextlib.asynccontextmanager
    async def open(
        self, node: str, task: str, argv: Sequence[str], terminal: Mapping[str, Any] | None
    ) -> AsyncIterator[ExecSession]:
        """Start a command beside a task of `node`; the end of the block ends it.

        Raises UsageError if it cannot be started, and ProtocolError for an invalid `terminal`.
        """
        size = None if terminal is None else msg.Terminal.read(terminal)
        order = msg.Exec(id=next(self._numbers), task=task, argv=[*argv], terminal=size)
        session = self._sessions[order.id] = ExecSession(order.id, node, self._send)
        try:
            self._order(node, order)
            await session.wait_for_start()
            yield session
        finally:
            del self._sessions[order.id]
            if not session.has_ended:
                self._order(node, msg.EndExec(id=order.id))

    def take(self, node: str, message: ExecData | msg.ExecReport) -> None:
        """Take what an agent sends about a command; of one that is over it is ignored."""
        if isinstance(message, ExecData):
            number, _ = exec_frames.parse_name(message.name)
        else:
            number = message.id
        session = self._sessions.get(number)
        if session is None or session.node != node:
            return
        if isinstance(message, ExecData):
            session.pass_on(message)
        else:
            session.note(message)

    def lose(self, node: str) -> None:
        """End the commands on a node whose connection was cut: frames may be lost."""
        for session in self._sessions.values():
            if session.node == node:
                session.fail(f"the connection to {node} was cut")


class ExecSession:
    """One command, joined to a user's connection."""

    def __init__(self, number: int, node: str, send: SendFrame) -> None:
        self.id, self.node, self._send = number, node, send
        loop = asyncio.get_running_loop()
        self._start: asyncio.Future[str] = loop.create_future()
        """The reason why it was not started; empty if it was."""
        self._end: asyncio.Future[dict[str, Any]] = loop.create_future()
        """The last message to the user's command."""
        self._early = bytearray()
        """The frames until the user's command is joined."""
        self._writer: asyncio.StreamWriter | None = None
        self.has_ended = False
        """True once the agent has nothing of it any more."""

    async def wait_for_start(self) -> None:
        """Raise UsageError unless it was started."""
        problem = f"the agent on {self.node} has not answered for {START_S:.0f} s"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                problem = await self._start
        if problem:
            raise UsageError(problem, fix="`tfcluster status` shows the tasks")

    def note(self, report: msg.ExecReport) -> None:
        match report:
            case msg.ExecStarted():
                _set(self._start, "")
            case msg.ExecFailed(error=error):
                self.has_ended = True
                _set(self._start, error)
            case msg.ExecEnded():
                self.has_ended = True
                _set(self._end, report.to_json())

    def fail(self, problem: str) -> None:
        """End it for another reason than its own end."""
        _set(self._start, problem)
        _set(self._end, {"type": "exec_failed", "error": problem})

    def pass_on(self, data: ExecData) -> None:
        """Pass a frame of the agent on to the user's command."""
        frame = protocol.data_frame(protocol.EXEC, data.name, data.offset, data.data)
        unread = len(self._early)
        if self._writer is None:
            self._early += frame
        else:
            self._writer.write(frame)
            unread = self._writer.transport.get_write_buffer_size()
        if unread > _MOST_UNREAD:
            self.fail(f"the agent on {self.node} has sent more than it may")

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass frames on until the command has ended or the connection is closed."""
        writer.write(self._early)
        self._writer = writer
        tasks = [asyncio.create_task(job) for job in (self._read(reader), self._ping(writer))]
        try:
            either: list[asyncio.Future[Any]] = [tasks[0], self._end]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._end.done():
            writer.write(protocol.control_frame(self._end.result()))
            await writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Pass the frames of the user's command on; raises ProtocolError for anything else."""
        decoder = protocol.Decoder()
        while data := await reader.read(exec_frames.CHUNK):
            for kind, payload in decoder.feed(data):
                name, offset, piece = protocol.read_data(payload)
                if kind != protocol.EXEC or exec_frames.parse_name(name)[0] != self.id:
                    raise protocol.ProtocolError("a frame that is not of this command")
                await self._send(self.node, name, offset, piece)

    async def _ping(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(PING_S)
            writer.write(protocol.frame(protocol.PING))


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)
