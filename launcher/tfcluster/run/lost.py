"""What a run left on this host whose coordinator is gone: found by marks that only it can carry,
then ended.

A killed coordinator's agent ends the tasks at once, and a killed agent's guard does. What lives
on nevertheless was stopped with them (SIGSTOP), or left its process group and then its agent.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tfcluster.agent import foreign_json
from tfcluster.run import lost_hosts, registry
from tfcluster.run.folder import require_json
from tfcluster.run.paths import RunPaths, runtime_dir
from tfcluster.run.snapshot import RunSnapshot
from tfcluster.run.status import Status

_BY_THEMSELVES_S = 2.0
"""How long agent and guard get to end what is theirs, before they are ended too."""
_AT_MOST_S = 10.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """A living process that is provably of the run."""

    process: psutil.Process
    what: str
    """``agent``, ``worker:1``."""

    def __str__(self) -> str:
        return f"{self.what} (pid {self.process.pid})"


@dataclass(frozen=True, slots=True)
class Found:
    """What was there, and is gone."""

    processes: tuple[Leftover, ...]
    files: tuple[Path, ...]
    survivors: tuple[Leftover, ...] = ()
    """Killed, and still there: in the kernel, uninterruptible."""


def clean_up(paths: RunPaths) -> Found:
    """End and remove what is left of a lost run on this host, and write down that it is over.

    Raises RunFolderError where that cannot be written.
    """
    state = registry.load(paths)
    found = end_processes(paths.run_id)
    files = tuple(_remove_files(paths, state))
    survivors = tuple(left for left in found if left.process.is_running() and not _is_dead(left))
    _close(paths, state)
    return Found(found, files, survivors)


def end_processes(run_id: str) -> tuple[Leftover, ...]:
    """SIGKILL; first the tasks and the agent, whose guard then ends what carries no mark."""
    seen: dict[int, Leftover] = {}
    begun = time.monotonic()
    while left := list(find(run_id)):
        seen |= {one.process.pid: one for one in left}
        waited = time.monotonic() - begun
        if waited > _AT_MOST_S:
            break
        for one in left:
            with contextlib.suppress(psutil.Error):
                # psutil looks at the start time first: never at a number given to another.
                one.process.send_signal(signal.SIGCONT)
                if one.what != "guard" or waited > _BY_THEMSELVES_S:
                    one.process.kill()
        time.sleep(0.02)
    return tuple(seen.values())


def find(run_id: str) -> Iterator[Leftover]:
    """Processes of the run: its agents by their command line, its tasks by TFCLUSTER_RUN_ID.

    Not among them: this command and what it was started from, other runs' coordinators and
    agents, which a task of the run may have started.
    """
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    spared |= {state.pid for _, state in registry.runs() if not state.status.is_final}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid in spared or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if what := _what_it_is(process, run_id):
                yield Leftover(process, what)


def _what_it_is(process: psutil.Process, run_id: str) -> str:
    argv = process.cmdline()
    if _is_agent(argv):
        if argv[-1] != run_id:
            return ""
        parent = process.parent()
        return "agent" if parent is not None and parent.cmdline() == argv else "guard"
    environ = process.environ()
    if environ.get("TFCLUSTER_RUN_ID") != run_id:
        return ""
    return environ.get("TFCLUSTER_TASK", "prepare")


def _is_agent(argv: list[str]) -> bool:
    return "-c" in argv and any("tfcluster.agent.main" in word for word in argv)


def _is_dead(left: Leftover) -> bool:
    try:
        return left.process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _remove_files(paths: RunPaths, state: RunSnapshot) -> Iterator[Path]:
    """Sockets that nobody listens on, and locks of ports that nobody holds."""
    folder = Path(state.runtime_dir) if state.runtime_dir else runtime_dir()
    name = paths.control_socket.name
    agents = folder.glob(f"{glob.escape(name.removesuffix('.ctl'))}.*.agent")
    for path in [folder / name, *agents]:
        with contextlib.suppress(OSError):
            path.unlink()
            yield path
    for path in (folder / "ports").glob("*.json"):
        with contextlib.suppress(OSError, ValueError), path.open() as lock:
            if foreign_json.parse_object(lock.read()).get("run_id") == paths.run_id:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                yield path


def _close(paths: RunPaths, state: RunSnapshot) -> None:
    """The run is over since its last sign of life, but on nodes that do not know of it."""
    if state.ended_at is None:
        state.leases = lost_hosts.leases(paths, state, time.time())
    state.status, state.waits_for = Status.LOST, None
    with contextlib.suppress(OSError):
        state.ended_at = paths.events.stat().st_mtime
    state.ended_at = state.ended_at or time.time()
    for task in state.tasks:
        if task.ended_at is None and task.pid is not None:
            task.state, task.ended_at = "lost", state.ended_at
    for node in state.nodes:
        state.nodes[node] = "gone"
    require_json(paths.state, state.to_json())
