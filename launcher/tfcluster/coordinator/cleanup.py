"""Clean-up after a lost run, whose coordinator is gone, on remote nodes and on this host.

When a coordinator is killed its agent ends the tasks at once, and when an agent is killed its
guard does: what survives was stopped with them (SIGSTOP), or left its process group and then its
agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import glob
import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tfcluster.agent import foreign_json
from tfcluster.agent.tasks.children import SUFFIX
from tfcluster.backends.base import class_of
from tfcluster.errors import NodeLostError, RunFolderError
from tfcluster.nodes.hub import KILL_S
from tfcluster.plans.command import function_folders
from tfcluster.plans.plan import NodePlan, Plan
from tfcluster.rundir import registry
from tfcluster.rundir.figures import state_json
from tfcluster.rundir.paths import RunPaths, runtime_dir
from tfcluster.rundir.run_writer import require_json
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status

T = TypeVar("T")

_GUARD_S = 2.0
"""Time for a guard to end the processes it knows, before it is killed too."""
_LIMIT_S = 10.0
"""Time after which processes that still live are reported as survivors."""


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """The result of ending one node of a lost run."""

    node: str
    ended: tuple[str, ...] = ()
    """The processes that were ended: ``agent``, ``worker:0``."""
    folder: str | None = None
    """The folder on the node with saved files, some of which may not be gathered."""
    trouble: str = ""
    """The reason why processes may live until the moment `until`; empty if all have ended."""
    until: float = 0.0
    """Seconds since the epoch."""


def leases(paths: RunPaths, state: RunSnapshot, now: float) -> dict[str, float]:
    """Return node → the moment until which its processes may live.

    For nodes that outlive the coordinator, which was gone at the moment `now`. Moments are seconds
    since the epoch.
    """
    plan = _plan(paths)
    if plan is None:
        return {}
    until = now + plan.supervision.lease_s + KILL_S
    return {node.name: until for node in outliving(plan) if node.name in state.agents}


def outliving(plan: Plan) -> list[NodePlan]:
    """Return the nodes whose tasks outlive the coordinator, for as long as their lease."""
    return [node for node in plan.nodes if node.capabilities.outlives_coordinator]


def end_nodes(paths: RunPaths) -> list[NodeEnd]:
    """End the processes on all nodes whose leases have not ended, at once.

    Nodes that have certainly ended lose their lease in the run's state. Raises RunFolderError if
    that cannot be written.
    """
    state, plan = registry.load(paths), _plan(paths)
    open_until = {node: at for node, at in state.leases.items() if at > time.time()}
    if plan is None or not open_until:
        return []
    nodes = [node for node in plan.nodes if node.name in open_until]

    async def end_all() -> list[NodeEnd]:
        ending = (_end_node(node, state, open_until[node.name]) for node in nodes)
        return list(await asyncio.gather(*ending))

    ends = run_in_loop(end_all())
    state.leases = {end.node: end.until for end in ends if end.trouble}
    require_json(paths.state, state_json(state))
    return ends


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in a loop of its own, also in a thread whose loop runs: a notebook's cell."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def end_on_hosts(paths: RunPaths, say: Callable[[str], None]) -> None:
    """End the tasks that a lost run left on other machines; `say` gets what was ended.

    Raises NodeLostError if tasks may still run on a host.
    """
    problems = []
    for end in end_nodes(paths):
        if end.trouble:
            at = time.strftime("%H:%M:%S", time.localtime(end.until))
            problems.append(f"{end.node}: its tasks may run until {at}: {end.trouble}")
        else:
            result = f"ended {', '.join(end.ended)}" if end.ended else "no task was left"
            say(f"{end.node}: {result}")
        if end.folder is not None:
            say(f"{end.node}: saved files stay in {end.folder}")
    if problems:
        raise NodeLostError("\n".join(problems), fix=f"try again: tfcluster down {paths.run_id}")


async def _end_node(node: NodePlan, state: RunSnapshot, until: float) -> NodeEnd:
    identity = state.agents.get(node.name, {}).get("identity")
    if identity is None:
        return NodeEnd(node.name, trouble="its agent is not known", until=until)
    try:
        result = await class_of(node).end_run(node, run_id=state.run, former=identity)
    except NodeLostError as error:
        return NodeEnd(node.name, trouble=error.message, until=until)
    trouble = "" if result.is_proved else "nothing proves that its agent has ended"
    if result.stays:
        trouble = f"{', '.join(result.stays)} was killed but still lives"
    return NodeEnd(node.name, tuple(result.ended), result.folder, trouble, until)


def _plan(paths: RunPaths) -> Plan | None:
    """Return the run's plan; None if it cannot be read, because then nothing was started."""
    try:
        return registry.load_plan(paths)
    except RunFolderError:
        return None


