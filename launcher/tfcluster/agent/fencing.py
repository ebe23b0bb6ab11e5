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

from tfcluster.agent.processes import is_alive, start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


END_S = 10.0
"""How long a guard gets to end the tasks of an agent that was killed."""
_BY_ITSELF_S = 3.0
"""How long an agent without a guard gets: it ends its tasks itself."""
_MACHINE_ID = ("/etc/machine-id", "/var/lib/dbus/machine-id")


def identity(guard_pid: int) -> dict[str, Any]:
    """Who this process, an agent, and its guard are, for whoever must prove their end later."""
    pid = os.getpid()
    return {
        "pid": pid,
        "started": start_time(pid),
        "guard_pid": guard_pid,
        "guard_started": start_time(guard_pid),
        "where": where(),
    }


def where() -> dict[str, Any]:
    """What decides whether a process sees another one, or must have outlived it."""
    machine_id = next(filter(None, map(_read, _MACHINE_ID)), "")
    return {
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "machine": f"{_digest(machine_id)} {os.uname().nodename}" if machine_id else "",
        "pid_namespace": _pid_namespace(),
        "uid": os.getuid(),
    }


def have_ended(former: dict[str, Any], *, in_container: bool = False) -> bool | None:
    """Whether the agent of this identity and its guard have ended; None where nothing proves it.

    `in_container`: they could only run in this very container, whose processes end with it.
    """
    here, there = where(), former["where"]
    if _can_see(here, there):
        return not any(is_alive(*process) for process in _processes(former))
    has_rebooted = there["boot_id"] and here["boot_id"] not in ("", there["boot_id"])
    is_same_machine = there["machine"] and here["machine"] == there["machine"]
    return True if in_container or (has_rebooted and is_same_machine) else None


def end(former: dict[str, Any], patience_s: float = END_S) -> bool | None:
    """Kill the agent of this identity, and wait for its guard, which ends the tasks.

    Returns whether both have ended within `patience_s`; None where nothing can prove it.
    """
    if not _can_see(where(), former["where"]):
        return have_ended(former)
    agent, guard = _processes(former)
    if not is_alive(*guard):
        _await_end([agent], _BY_ITSELF_S)
    _signal(*agent, signal.SIGKILL)
    _signal(*guard, signal.SIGCONT)
    return _await_end([agent, guard], patience_s)


def end_process(pid: int) -> bool:
    """Kill one that this process can see; returns whether it has ended within `END_S`."""
    process = (pid, start_time(pid))
    _signal(*process, signal.SIGKILL)
    return _await_end([process], END_S)


def _can_see(here: dict[str, Any], there: dict[str, Any]) -> bool:
    """Whether processes `there` are in the process table `here`."""
    names = ("boot_id", "pid_namespace", "uid")
    is_known = here["boot_id"] != "" and here["pid_namespace"] != 0
    return is_known and all(here[name] == there[name] for name in names)


def _processes(former: dict[str, Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Process id and start time of agent and guard."""
    guard = (former["guard_pid"], former["guard_started"])
    return (former["pid"], former["started"]), guard


def _await_end(processes: list[tuple[int, int]], patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while any(is_alive(*process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _signal(pid: int, started: int, number: int) -> None:
    if is_alive(pid, started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _digest(machine_id: str) -> str:
    """It is not to be shown as it is (machine-id(5))."""
    return f"{zlib.crc32(machine_id.encode()):08x}"


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


_KILL_S = 5.0


def end_lost_run(config: dict[str, Any]) -> dict[str, Any]:
    """Kill the agent that is ``former`` (`fence.identity`), and all that carries the run's id.

    Returns what was there (``ended``: agent, worker:0, …), what was killed and lives on
    (``stays``), whether nothing of the run can live here any more (``is_proved``), and the folder
    with what it has saved here (``folder``; null: there is none).
    """
    tasks = _tasks(config["run_id"])
    agent = ["agent"] if have_ended(config["former"]) is False else []
    has_ended = end(config["former"])
    stays = _kill_tasks(config["run_id"]) + (agent if has_ended is False else [])
    folder = os.path.join(config["cache"], "nodes", config["run_id"])
    return {
        "ended": agent + sorted(set(tasks.values())),
        "stays": stays,
        "is_proved": has_ended is True and not stays,
        "folder": folder if os.path.isdir(folder) else None,
    }


def _kill_tasks(run_id: str) -> list[str]:
    """Those that live on."""
    deadline = time.monotonic() + _KILL_S
    while tasks := _tasks(run_id):
        if time.monotonic() > deadline:
            break
        for pid in tasks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return sorted(set(tasks.values()))


def _tasks(run_id: str) -> dict[int, str]:
    """Living processes of this user that a task or `prepare` of the run has started."""
    mark, found = f"TFCLUSTER_RUN_ID={run_id}".encode(), {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if os.stat(f"/proc/{pid}").st_uid != os.getuid():
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read().split(b"\0")  # empty for a zombie
        except OSError:
            continue
        if mark in environ:
            named = [word for word in environ if word.startswith(b"TFCLUSTER_TASK=")]
            name = named[0].decode(errors="replace")[15:] if named else "prepare"
            found[pid] = re.sub(r"[^A-Za-z0-9_:.-]", "_", name)[:80] or "_"
    return found
