"""The coordinator's end of a connection to one agent: an asynchronous stream of its messages.

An `AgentLink` numbers and acknowledges messages, pings, and resumes a broken connection itself::

    link = await nodes.connect(node, token=secrets.token_hex(16))   # `backends.base.Nodes`
    await link.send(Start(attempt=1, tasks=[…]))   # see `nodes.orders`
    async for message in link:              # ends when the connection is lost for good
        …
    await link.send(Shutdown())             # or only close(), which ends a local agent
    await link.close()                      # returns when agent and guard are gone

`link.welcome` is the agent's answer to the hello. Log frames of remote nodes arrive as `Log`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from tfcluster.agent import budgets, protocol
from tfcluster.agent import catalogue as msg
from tfcluster.agent.message_fields import replace
from tfcluster.node_loss import NodeLoss
from tfcluster.wire import file_transfer, messages
from tfcluster.wire.agent_handle import AgentHandle
from tfcluster.wire.file_transfer import RemoteFiles
from tfcluster.wire.messages import ExecData, FileSlice, Frame, HelloRefused, LinkBack, LinkCut, Log

ByteStreams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connection = tuple[asyncio.StreamReader, protocol.Decoder, list[Frame]]
"""A fresh connection, and the frames that arrived with the agent's answer."""
Dial = Callable[[], Awaitable[ByteStreams]]
"""Opens a fresh byte stream to the agent; raises OSError."""

HELLO_TIMEOUT_S = 10.0
FIRST_HELLO_S = 45.0
"""The time for the hello of a remote node, which first unpacks and starts its agent."""
PING_S = 2.0
"""Seconds between two pings to a remote agent."""
REDIAL_S, LONGEST_REDIAL_S = 0.5, 5.0
"""`REDIAL_S`: the pause before another dial. It doubles up to `LONGEST_REDIAL_S` with each dial
that fails, and with each connection that breaks before it has lasted for `STEADY_S`."""
STEADY_S = 10.0
CUT_REPORT_S = 2.0
"""Seconds after which a cut connection is reported, even while a dial is in progress."""
SILENCE_S = 8.0
"""Seconds without a ping (a remote agent sends one every 2 s) after which a connection is cut."""
ANSWER_S = 3.0
"""Seconds after which a local agent that has not acknowledged a stop hangs (SIGSTOP, dead disk)."""
SECOND_LOOK_S = 0.5
"""Extra seconds to read an answer that waits: it may be the coordinator that was stopped."""
LOCAL_PING_S = 5.0
"""Seconds between two pings to a local agent, which answers pings and sends none of its own."""
CLOSE_S = 4.0
"""Seconds to wait for a local agent's exit: longer than the agent waits for its tasks."""
_EXPLAIN_S = 3.0
_SLICES = {protocol.LOG: Log, protocol.FILE: FileSlice, protocol.EXEC: ExecData}


