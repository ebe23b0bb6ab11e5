"""Processes as the operating system shows them: parents, start times, descendants, descriptors.

Linux-only calls do nothing on other systems, where killing process groups has to suffice.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable

IS_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36

if IS_LINUX:
    import ctypes

    _prctl = ctypes.CDLL(None, use_errno=True).prctl


REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that schedulers, users and terminals send to all processes at once."""
AGENT_NAME = "tfcluster-agent"
"""The process name of agent and guard, whose command line is the relay's."""


def die_with_parent(parent: int) -> None:
    """Ask for SIGKILL when the parent ends; call this in the child, right after the fork.

    `parent` is the expected parent's pid: if it has already ended, no signal would ever come, so
    the child exits.
    """
    if IS_LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)


def set_process_name(name: str) -> None:
    """Set the name, of at most 15 bytes, that `top` and ``ps -o comm`` show (Linux)."""
    if IS_LINUX:
        _prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends (Linux)."""
    if IS_LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def read_bytes(path: str) -> bytes:
    """Return the content of a file, or nothing where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def first_environment(pid: int) -> list[bytes]:
    """Return the variables with which a process's program began; a fork keeps them (Linux)."""
    return read_bytes(f"/proc/{pid}/environ").split(b"\0")


def discard_streams(*numbers: int) -> None:
    """Connect these descriptors to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(null, number)
    if null > max(numbers):  # else one of them was closed before
        os.close(null)


def _stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state (field 3) on, or [] without a process."""
    return read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def start_time(pid: int) -> int:
    """Return a process's start time in clock ticks since boot, or 0 if there is none.

    It tells the process from a later one with the same number.
    """
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def is_alive(pid: int, started: int) -> bool:
    """Return whether the process with this number and start time runs, zombies excluded (Linux)."""
    fields = _stat_fields(pid)
    return len(fields) > 19 and fields[0] not in (b"Z", b"X") and int(fields[19]) == started


def parent_of(pid: int) -> int:
    """Return a process's parent, or 0 if there is no such process."""
    fields = _stat_fields(pid)
    return int(fields[1]) if len(fields) > 1 else 0


def command_line(pid: int) -> str:
    """Return the start of a process's command line, or "" if unknown (Linux)."""
    words = read_bytes(f"/proc/{pid}/cmdline").rstrip(b"\0").split(b"\0")
    return b" ".join(words).decode(errors="replace")[:200]


def state_of(pid: int) -> str:
    """Return a process's state as in ``ps``: ``R``, ``S``, ``D``, ``T`` …; empty if unknown."""
    fields = _stat_fields(pid)
    return fields[0].decode() if fields else ""


def catches(pid: int, number: int) -> bool:
    """Return whether a process is seen to have a handler for a signal (Linux)."""
    for line in read_bytes(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def signal_group(pgid: int, started: int, number: int) -> bool:
    """Signal a recorded group; return False if it is gone or its number belongs to another.

    A group outlives its leader, and its number is not reused while it lives: so only a leader with
    another start time means that the number belongs to another group.
    """
    now = start_time(pgid)
    if now and started and now != started:
        return False
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def living_children() -> dict[int, list[int]]:
    """Return parent → living children for the whole machine (Linux; elsewhere empty)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if IS_LINUX else ():
        if name.isdigit():
            fields = _stat_fields(int(name))
            if fields and fields[0] != b"Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    return children


def descendants(parent: int = 0) -> list[int]:
    """Return all living descendants of `parent` (0: this process), children first (Linux)."""
    children = living_children()
    pids = list(children.get(parent or os.getpid(), ()))
    for pid in pids:
        pids.extend(children.get(pid, ()))
    return pids


def reap_orphans() -> bool:
    """Reap every child that has ended; return False if there are no children at all."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def kill_descendants(timeout_s: float, spare: Collection[int] = ()) -> None:
    """SIGKILL and reap all descendants but `spare`, also those that left their process group.

    As a subreaper this process inherits every orphan below it, so without children it has no
    descendants. What still lives after `timeout_s` is in uninterruptible sleep.
    """
    deadline = time.monotonic() + timeout_s
    while reap_orphans() and time.monotonic() < deadline:
        doomed = [pid for pid in descendants() if pid not in spare]
        if spare and not doomed:
            return
        _kill(doomed)


def kill_below(pid: int, timeout_s: float) -> None:
    """SIGKILL the descendants of another process until none is left, for `timeout_s` at most."""
    kill_all(lambda: descendants(pid), timeout_s)


def kill_all(find: Callable[[], list[int]], timeout_s: float) -> list[int]:
    """SIGKILL the processes that `find` returns until it returns none, for `timeout_s` at most.

    Return those that still live.
    """
    deadline = time.monotonic() + timeout_s
    while (pids := find()) and time.monotonic() < deadline:
        _kill(pids)
    return pids


def _kill(pids: Iterable[int]) -> None:
    """SIGKILL processes and give them a moment to end."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.002)


def close_from(first: int) -> None:
    """Close every open descriptor from `first` on.

    Some containers allow a thousand million descriptors, and Python 3.9's `os.closerange` tries
    each number.
    """
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
        return
    for number in numbers:
        if number >= first:
            with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                os.close(number)


def leave_agent(end: int, agent: int) -> int:
    """Make this fork of the agent a process of its own; return the number of what `end` was.

    It ends with `agent` (a pid) and not by `REQUESTS`, and all descriptors but `end` and the
    standard streams are closed: the agent's held ports and tasks' pipes.
    """
    die_with_parent(agent)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in REQUESTS:
        signal.signal(number, signal.SIG_IGN)
    kept = os.dup2(end, 3)
    close_from(kept + 1)
    return kept


_MAX_DESCRIPTORS = 1 << 16
"""The most descriptors that are asked for: old programs close every number up to the limit."""
_initial_limit: int | None = None


def raise_limit(inherited: int | None = None) -> int:
    """Raise this process's soft limit of open files; return the one that tasks are to get.

    That is `inherited`, or the soft limit at the first call.
    """
    global _initial_limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _initial_limit is None:
        _initial_limit = soft if inherited is None else inherited
    target = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return _initial_limit


def restore_limit() -> None:
    """Restore the initial soft limit of open files, in a fork that becomes a task's program."""
    if _initial_limit is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_initial_limit, hard))
