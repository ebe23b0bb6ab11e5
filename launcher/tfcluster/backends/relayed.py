"""Connections to agents through a transport: a command whose stdin and stdout become a relay.

This is what `ssh` and `docker exec` have in common. The transport starts a bare Python on the
node with `STARTER`; everything else, the bundle included, goes over its stdin. `connect` reaches
an agent, `end_run` ends the leftovers of a lost run.

Progress counts, not time: the bundle may take long over a slow line, but a host that sends
nothing for ten seconds is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shlex
import signal
import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from tfcluster.agent import bootstrap, foreign_json, protocol, relay
from tfcluster.agent.agent_config import AgentConfig, EndLostRun, NodeOrder
from tfcluster.agent.catalogue import Hello, LostRunEnded
from tfcluster.agent.containers import container_wait
from tfcluster.agent.message_fields import replace
from tfcluster.backends import bundle
from tfcluster.backends.base import Nodes, RunContext, agent_socket_name
from tfcluster.errors import NodeLostError
from tfcluster.node_loss import NodeLoss
from tfcluster.plans import remote_paths
from tfcluster.plans.plan import NodePlan
from tfcluster.rundir.forked_children import keep_from_children
from tfcluster.wire.agent_handle import AgentHandle
from tfcluster.wire.agent_link import AgentLink, ByteStreams
from tfcluster.wire.messages import HelloRefused


class DialFault(Enum):
    """The reason why an agent is not reached, where tfcluster itself knows it."""

    OLD_PYTHON = "its Python is too old"
    UNSAFE_FOLDER = "other users can use the folder of its sockets"
    LOGIN = "its login hangs, or ends the shell"


class Unreached(ConnectionError):
    """A dial failed; the text says why.

    `stderr`: what of it the transport, or a program behind it, has written.
    """

    def __init__(self, reason: str, stderr: str = "", fault: DialFault | None = None) -> None:
        super().__init__(reason)
        self.stderr, self.fault = stderr, fault


SILENCE_S = 10.0
"""Seconds without any byte that end a dial: ssh itself gives up after 8 s, with a message."""
PER_DIAL_S = 0.25
"""Seconds added for each other host dialled at the same time: the clients share our processors."""
_TRACEBACK = "Traceback (most recent call last):"
_PYTHON_MESSAGES = (_TRACEBACK, "Unknown option: -I")
"""Texts that only a Python prints; the last one is Python 2's."""
_TRACEBACK_LINES = re.compile(
    r"\s|Traceback \(most recent call last\):$|The above exception was the direct cause"
    r"|During handling of the above exception|$"
)
_QUALIFIED = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z]\w*(?:Error|Exception)\b)")
_SSH_FAILED = 255
_NO_PROGRAM = (126, 127)
"""Exit codes of shells that cannot run a program."""
_OLD_PYTHON = 78
"""The exit code of `STARTER` in a Python that is too old."""
_FAULTS = {_OLD_PYTHON: DialFault.OLD_PYTHON, relay.UNSAFE_FOLDER: DialFault.UNSAFE_FOLDER}
_SELF_EXPLAINING = (_SSH_FAILED, relay.NOT_REACHED, *_NO_PROGRAM, *_FAULTS)
"""Exit codes of programs whose stderr explains the failure best."""

