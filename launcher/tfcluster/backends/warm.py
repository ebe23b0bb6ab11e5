"""Agents that wait for their next run (`up --warm`): taken up again, listed, ended."""

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

from tfcluster.agent.connection import is_own_user
from tfcluster.agent.main import READY
from tfcluster.agent.processes import signal_group, start_time
from tfcluster.agent.warm import NUMBER
from tfcluster.backends.keeper import Keeper

if TYPE_CHECKING:
    from tfcluster.plan.plan import Warm

_ANSWER_S = 10.0
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class Resting:
    """One that waits."""

    pid: int
    guard: int
    """Process id of its guard, which ends last."""
    seconds: float
    """For so long it still waits."""
    about: str
    """What it keeps."""


def socket_of(runtime_dir: Path, key: str) -> Path:
    return runtime_dir / "warm" / f"{key}.sock"


def config(runtime_dir: Path, warm: Warm, about: str) -> dict[str, Any]:
    """What an agent is told that is to stay."""
    path = socket_of(runtime_dir, warm.key)
    return {"socket": str(path), "seconds": warm.seconds, "about": about}


def adopt(runtime_dir: Path, key: str, run: Mapping[str, object]) -> Adopted | None:
    """Have the agent that waits with `key` serve the run of this config; None: there is none."""
    order = {"op": "run", "config": dict(run), "environ": dict(os.environ)}
    answer = _ask(socket_of(runtime_dir, key), order)
    return Adopted() if answer == READY else None


def resting(runtime_dir: Path) -> Iterator[Resting]:
    """Those of this user, in no order."""
    for path in (runtime_dir / "warm").glob("*.sock"):
        if found := _told(_ask(path, {"op": "tell"})):
            yield found


def end(runtime_dir: Path) -> list[Resting]:
    """End them; returns when they have gone."""
    ended = []
    for path in (runtime_dir / "warm").glob("*.sock"):
        if found := _told(_ask(path, {"op": "end"})):
            ended.append(found)
    deadline = time.monotonic() + _END_S
    while any(start_time(one.guard) for one in ended) and time.monotonic() < deadline:
        time.sleep(0.01)
    return ended


def _told(answer: bytes) -> Resting | None:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return Resting(**json.loads(answer))
    return None


def _ask(path: Path, order: Mapping[str, Any]) -> bytes:
    """All it answers; empty where nobody of ours listens there."""
    encoded = json.dumps(order).encode()
    answer = b""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(_ANSWER_S)
        try:
            peer.connect(str(path))
            if not is_own_user(peer):
                return b""
            peer.sendall(NUMBER.pack(len(encoded)) + encoded)
            while data := peer.recv(65536):
                answer += data
        except OSError:
            return b""
    return answer


class Adopted(Keeper):
    """An agent that another command has started: watched by its process id."""

    can_kill = True

    def __init__(self) -> None:
        self._agent: tuple[int, int] | None = None
        self._guard: tuple[int, int] | None = None
        self._stays = False

    def note_agent(self, welcome: Mapping[str, Any]) -> None:
        """What it says of itself."""
        pid, guard_pid = welcome["pid"], welcome["guard_pid"]
        self._agent, self._guard = (pid, start_time(pid)), (guard_pid, start_time(guard_pid))

    def leave(self) -> None:
        self._stays = True

    def kill(self) -> None:
        if self._agent is not None:
            signal_group(*self._agent, signal.SIGKILL)

    async def end(self, *, keeps_folders: bool) -> bool:
        if not self._stays and self._guard is not None and not await self._has_gone(1.0):
            self.kill()
            await self._has_gone(10.0)
        return True

    async def _has_gone(self, patience_s: float) -> bool:
        import asyncio  # not for `ps`, which only asks

        assert self._guard is not None
        pid, started = self._guard
        deadline = asyncio.get_running_loop().time() + patience_s
        while start_time(pid) == started:
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True
