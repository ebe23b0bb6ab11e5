"""Containers and networks of runs, found and removed by their labels alone.

During a run a small shell (`Sweeper`) waits for the coordinator's end, however that happens, and
then removes everything with the run's label. What it could not remove (the daemon did not answer,
the machine went down) is a leftover, whose coordinator is gone (`find`, `remove`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from tfcluster.backends.docker.client import Endpoint, endpoint, plain
from tfcluster.backends.past_runs import SilentError, is_orphan, this_process
from tfcluster.rundir.forked_children import keep_from_children

RUN = "tfcluster.run"
COORDINATOR = "tfcluster.coordinator"
_REMOVE_S = 15.0
_RETRY_S = 0.5
_REMOVALS = (("ps", ("rm", "--force", "--volumes")), ("network", ("network", "rm")))
"""The listing that shows a thing → the command that removes it."""
_LABELS_FORMAT = f'\t{{{{.Label "{RUN}"}}}}\t{{{{.Label "{COORDINATOR}"}}}}'

_PATIENCE_S = 20.0
"""Seconds to wait for the removal; the shell goes on trying for about two minutes."""

_END, _MORE_MAY_COME = b"end\n", b"more\n"

_SWEEP = """
copies=
newline='
'
while IFS= read -r word; do
    case $word in end | more) break ;; esac
    case $copies in *"$word$newline"*) ;; *) copies="$copies$word$newline" ;; esac
done
cat > /dev/null
if [ -z "$word" ] && [ -n "$copies" ]; then
    found=$(docker ps --quiet --filter "label=$1") && [ -n "$found" ] && docker kill $found
    printf '%s' "$copies" | while IFS='	' read -r source target; do
        mkdir -p "$target.partial" && docker cp "$source/." "$target.partial" &&
            rm -rf "$target" && mv "$target.partial" "$target"
    done
fi
tries=0
while [ $tries -lt 120 ]; do
    found=$(docker ps --all --quiet --filter "label=$1") &&
        { [ -z "$found" ] || docker rm --force --volumes $found; }
    networks=$(docker network ls --quiet --filter "label=$1") && found=$(
        docker ps --all --quiet --filter "label=$1") && [ -z "$found" ] &&
        { [ -z "$networks" ] || docker network rm $networks; } &&
        { [ "$word" != end ] || exit 0; } && word=end && sleep 5
    tries=$((tries + 1))
    sleep 1
done
exit 1
"""
"""Shell code of the sweeper. The daemon may still carry out an order of a killed coordinator, so
it checks twice then. What the chief of a killed coordinator's run has saved is copied first."""


def labels(run_id: str) -> list[str]:
    """Return the label options for `docker run` and `docker network create`."""
    return ["--label", f"{RUN}={run_id}", "--label", f"{COORDINATOR}={this_process()}"]


def find(
    endpoint: str, run_id: str | None = None, *, patience_s: float
) -> dict[str, tuple[str, ...]]:
    """Return the containers and networks of `run_id`, else of all runs of this user on this host
    whose coordinator is gone, by run. Raises SilentError."""
    rows = _find_rows(endpoint, run_id, patience_s)
    runs = dict.fromkeys(row.run_id for row in rows)
    return {run: tuple(row.name for row in rows if row.run_id == run) for run in runs}


def remove(endpoint: str, run_id: str) -> str:
    """Remove the run's containers and networks; return "", or docker's message if some stay.

    The run's sweeper may remove them at the same time, so only what still exists counts. Raises
    SilentError.
    """
    until, message = time.monotonic() + _REMOVE_S, ""
    rows = _find_rows(endpoint, run_id, _REMOVE_S)
    while rows and time.monotonic() < until:
        for kind, command in _REMOVALS:
            if names := [row.name for row in rows if row.kind == kind]:
                done = _docker(endpoint, (*command, *names), _REMOVE_S)
                message = plain(done.stderr) or message
        rows = _find_rows(endpoint, run_id, _REMOVE_S)
        time.sleep(_RETRY_S if rows else 0)
    return (message or "it still exists") if rows else ""


class Sweeper:
    """A shell that waits for the coordinator's end: its stdin is a pipe only that process holds."""

    def __init__(self, process: asyncio.subprocess.Process, run_id: str) -> None:
        self._process, self.run_id = process, run_id

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
        assert process.stdin is not None
        keep_from_children(process.stdin.get_extra_info("pipe"))
        return cls(process, run_id)

    def keep_copy(self, container: str, folder: PurePath, target: Path) -> None:
        """Have `folder` of a container copied to `target` if this process is killed."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(os.fsencode(f"{container}:{folder}\t{target}\n"))

    async def dismiss(self) -> None:
        """End the sweeper; nothing is removed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def sweep(self, *, more_may_come: bool) -> str | None:
        """Remove everything now; return None, or a sentence if that takes too long.

        `more_may_come`: the daemon has not answered all orders yet.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(_MORE_MAY_COME if more_may_come else _END)
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                if await self._process.wait() == 0:
                    return None
        return (
            f"docker has not removed the containers and the network of {self.run_id} yet;"
            f" `tfcluster down {self.run_id}` tries again"
        )


@dataclass(frozen=True, slots=True)
class _Row:
    kind: str
    name: str
    run_id: str
    coordinator: str


def _find_rows(endpoint: str, run_id: str | None, patience_s: float) -> list[_Row]:
    until = time.monotonic() + patience_s
    label = f"{RUN}={run_id}" if run_id else RUN
    rows = [
        *_rows(endpoint, ("ps", "--all"), "{{.Names}}", label, until),
        *_rows(endpoint, ("network", "ls"), "{{.Name}}", label, until),
    ]
    return [row for row in rows if run_id or is_orphan(row.coordinator)]


def _rows(
    endpoint: str, listing: tuple[str, str], name: str, label: str, until: float
) -> Iterator[_Row]:
    asked = (*listing, "--filter", f"label={label}", "--format", name + _LABELS_FORMAT)
    done = _docker(endpoint, asked, max(0.1, until - time.monotonic()))
    if done.returncode != 0:
        raise SilentError(plain(done.stderr))
    for line in done.stdout.decode(errors="replace").splitlines():
        thing, _, rest = line.partition("\t")
        run_id, _, coordinator = rest.partition("\t")
        yield _Row(listing[0], thing, run_id, coordinator)


def _docker(
    endpoint: str, argv: Sequence[str], patience_s: float
) -> subprocess.CompletedProcess[bytes]:
    env = Endpoint.parse(endpoint).environ(os.environ)
    try:
        return subprocess.run(["docker", *argv], env=env, capture_output=True, timeout=patience_s)
    except FileNotFoundError:
        raise SilentError("there is no docker client on this machine") from None
    except subprocess.TimeoutExpired:
        raise SilentError(f"no answer for {patience_s:.0f} s") from None
