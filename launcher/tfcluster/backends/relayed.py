"""Reaches an agent through a transport: a command whose stdin and stdout become a relay to it.

What `ssh` and `docker exec` have in common. The transport starts a bare Python on the node with
`STARTER`; all else, the bundle included, goes over its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfcluster.agent import bootstrap, protocol, relay
from tfcluster.backends import bundle
from tfcluster.backends.greeting import Refused
from tfcluster.backends.link import AgentLink, Streams
from tfcluster.errors import NodeLostError
from tfcluster.plan import remote

STARTER = "import sys;exec(eval(sys.stdin.buffer.raw.readline()))"
"""Reads one line, unbuffered, and leaves the rest of stdin to what stood in it. No character in
it means anything to a shell within single quotes."""
HANDSHAKE_S = 60.0
"""From the transport's start to its relay, the bundle's way over a slow line included."""
_LONGEST_LINE = 2000
_WORDS = 40
"""Lines of a transport's stderr that are kept."""


class Transport:
    """Dials: each time a fresh process; the one before is ended."""

    def __init__(self, argv: Sequence[str], order: Mapping[str, Any], made: bundle.Bundle) -> None:
        """`order`: what `agent.bootstrap` is to know."""
        self._argv, self._order, self._bundle = argv, order, made
        self._process: asyncio.subprocess.Process | None = None
        self._words: deque[str] = deque(maxlen=_WORDS)
        self._listener: asyncio.Task[None] | None = None
        self._was_there = False

    async def dial(self) -> Streams:
        """Raises OSError with the transport's own words, or ProtocolError."""
        await self.hang_up()
        self._words.clear()
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
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._shake_hands(reader, writer)
        except (OSError, EOFError, TimeoutError) as error:
            writer.close()
            await self.hang_up()
            raise ConnectionError(self.last_words() or str(error) or "no answer") from error
        except BaseException:
            writer.close()
            await self.hang_up()
            raise
        return reader, writer

    async def _shake_hands(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source = repr(await asyncio.to_thread(_bootstrap))
        config = {**self._order["config"], "starts": not self._was_there}
        order = {**self._order, "config": config}
        writer.write(f"{source}\n{json.dumps(order)}\n".encode())
        await writer.drain()
        if await _answer(reader) == bootstrap.NEED:
            content = self._bundle.zip_bytes
            writer.write(b"%d\n" % len(content) + content)
            await writer.drain()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        rest = ""
        while data := await process.stderr.read(4096):
            *lines, rest = (rest + data.decode(errors="replace")).split("\n")
            self._words.extend(line.rstrip()[:_LONGEST_LINE] for line in lines)
            rest = rest[-_LONGEST_LINE:]
        self._words.append(rest)

    def note_agent(self) -> None:
        """It has answered: from now on it is joined, never started anew."""
        self._was_there = True

    async def has_agent_gone(self) -> bool:
        """Whether the last dial found the node, but no agent of this run on it."""
        if self._process is None:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._process.wait()
        return self._process.returncode == relay.AGENT_GONE

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


def _bootstrap() -> str:
    return Path(bootstrap.__file__).read_text(encoding="utf-8")


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """`HAVE` or `NEED`, after whatever a login prints first. Raises ProtocolError, EOFError."""
    seen = b""
    while True:
        try:
            seen += await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            shown = (seen + end.partial)[-400:].decode(errors="replace").strip()
            raise EOFError(f"it closed the connection; it said: {shown}") from None
        except asyncio.LimitOverrunError as over:
            seen += await reader.readexactly(over.consumed)
        for answer in (bootstrap.HAVE, bootstrap.NEED):
            if seen.endswith(answer):
                return answer
        if len(seen) > protocol.MAX_NOISE:
            raise protocol.ProtocolError(f"no agent answered; instead came: {seen[:400]!r}")


async def connect(
    node: str, argv: Sequence[str], *, run_id: str, token: str, lease_s: float
) -> AgentLink:
    """Reach the agent of `node`, started if need be, and greet it.

    Raises NodeLostError with the transport's own words.
    """
    made = await asyncio.to_thread(bundle.build)
    name = f"{run_id[-40:]}.{zlib.crc32(node.encode()):08x}.agent"
    identity = {"run_id": run_id, "node": node, "token": token}
    config = {**identity, "socket": name, "ports_dir": "ports", "lease_s": lease_s}
    order = {"digest": made.digest, "cache": remote.CACHE, "config": config}
    transport = Transport(argv, order, made)
    link = AgentLink(
        transport.dial,
        {**identity, "stream_logs": True},
        lease_s=lease_s,
        ended=transport.hang_up,
        last_words=transport.last_words,
        gone=transport.has_agent_gone,
        cut=transport.hang_up,
    )
    try:
        await link.open()
    except (OSError, TimeoutError, protocol.ProtocolError, Refused) as error:
        await transport.hang_up()
        words = transport.last_words() or error
        raise NodeLostError(f"{node} cannot be reached: {words}") from error
    except BaseException:  # called off: Ctrl-C
        await transport.hang_up()
        raise
    transport.note_agent()
    return link
