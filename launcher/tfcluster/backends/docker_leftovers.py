"""What runs have made with docker, found and removed by its labels alone.

While a run lasts, a small shell of its own waits for the coordinator's end, however that comes,
and then removes all that bears the run's label. What even that could not remove (a daemon that
was away, a machine that went down) is a leftover: of a coordinator that is gone.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from tfcluster.agent.processes import start_time
from tfcluster.backends.docker_client import Endpoint, plain

RUN = "tfcluster.run"
COORDINATOR = "tfcluster.coordinator"
_REMOVE_S = 15.0
_AGAIN_S = 0.5
_ROW = f'\t{{{{.Label "{RUN}"}}}}\t{{{{.Label "{COORDINATOR}"}}}}'


def labels(run_id: str) -> list[str]:
    """Options of `docker run` and `docker network create`."""
    return ["--label", f"{RUN}={run_id}", "--label", f"{COORDINATOR}={this_process()}"]


def this_process() -> str:
    """This coordinator, as labels and notes name it."""
    pid = os.getpid()
    return f"{socket.gethostname()}/{os.getuid()}/{pid}/{_started(pid)}"


def _started(pid: int) -> int | None:
    """None for one that has ended, be it that nobody has heard of it yet (a zombie)."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return start_time(pid) or int(process.create_time())  # the clock may be set meanwhile
    except psutil.Error:
        return None


class SilentDockerError(Exception):
    """Docker did not answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Of one run, at one daemon."""

    run_id: str
    endpoint: Endpoint
    containers: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.containers, *self.networks)


def find(endpoint: Endpoint, run_id: str | None = None, *, patience_s: float) -> list[Leftovers]:
    """Of `run_id`, or of all runs of this user on this host whose coordinator is gone.

    Raises SilentDockerError.
    """
    label = f"{RUN}={run_id}" if run_id else RUN
    until = time.monotonic() + patience_s
    rows = [
        *_rows(endpoint, ("ps", "--all"), "{{.Names}}", label, until),
        *_rows(endpoint, ("network", "ls"), "{{.Name}}", label, until),
    ]
    mine = [row for row in rows if run_id or is_orphan(row.coordinator)]

    def names(run: str, what: str) -> tuple[str, ...]:
        return tuple(row.name for row in mine if (row.run_id, row.what) == (run, what))

    runs = dict.fromkeys(row.run_id for row in mine)
    return [Leftovers(run, endpoint, names(run, "ps"), names(run, "network")) for run in runs]


def remove(left: Leftovers) -> str:
    """Empty, or what docker said where some of it stays. The run's own sweeper may be at it, too:
    what counts is what is still there. Raises SilentDockerError."""
    until, said = time.monotonic() + _REMOVE_S, ""
    now = [left]
    while now and time.monotonic() < until:
        for what, names in (
            (("rm", "--force", "--volumes"), now[0].containers),
            (("network", "rm"), now[0].networks),
        ):
            if names:
                said = plain(_docker(left.endpoint, (*what, *names), _REMOVE_S).stderr) or said
        now = find(left.endpoint, left.run_id, patience_s=_REMOVE_S)
        time.sleep(_AGAIN_S if now else 0)
    return (said or "it is still there") if now else ""


@dataclass(frozen=True, slots=True)
class _Row:
    what: str
    name: str
    run_id: str
    coordinator: str


def _rows(
    endpoint: Endpoint, what: tuple[str, str], name: str, label: str, until: float
) -> Iterator[_Row]:
    asked = (*what, "--filter", f"label={label}", "--format", name + _ROW)
    done = _docker(endpoint, asked, max(0.1, until - time.monotonic()))
    if done.returncode != 0:
        raise SilentDockerError(plain(done.stderr))
    for line in done.stdout.decode(errors="replace").splitlines():
        found, _, rest = line.partition("\t")
        run_id, _, coordinator = rest.partition("\t")
        yield _Row(what[0], found, run_id, coordinator)


def is_orphan(coordinator: str) -> bool:
    """Whether a coordinator of this user on this host is gone."""
    parts = coordinator.split("/")
    if parts[:2] != [socket.gethostname(), str(os.getuid())] or len(parts) != 4:
        return False
    return not parts[2].isdecimal() or str(_started(int(parts[2]))) != parts[3]


def _docker(
    endpoint: Endpoint, argv: Sequence[str], patience_s: float
) -> subprocess.CompletedProcess[bytes]:
    env = endpoint.environ(os.environ)
    try:
        return subprocess.run(["docker", *argv], env=env, capture_output=True, timeout=patience_s)
    except FileNotFoundError:
        raise SilentDockerError("there is no docker client on this machine") from None
    except subprocess.TimeoutExpired:
        raise SilentDockerError(f"no answer for {patience_s:.0f} s") from None