STARTER = (
    f"import sys;sys.version_info<{container_wait.OLDEST_PYTHON} and (sys.stderr.write("
    f'"{container_wait.TOO_OLD}, and %s is %s"%(sys.executable,sys.version.split()[0])),'
    f"sys.exit({_OLD_PYTHON}));exec(eval(sys.stdin.buffer.raw.readline()))"
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
_EXIT_S = 3.0
"""Seconds a transport that closed its end may take to exit."""


def container_socket_name(run_id: str, node: str) -> str:
    """Return the name of the socket on which a container waits (`container_wait`)."""
    return f"{agent_socket_name(run_id, node)}.wait"


_dials_in_progress = 0


@contextmanager
def _patience() -> Iterator[float]:
    """Count one more dial in progress and yield how many seconds may pass without any byte."""
    global _dials_in_progress
    _dials_in_progress += 1
    try:
        yield SILENCE_S + PER_DIAL_S * (_dials_in_progress - 1)
    finally:
        _dials_in_progress -= 1


async def _shake_hands(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    source: str,
    order: Mapping[str, Any],
    bundle: Callable[[], bytes],
) -> None:
    """Send the bootstrap (`source`), its `order`, and the bundle if the node asks for it.

    Raises TimeoutError, EOFError, ProtocolError, OSError.
    """
    with _patience() as silence_s:
        async with asyncio.timeout(silence_s) as limit:

            def progress() -> None:
                limit.reschedule(asyncio.get_running_loop().time() + silence_s)

            writer.write(f"{source!r}\n{json.dumps(order, default=vars)}\n".encode())
            with contextlib.suppress(ConnectionError):
                await writer.drain()  # fails if the process has exited; its output is read first
            if await _answer(reader, progress) == bootstrap.NEED:
                content = bundle()
                writer.write(b"%d\n" % len(content) + content)
                while await _answer(reader, progress) == bootstrap.GOT:
                    pass


async def _answer(reader: asyncio.StreamReader, progress: Callable[[], None]) -> bytes:
    """Return the bootstrap's next answer, skipping what a login prints first."""
    received = b""
    while True:
        try:
            received += await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            raise EOFError(_tail(received + end.partial)) from None
        except ConnectionError:
            raise EOFError(_tail(received)) from None
        except asyncio.LimitOverrunError as over:
            received += await reader.readexactly(over.consumed)
        progress()
        for answer in (bootstrap.HAVE, bootstrap.NEED, bootstrap.GOT):
            if received.endswith(answer):
                return answer
        if len(received) > protocol.MAX_NOISE:
            shown = received[:400].decode(errors="replace")
            raise protocol.ProtocolError(f"no agent answered; the output was: {shown}")


def _tail(received: bytes) -> str:
    return received[-400:].decode(errors="replace").strip()


def explain_dial(
    error: BaseException, code: int | None, stderr: str, *, logs_in: bool = True
) -> Unreached:
    """Return why the agent could not be reached.

    `code`: the transport's exit code, None while it runs. `stderr`: what the transport, or a
    program behind it, wrote to stderr. `logs_in`: the transport goes through a login shell.
    """
    text = shorten_tracebacks(stderr)
    if text and (code in _SELF_EXPLAINING or any(text in stderr for text in _PYTHON_MESSAGES)):
        return Unreached(text, text, _FAULTS.get(code or 0))
    if isinstance(error, TimeoutError):
        reason = f"no answer for {SILENCE_S:.0f} s"
        reason += ": does its login hang?" if logs_in else "."
    elif not logs_in:
        # What a container or a prolog has printed before is no reason.
        if code is None or not isinstance(error, EOFError):
            return Unreached(text or str(error) or f"exit code {code}", text)
        printed = f"; its output: {error}" if str(error) else ""
        return Unreached(text or f"it ended with exit code {code}{printed}", text)
    elif isinstance(error, EOFError | ConnectionResetError) and code is not None:
        reason = (
            f"its login ended with exit code {code} before tfcluster's code ran:"
            " does a .bashrc or .profile end the shell?"
        )
    else:
        return Unreached(text or str(error) or type(error).__name__, text)
    output = "\n".join(filter(None, (text, str(error) if isinstance(error, EOFError) else "")))
    if output:
        reason += f" Its output: {output}"
    return Unreached(reason, text, DialFault.LOGIN if logs_in else None)


def shorten_tracebacks(stderr: str) -> str:
    """Return `stderr` with every Python traceback reduced to its exception."""
    if _TRACEBACK not in stderr:
        return stderr
    kept = [line for line in stderr.splitlines() if not _TRACEBACK_LINES.match(line)]
    return "\n".join(_QUALIFIED.sub("", line) for line in kept)


class AgentContainer(Protocol):
    """A container that was made for one agent and ends with it."""

    loss: NodeLoss | None
    """The reason why it ended or does not answer; None if unknown."""

    async def has_ended(self, stderr: str) -> bool:
        """Return whether it will never answer; `stderr`: that of a failed dial."""

    async def explain(self) -> None:
        """Update `loss`."""

    async def end(self) -> bool:
        """End it; return whether it is certain that no process in it is alive."""


class Transport(AgentHandle):
    """A command that leads to an agent; each dial starts a new process and ends the one before."""

    def __init__(
        self,
        argv: Sequence[str],
        order: NodeOrder,
        built: bundle.Bundle,
        *,
        container: AgentContainer | None = None,
        nodes: type[RelayedNodes] | None = None,
    ) -> None:
        """Create a transport. `container`: the one made for the agent; `nodes`: its backend."""
        self._is_tied = isinstance(order, AgentConfig) and order.is_tied
        self._logs_in = container is None and not self._is_tied
        self._container, self._nodes = container, nodes or RelayedNodes
        self._argv, self._order, self._bundle = argv, order, built
        self._process: asyncio.subprocess.Process | None = None
        self._stderr_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._listener: asyncio.Task[None] | None = None
        self._has_answered = False
        self._last_code: int | None = None
        """The exit code of the last dial, if that failed."""
        self._loss: NodeLoss | None = None
        """The end of the connection, if that ended by itself and its agent with it."""
        self._agent_has_ended = False

    async def dial(self) -> ByteStreams:
        """Return a new connection. Raises OSError with the transport's stderr, or ProtocolError."""
        await self._end_connection()
        self._stderr_lines.clear()
        self._last_code = None
        reader, writer = await self._start()
        try:
            await self._begin(reader, writer)
        except (OSError, EOFError, TimeoutError) as error:
            unreached = await self.end_unreached(error)
            writer.close()
            raise unreached from error
        except BaseException:
            writer.close()
            await self.disconnect()
            raise
        return reader, writer

    async def _start(self) -> ByteStreams:
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
        has_ended = self._is_tied and self._has_answered and self._process is not None
        code = await self._exit_code() if has_ended else None
        await self.disconnect()
        if code is not None:
            status = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            self._loss = NodeLoss(f"its connection ended: {self.last_words() or status}")

    async def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source = await asyncio.to_thread(Path(bootstrap.__file__).read_text, encoding="utf-8")
        order = self._order.to_json()
        order = {"digest": self._bundle.digest, "cache": remote_paths.CACHE, "order": order}
        await _shake_hands(reader, writer, source, order, lambda: self._bundle.zip_bytes)

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
                self._stderr_lines.extend(self._nodes.clean(line)[:_LONGEST_LINE] for line in lines)
                rest = rest[-_LONGEST_LINE:]
        self._stderr_lines.append(self._nodes.clean(rest))

    def note_agent(self, identity: Mapping[str, Any] | None) -> None:
        """Note that the agent has answered: later dials join it and never start another one."""
        self._has_answered = True
        self._order = replace(self._order, starts=False, former=identity)

    @property
    def loss(self) -> NodeLoss | None:
        return self._loss if self._container is None else self._container.loss

    def on_answer(self) -> None:
        self._loss = None
        if self._container is not None:
            self._container.loss = None

    async def explain(self) -> None:
        if self._container is not None:
            await self._container.explain()

    async def has_gone(self) -> bool:
        """Return whether the last dial has proved that agent and guard ended (`agent.fencing`)."""
        code, stderr = await self._exit_code(), self.last_words()
        has_ended = code == relay.AGENT_GONE or self._nodes.proves_end(stderr)
        if self._container is not None and not has_ended:
            has_ended = await self._container.has_ended(stderr)
        self._agent_has_ended = has_ended
        return has_ended

    async def end(self, *, keeps_folders: bool) -> bool:
        await self.disconnect()
        if self._container is None or keeps_folders:
            return self._agent_has_ended
        return await self._container.end() or self._agent_has_ended

    async def _exit_code(self) -> int | None:
        """Return the exit code of the last dial, or None while it runs."""
        if self._process is None:
            return self._last_code
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_S):
                await self._process.wait()
        return self._process.returncode

    async def end_unreached(self, error: BaseException) -> Unreached:
        """End the dial and return why the agent could not be reached."""
        code = None if isinstance(error, TimeoutError) else await self._exit_code()
        await self.disconnect()
        self._last_code = code
        return explain_dial(error, code, self.last_words(), logs_in=self._logs_in)

    def last_words(self) -> str:
        """Return what the transport, or the agent behind it, wrote to stderr."""
        return "\n".join(line for line in self._stderr_lines if line)

    async def disconnect(self) -> None:
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
    except Unreached:  # explained when the dial failed
        raise
    except (OSError, TimeoutError, ValueError, protocol.ProtocolError) as error:
        raise await transport.end_unreached(error) from error
    finally:
        await transport.disconnect()


