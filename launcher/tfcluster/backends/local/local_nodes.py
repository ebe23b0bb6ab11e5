"""`LocalNodes`: the agent runs on this machine and ends with the coordinator."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from tfcluster.agent import foreign_json, protocol
from tfcluster.agent.agent_config import AgentConfig
from tfcluster.agent.catalogue import Hello, Welcome
from tfcluster.agent.entry import READY, REFUSED
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.processes import kill_below, raise_limit, signal_group, start_time
from tfcluster.backends.base import Nodes, agent_socket_name
from tfcluster.backends.local import warm_agents
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.plans.plan import NodePlan
from tfcluster.rundir.forked_children import keep_from_children
from tfcluster.wire.agent_handle import AgentHandle
from tfcluster.wire.agent_link import AgentLink, ByteStreams
from tfcluster.wire.messages import HelloRefused

_START = "import sys; sys.path.append(sys.argv[1]); from tfcluster.agent.entry import main; main()"
_START_TIMEOUT_S = 20.0
_PATIENCE_S = 60.0
"""Seconds after which a hanging local agent is lost, even if `lease_s` is longer."""
_AGENT_END_S, _GUARD_END_S = 1.0, 10.0
"""Seconds to wait for an agent whose link is closed, and for a guard that kills its tasks."""
_SOCKET_PATH_LIMIT = 103
"""The longest socket path in bytes; macOS has 104 with the terminator, Linux 108."""


def socket_path(runtime_dir: Path, run_id: str, node: str) -> Path:
    """Return the socket path of a run's agent. Raises NodeLostError if it is too long."""
    path = runtime_dir / agent_socket_name(run_id, node)
    if len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
        raise NodeLostError(
            f"{path} is too long for a Unix socket",
            fix="set XDG_RUNTIME_DIR to a folder with a shorter path",
        )
    return path


class LocalNodes(Nodes):
    """This machine."""

    python = sys.executable

    async def connect(self, node: NodePlan, *, token: str, is_fenced: bool = False) -> AgentLink:
        """Start this node's agent and connect to it.

        Raises NodeLostError, or SetupError if this machine refuses a private network.
        """
        path = socket_path(self.run.runtime_dir, self.run.run_id, node.name)
        process = await self._start_in_thread(self._config(token, path, node), node)

        async def dial() -> ByteStreams:
            connection = keep_from_children(socket.socket(socket.AF_UNIX))
            try:
                connection.connect(str(path))  # at once: it listens
                return await asyncio.open_unix_connection(sock=connection)
            except BaseException:
                connection.close()
                raise

        hello = Hello(run_id=self.run.run_id, node=node.name, token=token)
        patience_s = min(self.run.lease_s, _PATIENCE_S)
        link = AgentLink(dial, hello, process, patience_s=patience_s)
        try:
            await link.open()
        except BaseException as error:
            await process.end(keeps_folders=False)
            if isinstance(error, OSError | TimeoutError | protocol.ProtocolError | HelloRefused):
                message = f"the agent of {node.name} does not answer: {describe_error(error)}"
                raise NodeLostError(message) from error
            raise
        process.note_agent(link.welcome)
        return link

    def _config(self, token: str, path: Path, node: NodePlan) -> AgentConfig:
        warm, is_private = None, node.network == "private"
        if node.warm is not None:
            about = node.interpreter.path if node.interpreter is not None else "python"
            warm = warm_agents.stay(self.run.runtime_dir, node.warm, about)
        return AgentConfig(
            run_id=self.run.run_id,
            node=node.name,
            token=token,
            socket=str(path),
            ports_dir=None if is_private else str(self.run.runtime_dir / "ports"),
            is_private=is_private,
            descriptors=raise_limit(),  # the limit the shell set, which is the tasks' limit
            warm=warm,
        )

    async def _start_in_thread(
        self, config: AgentConfig, node: NodePlan
    ) -> AgentProcess | warm_agents.Adopted:
        """Start the agent in a thread; if cancelled, wait for the thread and end the agent."""
        starting = asyncio.create_task(asyncio.to_thread(self._start, config, node))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            if starting.exception() is None:
                await starting.result().end(keeps_folders=False)
            raise

    def _start(self, config: AgentConfig, node: NodePlan) -> AgentProcess | warm_agents.Adopted:
        """Return a new agent, or a warm one that an earlier run left for this run."""
        if node.warm is None:
            return AgentProcess(self.python, config)
        if adopted := warm_agents.adopt(self.run.runtime_dir, node.warm.key, config):
            return adopted
        return AgentProcess(self.python, config, name=f"warm-{node.warm.key}")