class AgentLink:
    """A connection to one agent, reached through `dial`; iterate over it for its messages."""

    def __init__(
        self,
        dial: Dial,
        hello: msg.Hello,
        agent: AgentHandle | None = None,
        *,
        lease_s: float | None = None,
        patience_s: float | None = None,
    ) -> None:
        """Create a link that is not open yet.

        `hello` has run_id, node, token and stream_logs. `lease_s`: seconds during which a lost
        connection is dialled again, or None for never; `patience_s` is then how many seconds the
        agent may hang, or None for no limit.
        """
        self._dial, self._hello, self.lease_s = dial, hello, lease_s
        self._patience_s = patience_s
        self._agent = agent or AgentHandle()
        self.heard_at = 0.0
        """The time of the last byte from the agent, on the loop's clock."""
        self._is_over, self._why_killed = False, ""
        self._session = protocol.Session()
        self._messages: asyncio.Queue[msg.Report | None] = asyncio.Queue()
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = self._has_sent_shutdown = False
        self._fault = ""
        self.heard_goodbye = self.has_ended = False
        """`heard_goodbye`: the agent has said that it ends. `has_ended`: no task that it started is
        alive, whatever its lease says."""
        self.welcome = msg.Welcome(pid=0, guard_pid=0)
        self.log_offsets: dict[str, int] = {}
        """Stream name → offset up to which log bytes have arrived; sent again on resuming."""
        silence_s = min(file_transfer.FILES_SILENCE_S, lease_s or file_transfer.FILES_SILENCE_S)
        self.files = RemoteFiles(self.send, self.send_file, node=hello.node, silence_s=silence_s)
        """File transfer with the node, if it shares no file system with the coordinator."""

    async def open(self) -> None:
        """Dial the agent and exchange hellos. Raises OSError, ProtocolError or HelloRefused."""
        self._tasks = [asyncio.create_task(self._receive(await self._connect()))]
        if self.lease_s is not None:
            self._tasks.append(asyncio.create_task(self._ping()))
        elif self._patience_s is not None:
            self._tasks.append(asyncio.create_task(self._watch_local_agent(self._patience_s)))

    def last_words(self) -> str:
        """Return why the agent ended: killed by the coordinator, or what it wrote to stderr."""
        if self._fault:
            return f"(disconnected: it sent {self._fault})"
        killed = f"({self._why_killed}, so it was killed; its guard kills its tasks)"
        return self._agent.last_words() or (killed if self._why_killed else "")

    @property
    def loss(self) -> NodeLoss:
        """The reason why the node is lost."""
        return self._agent.loss or NodeLoss(f"its agent went away {self.last_words()}".strip())

    async def refuse(self, fault: str) -> None:
        """Disconnect an agent that sent an invalid message; the stream of messages ends."""
        self._fault = self._fault or fault
        await self._disconnect()

    async def send(self, order: msg.Order) -> None:
        """Number, keep and send an order. Raises ConnectionError if the link is lost for good."""
        encoded = self._session.number(order.to_json())
        if self._writer is None and (self.lease_s is None or self._is_closing):
            raise ConnectionError("the agent is gone")
        self._has_sent_shutdown = self._has_sent_shutdown or isinstance(order, msg.Shutdown)
        if self._agent.can_kill and isinstance(order, msg.Stop | msg.Shutdown):
            number, loop = self._session.last_sent, asyncio.get_running_loop()
            loop.call_later(
                ANSWER_S, loop.call_later, SECOND_LOOK_S, self._kill_unless_acknowledged, number
            )
        await self._write(encoded)

    async def send_file(self, name: str, offset: int, data: bytes) -> None:
        """Send one `F` frame; it is neither numbered nor kept, so a broken connection loses it."""
        await self.send_data(protocol.FILE, name, offset, data)

    async def send_data(self, kind: bytes, name: str, offset: int, data: bytes) -> None:
        """Send one `F` or `X` frame, and wait until there is room for the next one."""
        await self._write(protocol.data_frame(kind, name, offset, data))
        if self._writer is not None:
            with contextlib.suppress(OSError):
                await self._writer.drain()

    def _kill_unless_acknowledged(self, number: int) -> None:
        if self._writer is not None and self._session.waits_for(number):
            self._why_killed = "it did not acknowledge a stop"
            self._agent.kill()

    async def __aiter__(self) -> AsyncIterator[msg.Report]:
        while (message := await self._messages.get()) is not None:
            yield message
        self._messages.put_nowait(None)  # a second iteration ends at once, too

    async def explain(self) -> NodeLoss | None:
        """Return what the node's backend knows of its end; None if it does not answer in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXPLAIN_S):
                await self._agent.explain()
        return self._agent.loss

    async def close(self, *, keeps_folders: bool = False) -> None:
        """Close the connection, which ends a local agent, and wait until the agent is gone."""
        self._is_closing = True
        if self._writer is not None and self.lease_s is None:
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write_eof()
        if self._tasks and (self.lease_s is None or self._has_sent_shutdown):
            # The agent reports its last exits before it closes its own end.
            patience = CLOSE_S if self.lease_s is None else HELLO_TIMEOUT_S
            await asyncio.wait(self._tasks[:1], timeout=patience)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._disconnect()
        self._messages.put_nowait(None)
        if not self._is_over:
            self._is_over = True
            self.has_ended |= await self._agent.end(keeps_folders=keeps_folders)

    async def _connect(self) -> Connection:
        reader, writer = await self._dial()
        is_fresh = self.lease_s is not None and not self.welcome.pid
        try:
            async with asyncio.timeout(FIRST_HELLO_S if is_fresh else HELLO_TIMEOUT_S):
                hello = replace(
                    self._hello,
                    protocol=protocol.VERSION,
                    last_seen=self._session.last_seen,
                    log_offsets=self.log_offsets,
                )
                writer.write(protocol.control_frame({**hello.to_json(), "n": 0}))
                decoder = protocol.Decoder(after_magic=True, max_control=budgets.MESSAGE_BYTES)
                first, rest = await messages.read_welcome(reader, decoder)
        except BaseException:
            writer.close()
            raise
        self.welcome, self.heard_at = first, asyncio.get_running_loop().time()
        for encoded in self._session.resume(first.last_seen):
            writer.write(encoded)
        self._writer = writer
        self._agent.on_answer()
        return reader, decoder, rest

    async def _receive(self, connection: Connection) -> None:
        pause_s, now = 0.0, asyncio.get_running_loop().time
        try:
            while True:
                since = now()
                await self._read_until_lost(*connection)
                pause_s = 0.0 if now() >= since + STEADY_S else self._next_pause(pause_s)
                self.files.disconnected()
                await self._disconnect()
                reconnected = None if self._fault else await self._reconnect(pause_s)
                if reconnected is None:
                    await self._agent.explain()
                    return
                connection = reconnected
                self._deliver(self._link_back())
                self.files.reconnected()
        finally:
            self.files.mark_lost(f"it sent {self._fault}" if self._fault else "")
            self._messages.put_nowait(None)

    async def _read_until_lost(
        self, reader: asyncio.StreamReader, decoder: protocol.Decoder, early: list[Frame]
    ) -> None:
        try:
            await self._on_frames(early)
            while data := await reader.read(1 << 18):
                self.heard_at = asyncio.get_running_loop().time()
                await self._on_frames(decoder.feed(data))
        except protocol.ProtocolError as error:
            self._fault = self._fault or str(error)
        except OSError:
            pass

    async def _on_frames(self, frames: Iterable[Frame]) -> None:
        numbered = [self._on_frame(kind, payload) for kind, payload in frames]
        if any(numbered) and not self._is_closing:  # else only the last messages still arrive
            await self._write(self._session.acknowledgement())

    def _on_frame(self, kind: bytes, payload: bytes) -> bool:
        """Handle one frame; return True for a numbered message, which must be acknowledged."""
        if kind == protocol.CONTROL:
            message = protocol.read_control(payload)
            report = messages.read_report(message)
            if isinstance(report, msg.Welcome):
                raise protocol.ProtocolError("a second welcome")
            if self._session.is_new(message):
                self._handle_report(report)
            return True
        if kind == protocol.ACK:
            self._session.acknowledged(protocol.read_number(payload))
        elif kind in _SLICES:
            name, offset, data = protocol.read_data(payload)
            if kind == protocol.LOG and offset != protocol.NOT_IN_FILE:
                self.log_offsets[name] = offset + len(data)
            self._deliver(_SLICES[kind](name=name, offset=offset, data=data))
        return False

    def _handle_report(self, report: msg.Report) -> None:
        if isinstance(report, msg.Bye):
            self.heard_goodbye = self.has_ended = True  # it is the agent's last word
            if report.stays:
                self._agent.detach()
        self._deliver(report)

    def _deliver(self, report: msg.Report) -> None:
        if isinstance(report, msg.FileReport | FileSlice | msg.FilesLost):
            self.files.handle(report)
        else:
            self._messages.put_nowait(report)

    async def _write(self, frame: bytes) -> None:
        if self._writer is None:
            return  # kept by the session, sent on resuming
        try:
            # Without drain(): orders are few and small, and a hanging agent or connection must
            # not block the coordinator. Only files wait until there is room.
            self._writer.write(frame)
        except (OSError, RuntimeError) as error:
            if self.lease_s is None:
                raise ConnectionError("the agent is gone") from error

    async def _reconnect(self, pause_s: float) -> Connection | None:
        """Dial again after `pause_s`; report the cut only if a short wait does not show that the
        agent is gone."""
        if self.lease_s is None or self._is_closing:
            return None
        redial = asyncio.create_task(self._redial(self.lease_s, pause_s))
        try:
            await asyncio.wait([redial], timeout=CUT_REPORT_S)
            if not redial.done() or redial.result() is not None:
                loss = self._agent.loss
                self._deliver(LinkCut(lease_s=self.lease_s, why=loss.reason if loss else None))
            return await redial
        finally:
            redial.cancel()
            await asyncio.gather(redial, return_exceptions=True)

    async def _redial(self, lease_s: float, pause_s: float) -> Connection | None:
        loop = asyncio.get_running_loop()
        while loop.time() < self.heard_at + lease_s:
            await asyncio.sleep(pause_s)
            with contextlib.suppress(OSError, TimeoutError, protocol.ProtocolError, HelloRefused):
                return await self._connect()
            if await self._agent.has_gone():
                return None
            pause_s = self._next_pause(pause_s)
        return None

    def _next_pause(self, pause_s: float) -> float:
        """Return the pause after one of `pause_s`; several of them fit into the lease."""
        most_s = min(LONGEST_REDIAL_S, (self.lease_s or 0.0) / 8)
        return min(most_s, max(REDIAL_S, 2 * pause_s))

    async def _ping(self) -> None:
        """Ping, and disconnect on silence: a cut line gives no EOF, but both sides ping."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PING_S)
            if self._writer is None:
                continue
            if loop.time() > self.heard_at + SILENCE_S:
                await self._agent.disconnect()
            else:
                await self._write(protocol.frame(protocol.PING))

    async def _watch_local_agent(self, patience_s: float) -> None:
        """Close the link to a local agent that hangs and kill the agent.

        It would report no exit any more, and its tasks would block once their pipes are full.
        Unanswered pings are counted, not time: the coordinator or the machine may have been
        stopped.
        """
        unanswered, most = 0, max(1, round(patience_s / LOCAL_PING_S))
        while unanswered < most:
            heard_at = self.heard_at
            await self._write(protocol.frame(protocol.PING))
            await asyncio.sleep(LOCAL_PING_S)
            await asyncio.sleep(SECOND_LOOK_S)
            if self.heard_at == heard_at:
                unanswered += 1
                if unanswered == 1:
                    pid = self.welcome.pid
                    reason = f"its agent (pid {pid}) is stopped; `kill -CONT {pid}` resumes it"
                    self._deliver(LinkCut(lease_s=patience_s, why=reason))
            elif unanswered:
                unanswered = 0
                self._deliver(self._link_back())
        self._why_killed = f"it did not answer for {patience_s:g} s"
        self._agent.kill()
        await self._disconnect()

    def _link_back(self) -> LinkBack:
        return LinkBack(pid=self.welcome.pid, guard_pid=self.welcome.guard_pid)

    async def _disconnect(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            # Closing would first wait until a possibly hanging agent has read the rest.
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
