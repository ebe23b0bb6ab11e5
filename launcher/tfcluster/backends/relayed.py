"""Reaches an agent through a transport: a command whose stdin and stdout become a relay to it.

What `ssh` and `docker exec` have in common. The transport starts a bare Python on the node with
`STARTER`; all else, the bundle included, goes over its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tfcluster.agent import bootstrap, container_wait, foreign_json, protocol, relay
from tfcluster.agent.error_text import describe_error
from tfcluster.backends import bundle, handshake
from tfcluster.errors import NodeLostError
from tfcluster.plan import remote_paths
from tfcluster.wire import messages
from tfcluster.wire.agent_handle import AgentHandle
from tfcluster.wire.link import AgentLink, Streams
from tfcluster.wire.messages import Refused

STARTER = (
    f"import sys;sys.version_info<{container_wait.OLDEST_PYTHON} and sys.exit("
    f'"{container_wait.TOO_OLD}, and %s is %s"%(sys.executable,sys.version.split()[0]));'
    "exec(eval(sys.stdin.buffer.raw.readline()))"
)
"""Reads one line, unbuffered, and leaves the rest of stdin to what stood in it. An older Python
could not read our files: it says so itself. No character in it means anything to a shell within
single quotes."""
_LONGEST_LINE = 2000
_WORDS = 40
"""Lines of a transport's stderr that are kept."""
_READ_AHEAD = 1 << 20
"""Bytes that wait to be looked at: with less, gigabytes come in drops."""
_END_RUN_S = 30.0
"""How long a node may take to end what a lost run has left there."""
_LEAVE_S = 1.0
"""How long a transport that closed its end may take to exit."""


class Unreached(ConnectionError):
    """A dial failed; the text says why."""


def container_socket_name(run_id: str, node: str) -> str:
    """The socket on which a place waits for its agent (`agent.seat`)."""
    return f"{_socket_name(run_id, node)}.seat"


def _socket_name(run_id: str, node: str) -> str:
    return f"{run_id[-40:]}.{zlib.crc32(node.encode()):08x}.agent"


class Place(Protocol):
    """A container that was made for one agent, and ends with it."""

    async def has_ended(self, said: str) -> bool:
        """Whether it will never answer; `said`: the transport's words for a dial that failed."""
        ...

    explanation: str
    """What has become of it, where that is known."""

    async def explain(self) -> None:
        """Make `explanation` what can be found out now."""
        ...

    async def end(self) -> bool:
        """End it; whether it is certain that nothing in it lives."""
        ...