def _start_error(answer: bytes, last_words: str) -> SetupError:
    """Return the error for an agent that did not answer `READY`."""
    if answer.startswith(REFUSED):
        refusal = foreign_json.parse_json_object(answer.removeprefix(REFUSED))
        return SetupError(refusal["message"], fix=refusal["fix"])
    return NodeLostError(f"the agent did not start: {last_words or 'it printed nothing'}")


class AgentProcess(AgentHandle):
    """An agent and its guard; the guard is a child of this process and ends after the agent."""

    can_kill = True

    def __init__(self, python: str, config: AgentConfig, *, name: str | None = None) -> None:
        """Start the agent and block until it listens.

        `name`: replaces the run's id in the process list, for an agent that may serve other runs
        too. Raises NodeLostError with the agent's stderr, or SetupError with what this
        machine refuses.
        """
        self._stays = False
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `wait`)
        self._last_words = ""
        self._agent: tuple[int, int] | None = None
        """The agent's process id (also its process group) and start time, once known."""
        package_root = str(Path(__file__).parents[3])
        # -I -S: no code from the user's environment runs in the agent, and it starts fast.
        self._process = subprocess.Popen(
            # The run's id is for `ps`, and for the clean-up after a lost run.
            [python, "-I", "-S", "-c", _START, package_root, name or config.run_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd="/",
            start_new_session=True,
        )
        self._await_ready(config.to_line())

    def _await_ready(self, config: bytes) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            with stdin:
                stdin.write(config)
            ready, _, _ = select.select([stdout], [], [], _START_TIMEOUT_S)
            answer = os.read(stdout.fileno(), 4096) if ready else b""
        except OSError:
            answer = b""
        finally:
            stdout.close()
        if answer != READY:
            kill_below(self._process.pid, _AGENT_END_S)  # it may hang
            try:
                self._process.wait(_AGENT_END_S)  # a guard removes its agent's socket
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            stderr = self.last_words()
            self._errors.close()
            raise _start_error(answer, stderr)

    def note_agent(self, welcome: Welcome) -> None:
        """Note the agent's process id; the process started here became the guard."""
        self._agent = (welcome.pid, start_time(welcome.pid))

    def detach(self) -> None:
        self._stays = True

    def last_words(self) -> str:
        """Return what the agent wrote to its stderr; a healthy one writes nothing."""
        if self._errors.closed:
            return self._last_words
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-4000:]

    async def end(self, *, keeps_folders: bool) -> bool:
        if self._stays:
            self._process.returncode = 0  # keeps `Popen` from waiting for it
            self._errors.close()
        else:
            await self.wait()
        return True

    async def wait(self) -> None:
        """Reap agent and guard, and kill them if they do not exit.

        The agent (it may be stopped) is killed first, so that its guard kills the tasks. If the
        guard does not exit then (the agent's process id is not known yet, or the agent cannot be
        killed), all its descendants are killed, and the guard last.
        """
        try:
            if await self._has_ended(_AGENT_END_S):
                return
            self.kill()
            if self._agent is not None and await self._has_ended(_GUARD_END_S):
                return
            await asyncio.to_thread(kill_below, self._process.pid, _AGENT_END_S)
            if not await self._has_ended(_AGENT_END_S):
                self._process.kill()
                await asyncio.to_thread(self._process.wait)
        finally:
            self._last_words = self.last_words()
            self._errors.close()

    def kill(self) -> None:
        """Send SIGKILL to the agent if it is alive; its guard then kills the tasks."""
        if self._agent is not None:
            signal_group(*self._agent, signal.SIGKILL)

    async def _has_ended(self, patience_s: float) -> bool:
        try:
            await asyncio.to_thread(self._process.wait, patience_s)
        except subprocess.TimeoutExpired:
            return False
        return True