async def connect(
    argv: Sequence[str],
    config: AgentConfig,
    *,
    container: AgentContainer | None = None,
    nodes: type[RelayedNodes] | None = None,
) -> AgentLink:
    """Connect to the agent with this `config`, which is started if it does not run.

    `argv`, `container` and `nodes`: see `Transport`. Raises Unreached with the transport's stderr.
    """
    built = await asyncio.to_thread(bundle.build)
    transport = Transport(argv, config, built, container=container, nodes=nodes)
    hello = Hello(run_id=config.run_id, node=config.node, token=config.token, stream_logs=True)
    link = AgentLink(transport.dial, hello, transport, lease_s=config.lease_s)
    try:
        await link.open()
    except Unreached:
        raise
    except (OSError, TimeoutError, protocol.ProtocolError, HelloRefused) as error:
        raise await transport.end_unreached(error) from error
    except BaseException:  # cancelled by Ctrl-C
        await transport.disconnect()
        raise
    transport.note_agent(link.welcome.identity)
    return link


class RelayedNodes(Nodes):
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
    def clean(cls, line: str) -> str:
        """Return what to show of a line of the command's stderr; empty for nothing."""
        return line.rstrip()

    @classmethod
    def proves_end(cls, stderr: str) -> bool:
        """Return whether a failed dial proves that nothing of the run can live on the node."""
        return False

    @classmethod
    def fix(cls, node: NodePlan, error: Unreached) -> str:
        """Return what to do where the command, or a program behind it, did not lead to an agent."""
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
            link = await connect(argv, config, nodes=type(self))
        self._agents[node.name] = link.welcome.identity
        return link

    @classmethod
    async def end_run(
        cls, node: NodePlan, *, run_id: str, former: Mapping[str, Any]
    ) -> LostRunEnded:
        with cls._naming(node):
            return await end_run(cls.argv(node), run_id=run_id, former=former)

    @classmethod
    @contextmanager
    def _naming(cls, node: NodePlan) -> Iterator[None]:
        """Turn Unreached into an error that names the node."""
        try:
            yield
        except Unreached as error:
            fix = cls.fix(node, error)
            if node.wrap and not node.wrap[0].startswith("-"):  # else options of the transport
                words = shlex.join((*node.wrap, node.python))
                fix += f"\n  → or correct runtime.wrap: what does `{words} -V` say there?"
            raise NodeLostError(f"cannot be reached: {error}", fix=fix, node=node.name) from error
