"""Clean-up after a lost run, whose coordinator is gone, on remote nodes and on this host.

`end` ends what still runs on remote nodes until their leases end. `clean_up` ends the run's
processes on this host, found by marks that only they carry, and removes its files. When a
coordinator is killed its agent ends the tasks at once, and when an agent is killed its guard does:
what survives was stopped with them (SIGSTOP), or left its process group and then its agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import glob
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tfcluster import backends
from tfcluster.agent import foreign_json
from tfcluster.backends.base import Backend, EndsLostRuns
from tfcluster.errors import NodeLostError
from tfcluster.nodes.hub import KILL_S
from tfcluster.plan.plan import NodePlan, Plan, plan_from_json
from tfcluster.rundir import registry
from tfcluster.rundir.journal import require_json
from tfcluster.rundir.paths import RunPaths, runtime_dir
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """What became of one node of a lost run."""

    node: str
    ended: tuple[str, ...] = ()
    """What lived there: agent, worker:0."""
    folder: str | None = None
    """Where on the node lies what was saved there, of which some may not be gathered."""
    trouble: str = ""
    """Why something may live there until the moment `until`; empty: nothing does."""
    until: float = 0.0


def leases(paths: RunPaths, state: RunSnapshot, now: float) -> dict[str, float]:
    """Node → until when something may live there, of the nodes that a lost run does not end with;
    its coordinator was gone at the moment `now`."""
    plan = _plan(paths)
    if plan is None:
        return {}
    until = now + plan.supervision.lease_s + KILL_S
    return {node.name: until for node in outliving(plan) if node.name in state.agents}


def outliving(plan: Plan) -> list[NodePlan]:
    """Nodes whose tasks go on, for as long as their lease, when the coordinator is gone."""
    return [node for node in plan.nodes if isinstance(_backend_of(node), EndsLostRuns)]


def end(paths: RunPaths) -> list[NodeEnd]:
    """On all nodes at once, as far as their leases go on; what is certain to have ended is
    written down. Raises RunFolderError where that is not possible."""
    state, plan = registry.load(paths), _plan(paths)
    open_until = {node: at for node, at in state.leases.items() if at > time.time()}
    if plan is None or not open_until:
        return []
    ends = asyncio.run(_end_all(plan, state, open_until))
    state.leases = {one.node: one.until for one in ends if one.trouble}
    require_json(paths.state, state.to_json())
    return ends


async def _end_all(plan: Plan, state: RunSnapshot, until: Mapping[str, float]) -> list[NodeEnd]:
    nodes = [node for node in plan.nodes if node.name in until]
    ending = (_end(node, state, until[node.name]) for node in nodes)
    return list(await asyncio.gather(*ending))


async def _end(node: NodePlan, state: RunSnapshot, until: float) -> NodeEnd:
    backend, former = _backend_of(node), state.agents.get(node.name, {}).get("identity")
    assert isinstance(backend, EndsLostRuns)  # else it has no lease in `leases`
    if former is None:
        return NodeEnd(node.name, trouble="its agent is not known", until=until)
    try:
        found = await backend.end_run(node, run_id=state.run, former=former)
    except NodeLostError as error:
        return NodeEnd(node.name, trouble=error.message, until=until)
    ended, folder = tuple(found["ended"]), found["folder"]
    return NodeEnd(node.name, ended, folder, _trouble(found), until)


def _trouble(found: Mapping[str, Any]) -> str:
    if found["stays"]:
        return f"{', '.join(found['stays'])} was killed there and lives on"
    if not found["is_proved"]:
        return "nothing proves there that its agent has ended"
    return ""


def _plan(paths: RunPaths) -> Plan | None:
    """None where the run's folder has no plan that can be read: nothing was started then."""
    try:
        return plan_from_json(foreign_json.read_json_object(paths.plan))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _backend_of(node: NodePlan) -> Backend:
    return backends.get(node.backend, runtime_dir=runtime_dir())


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
    return "-c" in argv and any("tfcluster.agent.entry" in word for word in argv)


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
            if foreign_json.parse_json_object(lock.read()).get("run_id") == paths.run_id:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                yield path


def _close(paths: RunPaths, state: RunSnapshot) -> None:
    """The run is over since its last sign of life, but on nodes that do not know of it."""
    if state.ended_at is None:
        state.leases = leases(paths, state, time.time())
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
