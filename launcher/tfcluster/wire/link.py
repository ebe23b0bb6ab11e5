"""The coordinator's end of a connection to one agent, as an asynchronous stream of messages.

::

    backend = backends.get("local", runtime_dir=runtime_dir())
    link = await backend.connect(node, run_id=run_id, token=secrets.token_hex(16))
    await link.send({"type": "start", "attempt": 1, "tasks": […]})   # see `run.launch`
    async for message in link:              # ends when the connection is lost for good
        …
    await link.send({"type": "shutdown"})   # or only close(): a local agent ends with it
    await link.close()                      # returns when agent and guard are gone

`link.welcome` is what the agent said of itself (pid, guard_pid, python). Log frames of remote
nodes come as ``{"type": "log", "name", "offset", "data"}``, file frames as ``"file"``. It numbers,
acknowledges, pings and resumes by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

from tfcluster.agent import budgets, protocol
from tfcluster.wire import file_transfer, messages
from tfcluster.wire.agent_handle import AgentHandle
from tfcluster.wire.file_transfer import RemoteFiles
from tfcluster.wire.messages import Frame, Refused, welcome

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Greeted = tuple[asyncio.StreamReader, protocol.Decoder, list[Frame]]
"""A fresh connection, and what came with the agent's answer."""
Dial = Callable[[], Awaitable[Streams]]  # opens a fresh byte stream to the agent; raises OSError

HELLO_TIMEOUT_S = 10.0
FIRST_HELLO_S = 45.0  # of a remote node, where an agent is still to be unpacked and started
PING_S, REDIAL_S = 2.0, 0.5
CUT_TOLD_S = 2.0
"""After so long a line is told to be cut, whatever a dial under way still finds."""
SILENCE_S = 8.0
"""A remote agent pings every two seconds; over a line so long without a ping nothing comes."""
ANSWER_S = 3.0
"""A local agent that has not acknowledged a stop by then stands still (SIGSTOP, a dead disk)."""
SECOND_LOOK_S = 0.5
"""It may be we who stood still: its answer is read before it is judged."""
LOCAL_PING_S = 5.0
"""Between two pings to an agent beside us, which returns them and sends none of its own."""
CLOSE_S = 4.0
"""How long the end of a local agent is waited for: longer than it waits for its tasks'."""