@dataclass(frozen=True, slots=True)
class LeftProcess:
    """A living process that provably belongs to the run."""

    process: psutil.Process
    what: str
    """``agent``, ``worker:1``."""

    def __str__(self) -> str:
        return f"{self.what} (pid {self.process.pid})"


def end_everywhere(paths: RunPaths, say: Callable[[str], None]) -> None:
    """Clean up after a lost run here and on its hosts, and mark it lost; `say` gets what was ended.

    Raises NodeLostError if tasks may still run, RunFolderError if the state cannot be written.
    """
    state = registry.load(paths)
    processes = end_processes(paths.run_id)
    files = list(_remove_files(paths, state))
    survivors = [str(p) for p in processes if p.process.is_running() and not _is_dead(p)]
    _mark_lost(paths, state)
    if processes:
        noun = "process" if len(processes) == 1 else "processes"
        say(f"ended {len(processes)} {noun}: {', '.join(map(str, processes))}")
    if files:
        say(f"removed {', '.join(map(str, files))}")
    if not processes and not files:
        say("no processes or files of the run are left on this host")
    end_on_hosts(paths, say)
    if survivors:  # they are in the kernel, uninterruptible
        raise NodeLostError(
            f"killed, but still there: {', '.join(survivors)}",
            fix="they hang in the kernel: see dmesg",
        )


def end_processes(run_id: str) -> tuple[LeftProcess, ...]:
    """Kill the run's processes on this host; return them.

    First tasks and agents; then the guards, which get time to end processes without a mark.
    """
    ended: dict[int, LeftProcess] = {}
    begun = time.monotonic()
    while leftovers := list(find(run_id)):
        ended |= {leftover.process.pid: leftover for leftover in leftovers}
        waited = time.monotonic() - begun
        if waited > _LIMIT_S:
            break
        for leftover in leftovers:
            with contextlib.suppress(psutil.Error):
                # psutil compares the start time first: a reused pid is never signalled.
                leftover.process.send_signal(signal.SIGCONT)
                if leftover.what != "guard" or waited > _GUARD_S:
                    leftover.process.kill()
        time.sleep(0.02)
    return tuple(ended.values())


def find(run_id: str) -> Iterator[LeftProcess]:
    """Yield the run's processes: agents by their command line, tasks by TFCLUSTER_RUN_ID.

    Left out: this command and its parents, and the coordinators of other runs, which a task of
    this run may have started.
    """
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    spared |= {state.pid for _, state in registry.runs() if not state.status.is_final}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid in spared or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if name := _identify(process, run_id):
                yield LeftProcess(process, name)


def _identify(process: psutil.Process, run_id: str) -> str:
    argv = process.cmdline()
    if "-c" in argv and any("tfcluster.agent.entry" in word for word in argv):
        if argv[-1] != run_id:
            return ""
        parent = process.parent()
        return "agent" if parent is not None and parent.cmdline() == argv else "guard"
    environ = process.environ()
    if environ.get("TFCLUSTER_RUN_ID") != run_id:
        return ""
    return environ.get("TFCLUSTER_TASK", "prepare")


def _is_dead(leftover: LeftProcess) -> bool:
    try:
        return leftover.process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _remove_files(paths: RunPaths, state: RunSnapshot) -> Iterator[Path]:
    """Remove the run's sockets, its function, and the lock files of ports not held any more."""
    folder = Path(state.runtime_dir) if state.runtime_dir else runtime_dir()
    name = paths.control_socket.name
    agents = f"{glob.escape(name.removesuffix('.ctl'))}.*.agent"
    for path in [folder / name, *folder.glob(agents), *folder.glob(agents + SUFFIX)]:
        with contextlib.suppress(OSError):
            path.unlink()
            yield path
    if plan := _plan(paths):
        for package in function_folders(plan):
            with contextlib.suppress(OSError):
                shutil.rmtree(path := Path(plan.workdir, package))
                yield path
    for path in (folder / "ports").glob("*.json"):
        with contextlib.suppress(OSError, ValueError), path.open() as lock:
            if foreign_json.parse_json_object(lock.read()).get("run_id") == paths.run_id:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                yield path


def _mark_lost(paths: RunPaths, state: RunSnapshot) -> None:
    """Mark the run as lost since its last event; nodes that outlive it keep their leases."""
    if state.ended_at is None:
        state.leases = leases(paths, state, time.time())
    state.status, state.waits_for, state.queue_reason = Status.LOST, None, None
    with contextlib.suppress(OSError):
        state.ended_at = paths.events.stat().st_mtime
    state.ended_at = state.ended_at or time.time()
    for task in state.tasks:
        if task.ended_at is None and task.pid is not None:
            task.state, task.ended_at = "lost", state.ended_at
    for node in state.nodes:
        state.nodes[node] = "gone"
    require_json(paths.state, state_json(state))
