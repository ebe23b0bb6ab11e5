"""Connections to agents through a transport: a command whose stdin and stdout become a relay.

This is what `ssh` and `docker exec` have in common. The transport starts a bare Python on the
node with `STARTER`; everything else, the bundle included, goes over its stdin. `connect` reaches
an agent, `end_run` ends the leftovers of a lost run.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shlex
import signal
import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tfcluster.agent import bootstrap, foreign_json, protocol, relay
from tfcluster.agent.agent_config import AgentConfig, EndLostRun, NodeOrder
from tfcluster.agent.catalogue import Hello, LostRunEnded
from tfcluster.agent.containers import container_wait
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.message_fields import replace
from tfcluster.backends import bundle, handshake
from tfcluster.backends.base import Nodes, RunContext, agent_socket_name
from tfcluster.errors import NodeLostError
from tfcluster.node_loss import NodeLoss
from tfcluster.plans import remote_paths
from tfcluster.plans.plan import NodePlan
from tfcluster.rundir.forked_children import keep_from_children
from tfcluster.wire.agent_handle import AgentHandle
from tfcluster.wire.link import AgentLink, Streams
from tfcluster.wire.messages import Refused

STARTER = (
    f"import sys;sys.version_info<{container_wait.OLDEST_PYTHON} and sys.exit("
    f'"{container_wait.TOO_OLD}, and %s is %s"%(sys.executable,sys.version.split()[0]));'
    "exec(eval(sys.stdin.buffer.raw.readline()))"
)
"""Python code that runs one line of stdin, read unbuffered, and leaves the rest to that code.

A Python too old for the bundle's files reports that itself. No character in it has a meaning to
a shell within single quotes."""
_LONGEST_LINE = 2000
_KEPT_LINES = 40
"""Lines of a transport's stderr that are kept."""
_READ_AHEAD = 1 << 20
"""Bytes of the read buffer: a smaller one makes transfers of gigabytes slow."""
_END_RUN_S = 30.0
"""Seconds a node may take to end the leftovers of a lost run."""
_EXIT_S = 1.0
"""Seconds a transport that closed its end may take to exit."""


class Unreached(ConnectionError):
    """A dial failed; the text says why."""


def container_socket_name(run_id: str, node: str) -> str:
    """Return the name of the socket on which a container waits (`container_wait`)."""
    return f"{agent_socket_name(run_id, node)}.wait"


class Place(Protocol):
    """A container that was made for one agent and ends with it."""

    loss: NodeLoss | None
    """The reason why it ended or does not answer; None if unknown."""

    async def has_ended(self, stderr: str) -> bool:
        """Return whether it will never answer; `stderr`: that of a failed dial."""

    async def explain(self) -> None:
        """Update `loss`."""

    async def end(self) -> bool:
        """End it; return whether it is certain that no process in it is alive."""


class Words:
    """The meaning of what a transport writes to stderr."""

    @classmethod
    def clean(cls, line: str) -> str:
        """Return what to show of a line; empty for nothing."""
        return line.rstrip()

    @classmethod
    def proves_end(cls, stderr: str) -> bool:
        """Return whether a failed dial proves that nothing of the run can live on the node."""
        return False


