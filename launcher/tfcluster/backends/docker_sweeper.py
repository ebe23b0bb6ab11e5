"""Removes what a run has made with docker, also where nobody is left to say so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from tfcluster.backends.docker_client import endpoint
from tfcluster.backends.docker_leftovers import RUN

_PATIENCE_S = 20.0
"""For removing; the shell goes on trying for about two minutes."""
_END = b"end\n"
_SWEEP = """
IFS= read -r word || word=
cat > /dev/null
tries=0
while [ $tries -lt 120 ]; do
    found=$(docker ps --all --quiet --filter "label=$1") &&
        { [ -z "$found" ] || docker rm --force --volumes $found; }
    networks=$(docker network ls --quiet --filter "label=$1") && found=$(
        docker ps --all --quiet --filter "label=$1") && [ -z "$found" ] &&
        { [ -z "$networks" ] || docker network rm $networks; } &&
        { [ -z "$word" ] || exit 0; } && word=end && sleep 5
    tries=$((tries + 1))
    sleep 1
done
exit 1
"""
"""Of a coordinator that was killed, an order may still be under way: it looks a second time."""


class Sweeper:
    """A shell that waits for the coordinator's end: its stdin is a pipe from it alone."""

    def __init__(self, process: asyncio.subprocess.Process, run_id: str) -> None:
        self._process, self._run_id = process, run_id

    @classmethod
    async def start(cls, run_id: str) -> Sweeper:
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", _SWEEP, "tfcluster-docker", f"{RUN}={run_id}"),
            env=endpoint().environ(os.environ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        return cls(process, run_id)

    async def dismiss(self) -> None:
        """There is nothing to remove, or it is to stay."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def sweep(self, *, more_may_come: bool) -> str | None:
        """Now; None once all is removed, else what is to be told. `more_may_come`: the daemon
        has not answered to all that it was told."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            if not more_may_come:
                self._process.stdin.write(_END)
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                if await self._process.wait() == 0:
                    return None
        return (
            f"docker has not removed the containers and the network of {self._run_id} yet;"
            f" `tfcluster down {self._run_id}` tries again"
        )
