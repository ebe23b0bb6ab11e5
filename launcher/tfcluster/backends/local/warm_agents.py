"""Warm agents, which wait for the next run (`up --warm`): adopt one, list all, end all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfcluster.agent import foreign_json
from tfcluster.agent.agent_config import AgentConfig, WarmStay
from tfcluster.agent.entry import READY
from tfcluster.agent.net.listener import NUMBER, is_own_user, process_of
from tfcluster.agent.processes import kill_below, signal_group, start_time
from tfcluster.wire.agent_handle import AgentHandle

if TYPE_CHECKING:
    from tfcluster.agent.catalogue import Welcome
    from tfcluster.plans.plan import Warm

_ADOPT_S, _ANSWER_S = 10.0, 1.0
"""Seconds to wait for an answer to `run`, which makes an agent ready, and to other orders."""
_END_S = 5.0
_LEAVE_S, _GUARD_END_S = 1.0, 10.0
"""Seconds to wait for an agent whose link is closed, and for its guard once it was killed."""


@dataclass(frozen=True, slots=True)
class WarmAgent:
    """A warm agent that waits for a run."""

    pid: int
    guard: int
    """The process id of its guard, which ends last."""
    seconds: float
    """The seconds for which it still waits."""
    about: str
    """The Python whose imports it keeps."""


def socket_of(runtime_dir: Path, key: str) -> Path:
    """Return the path of the socket on which the warm agent with `key` listens."""
    return runtime_dir / "warm" / f"{key}.sock"


def stay(runtime_dir: Path, warm: Warm, about: str) -> WarmStay:
    """Return the part of an agent's configuration that makes it stay after the run."""
    path = socket_of(runtime_dir, warm.key)
    return WarmStay(socket=str(path), seconds=warm.seconds, about=about)


def adopt(runtime_dir: Path, key: str, config: AgentConfig) -> Adopted | None:
    """Make the warm agent with `key` serve the run with this configuration; None without one."""
    order = {"op": "run", "config": config.to_json(), "environ": dict(os.environ)}
    answer, pid = _ask(socket_of(runtime_dir, key), order, _ADOPT_S)
    return Adopted(pid) if answer == READY else None


def find(runtime_dir: Path) -> Iterator[WarmAgent]:
    """Yield the warm agents of this user that answer, in no order."""
    for path in (runtime_dir / "warm").glob("*.sock"):
        if agent := _parse(_ask(path, {"op": "tell"}, _ANSWER_S)[0]):
            yield agent


def end(runtime_dir: Path) -> list[int]:
    """End all warm agents, hanging ones by SIGKILL; return the process ids of those that ended."""
    waited: dict[int, int] = {}
    for path in (runtime_dir / "warm").glob("*.sock"):
        answer, pid = _ask(path, {"op": "end"}, _ANSWER_S)
        if agent := _parse(answer):
            waited[agent.pid] = agent.guard
        elif pid:
            os.kill(pid, signal.SIGKILL)
            waited[pid] = pid
    deadline = time.monotonic() + _END_S
    while any(map(start_time, waited.values())) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [pid for pid, last in waited.items() if not start_time(last)]


def _parse(answer: bytes) -> WarmAgent | None:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        fields = foreign_json.parse_json_object(answer)
        pid, guard = int(fields["pid"]), int(fields["guard"])
        return WarmAgent(pid, guard, float(fields["seconds"]), str(fields["about"]))
    return None


def _ask(path: Path, order: Mapping[str, Any], patience_s: float) -> tuple[bytes, int]:
    """Return the whole answer to `order`, and the process id of this user's agent there, or 0."""
    encoded, answer, pid = json.dumps(order, default=vars).encode(), b"", 0
    with socket.socket(socket.AF_UNIX) as peer, contextlib.suppress(OSError):
        peer.settimeout(patience_s)
        peer.connect(str(path))
        if is_own_user(peer):
            pid = process_of(peer)
            peer.sendall(NUMBER.pack(len(encoded)) + encoded)
            while data := peer.recv(65536):
                answer += data
    return answer, pid


class Adopted(AgentHandle):
    """An agent that another command started; it is watched by its process id."""

    can_kill = True

    def __init__(self, pid: int) -> None:
        self._agent = (pid, start_time(pid))
        self._guard: tuple[int, int] | None = None
        self._stays = False

    def note_agent(self, welcome: Welcome) -> None:
        """Note the process ids in the agent's welcome."""
        pid, guard_pid = welcome.pid, welcome.guard_pid
        self._agent, self._guard = (pid, start_time(pid)), (guard_pid, start_time(guard_pid))

    def detach(self) -> None:
        self._stays = True

    def kill(self) -> None:
        signal_group(*self._agent, signal.SIGKILL)

    async def end(self, *, keeps_folders: bool) -> bool:
        if self._stays:
            return True
        if self._guard is None:  # it has not answered, and has no task
            self.kill()
            return True
        if await self._has_gone(_LEAVE_S):
            return True
        self.kill()
        if not await self._has_gone(_GUARD_END_S):
            kill_below(self._guard[0], _LEAVE_S)
            signal_group(*self._guard, signal.SIGKILL)
        return await self._has_gone(_LEAVE_S)

    async def _has_gone(self, patience_s: float) -> bool:
        import asyncio  # `ps`, which only lists agents, does not need it

        assert self._guard is not None
        pid, started = self._guard
        deadline = asyncio.get_running_loop().time() + patience_s
        while start_time(pid) == started:
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True