class Transport:
    """A command that leads to an agent; each dial starts a new process and ends the one before."""

    def __init__(
        self,
        argv: Sequence[str],
        order: NodeOrder,
        built: bundle.Bundle,
        *,
        logs_in: bool = True,
        words: type[Words] | None = None,
    ) -> None:
        """Create a transport; `logs_in`: a login shell is run."""
        self._logs_in, self._words = logs_in, words or Words
        self._argv, self._order, self._bundle = argv, order, built
        self._process: asyncio.subprocess.Process | None = None
        self._stderr_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._listener: asyncio.Task[None] | None = None
        self._has_answered = False
        self._last_code: int | None = None
        """The exit code of the last dial, if that failed."""
        self.loss: NodeLoss | None = None
        """The end of the connection, if that ended by itself and its agent with it."""

    async def dial(self) -> Streams:
        """Return a new connection. Raises OSError with the transport's stderr, or ProtocolError."""
        await self._end_connection()
        self._stderr_lines.clear()
        self._last_code = None
        reader, writer = await self._start()
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

    async def _start(self) -> Streams:
        local_end, remote_end = map(keep_from_children, socket.socketpair())
        stderr, remote_stderr = _pipe()
        with remote_end, remote_stderr:
            streams = await asyncio.open_connection(sock=local_end, limit=_READ_AHEAD)
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=remote_end.fileno(),
                stdout=remote_end.fileno(),
                stderr=remote_stderr,
                start_new_session=True,  # the terminal's Ctrl-C must reach the coordinator only
            )
        self._listener = asyncio.create_task(self._listen(stderr))
        return streams

    async def _end_connection(self) -> None:
        is_tied = isinstance(self._order, AgentConfig) and self._order.is_tied
        has_ended = is_tied and self._has_answered and self._process is not None
        code = await self._exit_code() if has_ended else None
        await self.hang_up()
        if code is not None:
            status = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            self.loss = NodeLoss(f"its connection ended: {self.last_words() or status}")

    async def _shake_hands(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source = await asyncio.to_thread(Path(bootstrap.__file__).read_text, encoding="utf-8")
        order = self._order.to_json()
        order = {"digest": self._bundle.digest, "cache": remote_paths.CACHE, "order": order}
        await handshake.shake_hands(reader, writer, source, order, lambda: self._bundle.zip_bytes)

    async def _listen(self, stderr: io.FileIO) -> None:
        """Keep the lines of a dial.

        The pipe is not the subprocess's: a master connection of ssh (ControlPersist) keeps it open,
        and what asyncio has not closed then prints a traceback once the loop is.
        """
        reader, rest = asyncio.StreamReader(), ""
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), stderr
        )
        with contextlib.closing(pipe):
            while data := await reader.read(4096):
                *lines, rest = (rest + data.decode(errors="replace")).split("\n")
                self._stderr_lines.extend(self._words.clean(line)[:_LONGEST_LINE] for line in lines)
                rest = rest[-_LONGEST_LINE:]
        self._stderr_lines.append(self._words.clean(rest))

    def note_agent(self, identity: Mapping[str, Any] | None) -> None:
        """Note that the agent has answered: later dials join it and never start another one."""
        self._has_answered = True
        self._order = replace(self._order, starts=False, former=identity)

    async def has_agent_ended(self) -> bool:
        """Return whether the last dial has proved that agent and guard ended (`agent.fencing`)."""
        code = await self._exit_code()
        return code == relay.AGENT_GONE or self._words.proves_end(self.last_words())

    async def _exit_code(self) -> int | None:
        """Return the exit code of the last dial, or None while it runs."""
        if self._process is None:
            return self._last_code
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_S):
                await self._process.wait()
        return self._process.returncode

    async def explain(self, error: BaseException) -> str:
        """End the dial and return why the agent could not be reached."""
        if isinstance(error, Unreached):
            return describe_error(error)  # explained when the dial failed
        code = None if isinstance(error, TimeoutError) else await self._exit_code()
        await self.hang_up()
        self._last_code = code
        return handshake.explain(error, code, self.last_words(), logs_in=self._logs_in)

    def last_words(self) -> str:
        """Return what the transport, or the agent behind it, wrote to stderr."""
        return "\n".join(line for line in self._stderr_lines if line)

    async def hang_up(self) -> None:
        """Kill the transport's process, which would outlive a cut connection for long."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        listener, self._listener = self._listener, None
        if listener is not None:
            await asyncio.wait([listener], timeout=1.0)
            listener.cancel()


def _pipe() -> tuple[io.FileIO, io.FileIO]:
    """Return the read and the write end of a new pipe."""
    read_end, write_end = os.pipe()
    return keep_from_children(io.FileIO(read_end, "rb")), io.FileIO(write_end, "wb")


class _RelayedAgent(AgentHandle):
    """An agent behind a transport."""

    def __init__(self, transport: Transport, place: Place | None) -> None:
        self._transport, self._place = transport, place
        self._has_ended = False

    @property
    def loss(self) -> NodeLoss | None:
        if self._place is not None:
            return self._place.loss
        return self._transport.loss

    def last_words(self) -> str:
        return self._transport.last_words()

    async def disconnect(self) -> None:
        await self._transport.hang_up()

    async def has_gone(self) -> bool:
        stderr = self._transport.last_words()
        self._has_ended = await self._transport.has_agent_ended() or (
            self._place is not None and await self._place.has_ended(stderr)
        )
        return self._has_ended

    async def explain(self) -> None:
        if self._place is not None:
            await self._place.explain()

    def on_answer(self) -> None:
        self._transport.loss = None
        if self._place is not None:
            self._place.loss = None

    async def end(self, *, keeps_folders: bool) -> bool:
        await self._transport.hang_up()
        if self._place is None or keeps_folders:
            return self._has_ended
        return await self._place.end() or self._has_ended


async def end_run(argv: Sequence[str], *, run_id: str, former: Mapping[str, Any]) -> LostRunEnded:
    """End the leftover processes on a node of a run whose coordinator is gone (`agent.fencing`).

    `former`: the identity of the run's agent there. Return the node's answer. Raises Unreached
    with the transport's stderr.
    """
    built = await asyncio.to_thread(bundle.build)
    transport = Transport(argv, EndLostRun(run_id=run_id, former=former), built)
    try:
        reader, writer = await transport.dial()
        with contextlib.closing(writer):
            async with asyncio.timeout(_END_RUN_S):
                line = await reader.readline()
        return LostRunEnded.read(foreign_json.parse_json_object(line))
    except (OSError, TimeoutError, ValueError, protocol.ProtocolError) as error:
        raise Unreached(await transport.explain(error)) from error
    finally:
        await transport.hang_up()


async def connect(
    argv: Sequence[str],
    config: AgentConfig,
    *,
    place: Place | None = None,
    words: type[Words] | None = None,
) -> AgentLink:
    """Connect to the agent with this `config`, which is started if it does not run.

    `argv`: the transport. `place`: the container made for the agent. Raises Unreached with the
    transport's stderr.
    """
    built = await asyncio.to_thread(bundle.build)
    logs_in = place is None and not config.is_tied
    transport = Transport(argv, config, built, logs_in=logs_in, words=words)
    hello = Hello(run_id=config.run_id, node=config.node, token=config.token, stream_logs=True)
    handle = _RelayedAgent(transport, place)
    link = AgentLink(transport.dial, hello, handle, lease_s=config.lease_s)
    try:
        await link.open()
    except (OSError, TimeoutError, protocol.ProtocolError, Refused) as error:
        raise Unreached(await transport.explain(error)) from error
    except BaseException:  # cancelled by Ctrl-C
        await transport.hang_up()
        raise
    transport.note_agent(link.welcome.identity)
    return link


class RelayedNodes(Words, Nodes):
    """Nodes that exist without the run, with agents that outlive a lost connection.

    A backend of this kind says only which command leads to a node.
    """

    def __init__(self, planned: Sequence[NodePlan], run: RunContext) -> None:
        super().__init__(planned, run)
        self._agents: dict[str, Mapping[str, Any] | None] = {}
        """Node → identity of the last agent reached there."""

    @classmethod
    @abstractmethod
    def argv(cls, node: NodePlan) -> list[str]:
        """Return the command that starts a Python with `STARTER` on the node."""

    def configure(self, node: NodePlan, config: AgentConfig) -> AgentConfig:
        """Return the configuration of the node's agent with what only this backend knows."""
        return config

    @classmethod
    def fix(cls, node: NodePlan, why: str) -> str:
        """Return what to do about a message of the command, or of a program behind it."""
        return ""

    async def connect(self, node: NodePlan, *, token: str, is_fenced: bool = False) -> AgentLink:
        """Connect to the run's agent. Raises NodeLostError with the command's message."""
        config = replace(
            self.run.relayed_agent(node.name, token),
            former=self._agents.get(node.name),
            is_fenced=is_fenced,
            is_tied=node.capabilities.ties_agents,
        )
        with self._naming(node):
            argv, config = self.argv(node), self.configure(node, config)
            link = await connect(argv, config, words=type(self))
        self._agents[node.name] = link.welcome.identity
        return link

    @classmethod
    async def end_run(
        cls, node: NodePlan, *, run_id: str, former: Mapping[str, Any]
    ) -> LostRunEnded:
        with cls._naming(node):
            return await end_run(cls.argv(node), run_id=run_id, former=former)

    @classmethod
    @contextlib.contextmanager
    def _naming(cls, node: NodePlan) -> Iterator[None]:
        """Turn Unreached into an error that names the node."""
        try:
            yield
        except Unreached as error:
            message = f"{node.name} cannot be reached: {error}"
            fix = cls.fix(node, str(error))
            if node.wrap and not node.wrap[0].startswith("-"):  # else options of the transport
                words = shlex.join((*node.wrap, node.python))
                fix += f"\n  → or correct runtime.wrap: what does `{words} -V` say there?"
            raise NodeLostError(message, fix=fix) from error