class Transport:
    """Dials: each time a fresh process; the one before is ended."""

    def __init__(
        self,
        argv: Sequence[str],
        order: Mapping[str, Any],
        made: bundle.Bundle,
        *,
        logs_in: bool = True,
    ) -> None:
        """`order`: what `agent.bootstrap` is to know. `logs_in`: through somebody's shell."""
        self._logs_in = logs_in
        self._argv, self._order, self._bundle = argv, order, made
        self._config = dict(order["config"])
        self._process: asyncio.subprocess.Process | None = None
        self._words: deque[str] = deque(maxlen=_WORDS)
        self._listener: asyncio.Task[None] | None = None
        self._was_there = False
        self._last_code: int | None = None
        """Of a dial that failed."""

    async def dial(self) -> Streams:
        """Raises OSError with the transport's own words, or ProtocolError."""
        await self.hang_up()
        self._words.clear()
        self._last_code = None
        ours, theirs = socket.socketpair()
        with theirs:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # the terminal's Ctrl-C is the coordinator's alone
            )
        self._listener = asyncio.create_task(self._listen(process))
        reader, writer = await asyncio.open_connection(sock=ours, limit=_READ_AHEAD)
        try:
            await self._shake_hands(reader, writer)
        except (OSError, EOFError, TimeoutError) as error:
            why = await self.explain(error)
            writer.close()
            raise Unreached(why) from error
        except BaseException:
            writer.close()
            await self.hang_up()
            raise
        return reader, writer

    async def _shake_hands(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source = await asyncio.to_thread(_bootstrap)
        order = {**self._order, "config": {**self._config, "starts": not self._was_there}}
        await handshake.shake_hands(reader, writer, source, order, lambda: self._bundle.zip_bytes)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        rest = ""
        while data := await process.stderr.read(4096):
            *lines, rest = (rest + data.decode(errors="replace")).split("\n")
            self._words.extend(line.rstrip()[:_LONGEST_LINE] for line in lines)
            rest = rest[-_LONGEST_LINE:]
        self._words.append(rest)

    def note_agent(self, identity: Mapping[str, Any] | None) -> None:
        """It has answered: from now on it is joined, never started anew."""
        self._was_there = True
        self._config["former"] = identity

    async def has_agent_gone(self) -> bool:
        """Whether the last dial has proved that agent and guard have ended (`agent.fence`)."""
        return await self._ended_with() == relay.AGENT_GONE

    async def _ended_with(self) -> int | None:
        """The exit code of the last dial; None where it goes on."""
        if self._process is None:
            return self._last_code
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._process.wait()
        return self._process.returncode

    async def explain(self, error: BaseException) -> str:
        """Why there is no agent, in the words that tell it best; the dial is over with it."""
        code = None if isinstance(error, TimeoutError) else await self._ended_with()
        await self.hang_up()
        self._last_code = code
        return handshake.explain(error, code, self.last_words(), logs_in=self._logs_in)

    def last_words(self) -> str:
        """What the transport, or the agent behind it, wrote to stderr; the last line last."""
        return "\n".join(line for line in self._words if line)

    async def hang_up(self) -> None:
        """End the transport's process, which a cut line would keep for long."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        listener, self._listener = self._listener, None
        if listener is not None:
            await asyncio.wait([listener], timeout=1.0)
            listener.cancel()


class _Reached(AgentHandle):
    """An agent behind a transport."""

    def __init__(self, transport: Transport, place: Place | None) -> None:
        self._transport, self._place = transport, place
        self._is_gone = False

    @property
    def explanation(self) -> str:
        return self._place.explanation if self._place is not None else ""

    def last_words(self) -> str:
        return self._transport.last_words()

    async def disconnect(self) -> None:
        await self._transport.hang_up()

    async def has_gone(self) -> bool:
        said = self._transport.last_words()
        self._is_gone = await self._transport.has_agent_gone() or (
            self._place is not None and await self._place.has_ended(said)
        )
        return self._is_gone

    async def explain(self) -> None:
        if self._place is not None:
            await self._place.explain()

    def on_answer(self) -> None:
        if self._place is not None:
            self._place.explanation = ""

    async def end(self, *, keeps_folders: bool) -> bool:
        await self._transport.hang_up()
        if self._place is None or keeps_folders:
            return self._is_gone
        return await self._place.end() or self._is_gone


async def end_run(
    argv: Sequence[str], *, run_id: str, former: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Have a node end what a run whose coordinator is gone has left there (`agent.lost_run`).
    `former`: the identity of its agent.

    Raises Unreached with the transport's own words.
    """
    made = await asyncio.to_thread(bundle.build)
    config = {"ends": True, "run_id": run_id, "former": former}
    order = {"digest": made.digest, "cache": remote_paths.CACHE, "config": config}
    transport = Transport(argv, order, made)
    try:
        reader, writer = await transport.dial()
        with contextlib.closing(writer):
            async with asyncio.timeout(_END_RUN_S):
                found = foreign_json.parse_json_object(await reader.readline())
        messages.check_ended(found)
    except (OSError, TimeoutError, ValueError, protocol.ProtocolError) as error:
        why = (
            describe_error(error)
            if isinstance(error, Unreached)
            else await transport.explain(error)
        )
        raise Unreached(why) from error
    finally:
        await transport.hang_up()
    return found


def _bootstrap() -> str:
    return Path(bootstrap.__file__).read_text(encoding="utf-8")


async def connect(
    node: str,
    argv: Sequence[str],
    *,
    run_id: str,
    token: str,
    lease_s: float,
    place: Place | None = None,
    former: Mapping[str, Any] | None = None,
    is_fenced: bool = False,
) -> AgentLink:
    """Reach the agent of `node`, started if need be, and greet it. `place`: what was made for it;
    `former`: the identity of the agent before it, which must have ended, and of which nothing
    can live any more where it `is_fenced`.

    Raises NodeLostError with the transport's own words.
    """
    made = await asyncio.to_thread(bundle.build)
    name = _socket_name(run_id, node)
    identity = {"run_id": run_id, "node": node, "token": token}
    config = {**identity, "socket": name, "ports_dir": "ports", "lease_s": lease_s}
    config |= {"former": former, "is_fenced": is_fenced}
    if place is not None:
        config["seat"] = container_socket_name(run_id, node)
    order = {"digest": made.digest, "cache": remote_paths.CACHE, "config": config}
    transport = Transport(argv, order, made, logs_in=place is None)
    hello, handle = {**identity, "stream_logs": True}, _Reached(transport, place)
    link = AgentLink(transport.dial, hello, handle, lease_s=lease_s)
    try:
        await link.open()
    except (OSError, TimeoutError, protocol.ProtocolError, Refused) as error:
        why = (
            describe_error(error)
            if isinstance(error, Unreached)
            else await transport.explain(error)
        )
        raise NodeLostError(f"{node} cannot be reached: {why}") from error
    except BaseException:  # called off: Ctrl-C
        await transport.hang_up()
        raise
    transport.note_agent(link.welcome.get("identity"))
    return link
