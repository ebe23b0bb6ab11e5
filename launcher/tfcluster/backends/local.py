"""Tasks on this machine: the agent is started here, in a session of its own, and ends with us."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tfcluster.agent import foreign_json, protocol
from tfcluster.agent.entry import READY, REFUSED
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.processes import IS_LINUX, kill_below, raise_limit, signal_group, start_time
from tfcluster.backends import warm_agents
from tfcluster.backends.base import Capabilities, Tell, ignore_event
from tfcluster.errors import NodeLostError, SurroundingsError
from tfcluster.plan.plan import NodePlan
from tfcluster.wire.agent_handle import AgentHandle
from tfcluster.wire.link import AgentLink, Streams
from tfcluster.wire.messages import Refused

_START = "import sys; sys.path.append(sys.argv[1]); from tfcluster.agent.entry import main; main()"
_START_TIMEOUT_S = 20.0
_PATIENCE_S = 60.0
"""An agent here that stands still so long is lost, however long the lease of others is."""
_AGENT_END_S, _GUARD_END_S = 1.0, 10.0
"""The agent's is over when its link is closed; its guard may still be ending what it left."""
_SOCKET_PATH_LIMIT = 103
"""Bytes; macOS has 104 with the terminator, Linux 108."""


class LocalBackend:
    """The backend called ``local``."""

    capabilities = Capabilities(shares_filesystem=True, has_lease=False, holds_ports=IS_LINUX)
    may_hold_resources = False

    def __init__(self, runtime_dir: Path, *, python: str = sys.executable) -> None:
        self._runtime_dir, self._python = runtime_dir, python

    async def connect(
        self,
        node: NodePlan,
        *,
        run_id: str,
        token: str,
        tell: Tell = ignore_event,
        lease_s: float = 60.0,
        is_fenced: bool = False,
    ) -> AgentLink:
        """Start this node's agent and greet it; raises NodeLostError, or SurroundingsError
        where this machine refuses the private network it asks for."""
        path = socket_path(self._runtime_dir, run_id, node.name)
        identity = {"run_id": run_id, "node": node.name, "token": token}
        process = await self._start_whole(self._config(identity, path, node), node)

        async def dial() -> Streams:
            return await asyncio.open_unix_connection(str(path))

        link = AgentLink(
            dial, {**identity, "stream_logs": False}, process, patience_s=min(lease_s, _PATIENCE_S)
        )
        try:
            await link.open()
        except BaseException as error:
            await process.end(keeps_folders=False)
            if isinstance(error, OSError | TimeoutError | protocol.ProtocolError | Refused):
                message = f"the agent of {node.name} does not answer: {describe_error(error)}"
                raise NodeLostError(message) from error
            raise
        process.note_agent(link.welcome)
        return link

    def _config(self, identity: Mapping[str, str], path: Path, node: NodePlan) -> dict[str, object]:
        is_private = node.network == "private"
        return {
            **identity,
            "socket": str(path),
            "ports_dir": None if is_private else str(self._runtime_dir / "ports"),
            "network": node.network,
            "lease_s": None,
            "descriptors": raise_limit(),  # as the shell gave it to us: the tasks' own
        }

    async def _start_whole(
        self, config: dict[str, object], node: NodePlan
    ) -> AgentProcess | warm_agents.Adopted:
        """Started in a thread, which cannot be called off: then what it has started is ended."""
        starting = asyncio.create_task(asyncio.to_thread(self._start, config, node))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            if starting.exception() is None:
                await starting.result().end(keeps_folders=False)
            raise

    def _start(
        self, config: dict[str, object], node: NodePlan
    ) -> AgentProcess | warm_agents.Adopted:
        """A new agent, or one that an earlier run has left for this one."""
        if node.warm is None:
            return AgentProcess(self._python, config)
        python = node.interpreter.path if node.interpreter is not None else "python"
        config["warm"] = warm_agents.config(self._runtime_dir, node.warm, python)
        if adopted := warm_agents.adopt(self._runtime_dir, node.warm.key, config):
            return adopted
        return AgentProcess(self._python, config, name=f"warm-{node.warm.key}")

    async def repair(self) -> list[str]:
        return []

    async def close(self, *, keeps_folders: bool = False) -> list[str]:
        """Nothing is made for a run as a whole."""
        return []


def _start_error(answer: bytes, last_words: str) -> SurroundingsError:
    """Why an agent that answered something else than `READY` did not start."""
    if answer.startswith(REFUSED):
        refusal = foreign_json.parse_json_object(answer.removeprefix(REFUSED))
        return SurroundingsError(refusal["message"], fix=refusal["cure"])
    return NodeLostError(f"the agent did not start: {last_words or 'it said nothing'}")


def socket_path(runtime_dir: Path, run_id: str, node: str) -> Path:
    """Where a run's agent on `node` listens; raises NodeLostError when the folder is too deep."""
    path = runtime_dir / f"{run_id[-40:]}.{zlib.crc32(node.encode()):08x}.agent"
    if len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
        raise NodeLostError(
            f"{path} is too long for a Unix socket",
            fix="set XDG_RUNTIME_DIR to a folder with a shorter path",
        )
    return path


class AgentProcess(AgentHandle):
    """A started agent and its guard; the guard is our child, its end is the end of both."""

    can_kill = True

    def __init__(
        self, python: str, config: Mapping[str, object], *, name: str | None = None
    ) -> None:
        """Returns when the agent listens. Blocks. Raises NodeLostError with its last words, or
        SurroundingsError with what this machine refuses. `name`: in place of the run's id, of one
        that may serve other runs too."""
        self._stays = False
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `wait`)
        self._last_words = ""
        self._agent: tuple[int, int] | None = None
        """Its process id, which is that of its group, and its start time; once it has told."""
        package_root = str(Path(__file__).parents[2])
        # -I -S: nothing of the user's environment runs in the agent, and it starts fast.
        self._process = subprocess.Popen(
            # The run's id is for `ps`, and for whoever cleans up after a lost run.
            [python, "-I", "-S", "-c", _START, package_root, name or str(config["run_id"])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd="/",
            start_new_session=True,
        )
        self._await_ready(json.dumps(dict(config)).encode())

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
            kill_below(self._process.pid, _AGENT_END_S)  # it may stand still
            try:
                self._process.wait(_AGENT_END_S)  # a guard removes its agent's socket
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            words = self.last_words()
            self._errors.close()
            raise _start_error(answer, words)

    def note_agent(self, welcome: Mapping[str, Any]) -> None:
        """The agent has told its process id; what started here is the guard."""
        self._agent = (welcome["pid"], start_time(welcome["pid"]))

    def detach(self) -> None:
        self._stays = True

    def last_words(self) -> str:
        """What the agent wrote to its stderr; a sound one writes nothing."""
        if self._errors.closed:
            return self._last_words
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-4000:]

    async def end(self, *, keeps_folders: bool) -> bool:
        if self._stays:
            self._process.returncode = 0  # nobody's child to be waited for any more
            self._errors.close()
        else:
            await self.wait()
        return True

    async def wait(self) -> None:
        """Reap agent and guard. An agent that does not end (it may be stopped) is killed first:
        its guard then ends what it left. Where the guard does not (the agent's process number is
        not known yet, or it cannot be killed), all below it is killed, and it is killed last."""
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
        """SIGKILL to the agent, unless it has gone; its guard then ends what it had started."""
        if self._agent is not None:
            signal_group(*self._agent, signal.SIGKILL)

    async def _has_ended(self, patience_s: float) -> bool:
        try:
            await asyncio.to_thread(self._process.wait, patience_s)
        except subprocess.TimeoutExpired:
            return False
        return True
