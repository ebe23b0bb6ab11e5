"""Proof that an agent and its guard have ended; until then no new agent may take their place.

A failed connection proves nothing: a cleaner of the temporary folder removes the socket while the
agent's tasks go on. There are two proofs: a process table that would show the agent (same boot,
user and PID namespace) has no process with the number and start time of agent or guard; or the same
machine has rebooted. Without proof, only the end of the lease counts.

`end_lost_run` ends what a run left on a node after its coordinator was lost.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
import zlib
from collections.abc import Mapping

from tfcluster.agent import Any
from tfcluster.agent.processes import (
    IS_LINUX,
    first_environment,
    is_alive,
    kill_all,
    read_bytes,
    start_time,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tfcluster.agent.agent_config import EndLostRun

END_S = 10.0
"""The time for a guard to end the tasks of a killed agent."""
_WITHOUT_GUARD_S = 3.0
"""The time for an agent without a guard to end its tasks itself."""
_KILL_S = 5.0
_MACHINE_ID = ("/etc/machine-id", "/var/lib/dbus/machine-id")


def identity(guard_pid: int) -> dict[str, Any]:
    """Return what identifies this agent and its guard when their end must be proved later."""
    pid = os.getpid()
    return {
        "pid": pid,
        "started": start_time(pid),
        "guard_pid": guard_pid,
        "guard_started": start_time(guard_pid),
        "where": process_scope(),
    }


def process_scope() -> dict[str, Any]:
    """Return the boot, machine, PID namespace and user of this process.

    They decide whether one process can see another, or runs after a reboot.
    """
    machine_id = next(filter(None, map(_read, _MACHINE_ID)), "")
    digest = zlib.crc32(machine_id.encode())  # the id must not leave the machine (machine-id(5))
    return {
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "machine": f"{digest:08x} {os.uname().nodename}" if machine_id else "",
        "pid_namespace": _pid_namespace(),
        "uid": os.getuid(),
    }


def have_ended(previous: Mapping[str, Any], *, in_container: bool = False) -> bool | None:
    """Return whether the agent with this `identity` and its guard have ended; None: no proof.

    `in_container`: they could only run in this container, whose processes end with it.
    """
    local, remote = process_scope(), previous["where"]
    if _can_see(local, remote):
        return not any(is_alive(*process) for process in _processes(previous))
    has_rebooted = remote["boot_id"] and local["boot_id"] not in ("", remote["boot_id"])
    is_same_machine = remote["machine"] and local["machine"] == remote["machine"]
    return True if in_container or (has_rebooted and is_same_machine) else None


def end(previous: Mapping[str, Any], timeout_s: float = END_S) -> bool | None:
    """Kill the agent with this `identity` and wait for its guard, which ends the tasks.

    Return whether both have ended within `timeout_s`; None where nothing can prove it.
    """
    if not _can_see(process_scope(), previous["where"]):
        return have_ended(previous)
    agent, guard = _processes(previous)
    if not is_alive(*guard):
        _await_end([agent], _WITHOUT_GUARD_S)
    _signal(*agent, signal.SIGKILL)
    _signal(*guard, signal.SIGCONT)
    return _await_end([agent, guard], timeout_s)


def end_process(pid: int) -> bool:
    """Kill a visible process; return whether it has ended within `END_S`."""
    started = start_time(pid)
    return not kill_all(lambda: [pid] if is_alive(pid, started) else [], END_S)


def end_lost_run(order: EndLostRun) -> dict[str, Any]:
    """Kill the run's agent and every process with the run's id.

    Return what ran (``ended``: agent, worker:0, …), what was killed and still lives (``stays``),
    whether nothing of the run can be alive here (``is_proved``), and the folder with its files on
    this node (``folder``; null: there is none).
    """
    tasks = _find_tasks(order.run_id)
    agent = ["agent"] if have_ended(order.former) is False else []
    has_ended = end(order.former)
    stays = _kill_tasks(order.run_id) + (agent if has_ended is False else [])
    folder = os.path.join(order.cache, "nodes", order.run_id)
    return {
        "ended": agent + sorted(set(tasks.values())),
        "stays": stays,
        "is_proved": has_ended is True and not stays,
        "folder": folder if os.path.isdir(folder) else None,
    }


def _can_see(local: Mapping[str, Any], remote: Mapping[str, Any]) -> bool:
    """Return whether processes in scope `remote` are in the process table of scope `local`."""
    names = ("boot_id", "pid_namespace", "uid")
    is_known = local["boot_id"] != "" and local["pid_namespace"] != 0
    return is_known and all(local[name] == remote[name] for name in names)


def _processes(previous: Mapping[str, Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return process id and start time of agent and guard."""
    guard = (previous["guard_pid"], previous["guard_started"])
    return (previous["pid"], previous["started"]), guard


def _await_end(processes: list[tuple[int, int]], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while any(is_alive(*process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _signal(pid: int, started: int, number: int) -> None:
    if is_alive(pid, started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill_tasks(run_id: str) -> list[str]:
    """Kill all tasks of the run; return the names of those that still live."""
    kill_all(lambda: list(_find_tasks(run_id)), _KILL_S)
    return sorted(set(_find_tasks(run_id).values()))


def _find_tasks(run_id: str) -> dict[int, str]:
    """Return pid → task for the living processes of this user that the run started."""
    mark, tasks = f"TFCLUSTER_RUN_ID={run_id}".encode(), {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc") if IS_LINUX else ())):
        try:
            is_own = os.stat(f"/proc/{pid}").st_uid == os.getuid()
        except OSError:
            continue
        environ = first_environment(pid) if is_own else []  # empty for a zombie
        if mark in environ:
            named = [word for word in environ if word.startswith(b"TFCLUSTER_TASK=")]
            name = named[0].decode(errors="replace")[15:] if named else "prepare"
            tasks[pid] = re.sub(r"[^A-Za-z0-9_:.-]", "_", name)[:80] or "_"
    return tasks


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _read(path: str) -> str:
    return read_bytes(path).decode(errors="replace").strip()