class AgentLink:
    """One agent, reached through `dial`; iterate for its messages."""

    def __init__(
        self,
        dial: Dial,
        hello: Mapping[str, Any],
        keeper: AgentHandle | None = None,
        *,
        lease_s: float | None = None,
        patience_s: float | None = None,
    ) -> None:
        """`hello`: run_id, node, token, stream_logs. `lease_s`: how long a lost connection is
        dialled again; None: never, and then `patience_s` is how long the agent may stand still;
        None: for ever."""
        self._dial, self._hello, self._lease_s = dial, hello, lease_s
        self._patience_s = patience_s
        self._keeper = keeper or AgentHandle()
        self._heard_at, self._is_over = 0.0, False
        self._why_killed = ""
        self._session = protocol.Session()
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = self._said_goodbye = False
        self._fault = ""
        self.heard_goodbye = self.has_ended = False
        """`has_ended`: nothing that it started lives any more, whatever its lease says."""
        self.welcome: dict[str, Any] = {}
        self.log_offsets: dict[str, int] = {}
        """Stream name → offset up to which log bytes have come; told to the agent on resuming."""
        silence_s = min(file_transfer.SILENCE_S, lease_s or file_transfer.SILENCE_S)
        node = str(hello.get("node", ""))
        self.files = RemoteFiles(self.send, self.send_file, node=node, silence_s=silence_s)
        """Of a node that shares no file system with us."""

    async def open(self) -> None:
        """Dial and greet. Raises OSError, ProtocolError or Refused."""
        self._tasks = [asyncio.create_task(self._receive(await self._greet()))]
        if self._lease_s is not None:
            self._tasks.append(asyncio.create_task(self._ping()))
        elif self._patience_s is not None:
            self._tasks.append(asyncio.create_task(self._watch_over(self._patience_s)))

    @property
    def heard_at(self) -> float:
        """When the last byte came from the agent, on the loop's clock."""
        return self._heard_at

    def last_words(self) -> str:
        """Why the agent went, where that is known: ended by us, or what it wrote to stderr."""
        if self._fault:
            return f"(it was cut off: it sent {self._fault})"
        killed = f"({self._why_killed}, so it was killed; its guard ends its tasks)"
        return self._keeper.last_words() or (killed if self._why_killed else "")

    def why_gone(self) -> str:
        """The reason for which the node is lost."""
        return self._keeper.story or f"its agent went away {self.last_words()}".strip()

    async def refuse(self, fault: str) -> None:
        """Cut off an agent that sent what none sends; the messages end with it."""
        self._fault = self._fault or fault
        await self._hang_up()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Number, keep and send; raises ConnectionError when the link is lost for good."""
        encoded = self._session.number(dict(message))
        if self._writer is None and (self._lease_s is None or self._is_closing):
            raise ConnectionError("the agent is gone")
        self._said_goodbye = self._said_goodbye or message["type"] == "shutdown"
        if self._keeper.can_kill and message["type"] in ("stop", "shutdown"):
            number, loop = self._session.last_sent, asyncio.get_running_loop()
            loop.call_later(ANSWER_S, loop.call_later, SECOND_LOOK_S, self._judge, number)
        await self._write(encoded)

    async def send_file(self, name: str, offset: int, data: bytes) -> None:
        """One `F` frame: neither numbered nor kept, so gone with a connection that breaks."""
        await self._write(protocol.data_frame(protocol.FILE, name, offset, data))
        if self._writer is not None:
            with contextlib.suppress(OSError):
                await self._writer.drain()

    def _judge(self, number: int) -> None:
        if self._writer is not None and self._session.waits_for(number):
            self._why_killed = "it did not obey a stop"
            self._keeper.kill()

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._messages.get()) is not None:
            yield message
        self._messages.put_nowait(None)  # for whoever asks again

    async def close(self, *, keeps_folders: bool = False) -> None:
        """End the connection (a local agent ends everything with it) and wait for the end."""
        self._is_closing = True
        if self._writer is not None and self._lease_s is None:
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write_eof()
        if self._tasks and (self._lease_s is None or self._said_goodbye):
            # The agent reports its last exits before it closes its own end.
            patience = CLOSE_S if self._lease_s is None else HELLO_TIMEOUT_S
            await asyncio.wait(self._tasks[:1], timeout=patience)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._hang_up()
        self._messages.put_nowait(None)
        if not self._is_over:
            self._is_over = True
            self.has_ended = await self._keeper.end(keeps_folders=keeps_folders)

    async def _greet(self) -> Greeted:
        reader, writer = await self._dial()
        is_fresh = self._lease_s is not None and not self.welcome
        try:
            async with asyncio.timeout(FIRST_HELLO_S if is_fresh else HELLO_TIMEOUT_S):
                hello = {"type": "hello", "protocol": protocol.VERSION, "n": 0, **self._hello}
                hello |= {"last_seen": self._session.last_seen, "log_offsets": self.log_offsets}
                writer.write(protocol.control_frame(hello))
                decoder = protocol.Decoder(after_magic=True, most_control=budgets.MESSAGE_BYTES)
                first, rest = await welcome(reader, decoder)
        except BaseException:
            writer.close()
            raise
        self.welcome, self._heard_at = first, asyncio.get_running_loop().time()
        for encoded in self._session.resume(first.get("last_seen", 0)):
            writer.write(encoded)
        self._writer = writer
        self._keeper.reached()
        return reader, decoder, rest

    async def _receive(self, greeted: Greeted) -> None:
        try:
            while True:
                await self._read_until_lost(*greeted)
                self.files.disconnected()
                await self._hang_up()
                again = None if self._fault else await self._come_back()
                if again is None:
                    await self._keeper.explain()
                    return
                greeted = again
                self._put({"type": "link_back", **self._pids()})
                self.files.reconnected()
        finally:
            self.files.lost(f"it sent {self._fault}" if self._fault else "")
            self._messages.put_nowait(None)

    async def _read_until_lost(
        self, reader: asyncio.StreamReader, decoder: protocol.Decoder, early: list[Frame]
    ) -> None:
        try:
            await self._on_frames(early)
            while data := await reader.read(1 << 18):
                self._heard_at = asyncio.get_running_loop().time()
                await self._on_frames(decoder.feed(data))
        except protocol.ProtocolError as error:
            self._fault = self._fault or str(error)
        except OSError:
            pass

    async def _on_frames(self, frames: Iterable[Frame]) -> None:
        numbered = [self._on_frame(kind, payload) for kind, payload in frames]
        if any(numbered):
            await self._acknowledge()

    def _on_frame(self, kind: bytes, payload: bytes) -> bool:
        """True for a numbered message, which wants an acknowledgement."""
        if kind == protocol.CONTROL:
            message = protocol.read_control(payload)
            messages.check(message)
            if message["type"] == "welcome":
                raise protocol.ProtocolError("a second welcome")
            self._take(message)
            return True
        if kind == protocol.ACK:
            self._session.acknowledged(protocol.read_number(payload))
        elif kind in (protocol.LOG, protocol.FILE):
            name, offset, data = protocol.read_data(payload)
            if kind == protocol.LOG and offset != protocol.NOT_IN_FILE:
                self.log_offsets[name] = offset + len(data)
            what = "log" if kind == protocol.LOG else "file"
            self._put({"type": what, "name": name, "offset": offset, "data": data})
        return False

    def _take(self, message: dict[str, Any]) -> None:
        if self._session.is_new(message):
            message.pop("n", None)
            self.heard_goodbye = self.heard_goodbye or message["type"] == "bye"
            if message.get("stays"):
                self._keeper.leave()
            self._put(message)

    def _put(self, message: dict[str, Any]) -> None:
        if message["type"] in file_transfer.KINDS:
            self.files.hear(message)
        else:
            self._messages.put_nowait(message)

    async def _acknowledge(self) -> None:
        if not self._is_closing:  # our half is closed, but last messages still come
            await self._write(self._session.acknowledgement())

    async def _write(self, frame: bytes) -> None:
        if self._writer is None:
            return  # kept by the session, sent on resuming
        try:
            # Orders are few and small, and an agent or a line that stands still must not make the
            # coordinator stand still with it: only files wait until there is room.
            self._writer.write(frame)
        except (OSError, RuntimeError) as error:
            if self._lease_s is None:
                raise ConnectionError("the agent is gone") from error

    async def _come_back(self) -> Greeted | None:
        """The cut is told once it is known that the agent has not gone with it, as far as a
        moment can tell."""
        if self._lease_s is None or self._is_closing:
            return None
        redial = asyncio.create_task(self._redial(self._lease_s))
        try:
            await asyncio.wait([redial], timeout=CUT_TOLD_S)
            if not redial.done() or redial.result() is not None:
                why = self._keeper.story
                self._put({"type": "link_cut", "lease_s": self._lease_s, "why": why})
            return await redial
        finally:
            redial.cancel()
            await asyncio.gather(redial, return_exceptions=True)

    async def _redial(self, lease_s: float) -> Greeted | None:
        loop = asyncio.get_running_loop()
        while loop.time() < self._heard_at + lease_s:
            with contextlib.suppress(OSError, TimeoutError, protocol.ProtocolError, Refused):
                return await self._greet()
            if await self._keeper.has_gone():
                return None
            await asyncio.sleep(REDIAL_S)
        return None

    async def _ping(self) -> None:
        """Both sides ping, so silence tells that a line is cut: a cut line itself tells nothing."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PING_S)
            if self._writer is None:
                continue
            if loop.time() > self._heard_at + SILENCE_S:
                await self._keeper.cut()
            else:
                await self._write(protocol.frame(protocol.PING))

    async def _watch_over(self, patience_s: float) -> None:
        """End the link to an agent that stands still: it would tell of no exit any more, and its
        tasks would wait for it once their pipes are full. What is counted are pings without an
        answer, not time: it may be we who were stopped, or the whole machine."""
        unanswered, most = 0, max(1, round(patience_s / LOCAL_PING_S))
        while unanswered < most:
            heard_at = self._heard_at
            await self._write(protocol.frame(protocol.PING))
            await asyncio.sleep(LOCAL_PING_S)
            await asyncio.sleep(SECOND_LOOK_S)
            if self._heard_at == heard_at:
                unanswered += 1
                if unanswered == 1:
                    pid = self.welcome["pid"]
                    why = f"its agent (pid {pid}) stands still; `kill -CONT {pid}` lets it go on"
                    self._put({"type": "link_cut", "lease_s": patience_s, "why": why})
            elif unanswered:
                unanswered = 0
                self._put({"type": "link_back", **self._pids()})
        self._why_killed = f"it stood still for {patience_s:g} s"
        self._keeper.kill()
        await self._hang_up()

    def _pids(self) -> dict[str, Any]:
        return {name: self.welcome[name] for name in ("pid", "guard_pid")}

    async def _hang_up(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            # Closing would first wait until an agent that may stand still has read the rest.
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
