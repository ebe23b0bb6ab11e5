"""What runs have made with docker, found and removed by its labels alone.

While a run lasts, a small shell of its own waits for the coordinator's end, however that comes,
and then removes all that bears the run's label. What even that could not remove (a daemon that
was away, a machine that went down) is a leftover: of a coordinator that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

RUN = "tfcluster.run"
COORDINATOR = "tfcluster.coordinator"
_PATIENCE_S = 20.0
"""For removing; the shell goes on trying."""
_SWEEP = """
cat > /dev/null
tries=0
while [ $tries -lt 120 ]; do
    found=$(docker ps --all --quiet --filter "label=$1") &&
        { [ -z "$found" ] || docker rm --force --volumes $found; }
    networks=$(docker network ls --quiet --filter "label=$1") && found=$(
        docker ps --all --quiet --filter "label=$1") && [ -z "$found" ] &&
        { [ -z "$networks" ] || docker network rm $networks; } && exit 0
    tries=$((tries + 1))
    sleep 1
done
exit 1
"""


def labels(run_id: str) -> list[str]:
    """Options of `docker run` and `docker network create`."""
    return ["--label", f"{RUN}={run_id}", "--label", f"{COORDINATOR}={_this_process()}"]


def _this_process() -> str:
    return f"{socket.gethostname()}/{os.getuid()}/{os.getpid()}/{_started(os.getpid())}"


def _started(pid: int) -> int | None:
    """None for one that has ended, be it that nobody has heard of it yet (a zombie)."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return int(process.create_time())
    return None


class Sweeper:
    """The shell that removes a run's containers and network at its end."""

    def __init__(self, process: asyncio.subprocess.Process, run_id: str) -> None:
        self._process, self._run_id = process, run_id

    @classmethod
    async def start(cls, run_id: str) -> Sweeper:
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", _SWEEP, "tfcluster-docker", f"{RUN}={run_id}"),
            stdin=asyncio.subprocess.PIPE,  # ours alone: its end is our end
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        return cls(process, run_id)

    async def dismiss(self) -> None:
        """There is nothing to remove."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def sweep(self) -> str | None:
        """Now; None once all is removed, else what is to be told."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                if await self._process.wait() == 0:
                    return None
        return (
            f"docker has not removed the containers and the network of {self._run_id} yet;"
            f" `tfcluster down {self._run_id}` tries again"
        )


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Of one run."""

    run_id: str
    containers: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.containers, *self.networks)


def find(run_id: str | None = None) -> list[Leftovers]:
    """Of runs of this user on this host whose coordinator is gone, or of `run_id` alone; nothing
    where docker does not answer."""
    label = f"{RUN}={run_id}" if run_id else RUN
    rows = [*_rows("container", "Names", label), *_rows("network", "Name", label)]
    mine = [row for row in rows if run_id or _is_orphan(row["coordinator"])]
    found: dict[str, Leftovers] = {}
    for run in dict.fromkeys(row["run"] for row in mine):
        of = {
            kind: tuple(r["name"] for r in mine if (r["run"], r["kind"]) == (run, kind))
            for kind in ("container", "network")
        }
        found[run] = Leftovers(run, of["container"], of["network"])
    return list(found.values())


def remove(left: Leftovers) -> str:
    """Empty, or what docker said where it could not."""
    said = []
    for what, names in (
        (("rm", "--force", "--volumes"), left.containers),
        (("network", "rm"), left.networks),
    ):
        if names:
            done = _docker(*what, *names)
            said.append("" if done is None or done.returncode == 0 else done.stderr.strip())
    return " ".join(filter(None, said))


def _rows(kind: str, name: str, label: str) -> Iterable[dict[str, str]]:
    form = json.dumps({"name": f"{{{{.{name}}}}}", "labels": "{{.Labels}}"})
    what = ("ps", "--all") if kind == "container" else ("network", "ls")
    done = _docker(*what, "--no-trunc", "--filter", f"label={label}", "--format", form)
    for line in (done.stdout if done is not None and done.returncode == 0 else "").splitlines():
        with contextlib.suppress(ValueError, KeyError):
            row = json.loads(line)
            pairs = (pair.partition("=") for pair in row["labels"].split(","))
            bears = {key: value for key, _, value in pairs}
            run, coordinator = bears[RUN], bears.get(COORDINATOR, "")
            yield {"kind": kind, "name": row["name"], "run": run, "coordinator": coordinator}


def _is_orphan(coordinator: str) -> bool:
    parts = coordinator.split("/")
    if parts[:2] != [socket.gethostname(), str(os.getuid())] or len(parts) != 4:
        return False
    return not parts[2].isdecimal() or str(_started(int(parts[2]))) != parts[3]


def _docker(*argv: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            ["docker", *argv], capture_output=True, text=True, timeout=_PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
