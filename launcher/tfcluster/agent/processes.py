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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


IS_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36

if IS_LINUX:
    import ctypes

    _prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent(parent: int) -> None:
    """Ask for SIGKILL when the parent ends; called in the child, right after the fork.

    `parent` is the pid the child expects: it may have died before the call, and then no signal
    would ever come.
    """
    if IS_LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)


def set_process_name(name: str) -> None:
    """What `top` and ``ps -o comm`` show, of at most 15 bytes (Linux)."""
    if IS_LINUX:
        _prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends (Linux)."""
    if IS_LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _stat_fields(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat from the state (field 3) on; empty when there is none."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return []
    try:
        return os.read(fd, 4096).rpartition(b")")[2].split()
    except OSError:
        return []
    finally:
        os.close(fd)


def start_time(pid: int) -> int:
    """In clock ticks since boot: tells a process from a later one with its number. 0: gone."""
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def is_alive(pid: int, started: int) -> bool:
    """Whether the process with this number and start time runs; a zombie has ended (Linux)."""
    fields = _stat_fields(pid)
    return len(fields) > 19 and fields[0] not in (b"Z", b"X") and int(fields[19]) == started


def signal_group(pgid: int, started: int, number: int) -> bool:
    """Signal a group we recorded; False when it is gone or its number belongs to another.

    A group outlives its leader, and while it lives the kernel gives its number to nobody: only
    a leader with another start time means a stranger.
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
    """Parent → its living children, of the whole machine (Linux; else empty)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if IS_LINUX else ():
        if name.isdigit():
            fields = _stat_fields(int(name))
            if fields and fields[0] != b"Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    return children


def descendants(of: int = 0) -> list[int]:
    """All living descendants of this process, or of another, children first (Linux; else none)."""
    children = living_children()
    found = list(children.get(of or os.getpid(), ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def reap_orphans() -> bool:
    """Reap every child that has ended; False when none is left alive or dead."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def kill_descendants(timeout_s: float, spare: Collection[int] = ()) -> bool:
    """SIGKILL descendants, those that left their group too, until none is left but `spare`; reaps
    them.

    As a subreaper this process inherits every orphan below it, so "no child left" means
    "nobody left". False: some still live (in the kernel, uninterruptible) after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while reap_orphans():
        if time.monotonic() > deadline:
            return False
        doomed = [pid for pid in descendants() if pid not in spare]
        if spare and not doomed:
            return True
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return True


def kill_below(pid: int, timeout_s: float) -> None:
    """SIGKILL all that lives below another process until nothing does, for `timeout_s` at most."""
    deadline = time.monotonic() + timeout_s
    while (found := descendants(pid)) and time.monotonic() < deadline:
        for one in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.01)


def close_from(first: int) -> None:
    """Every descriptor that is open, from `first` on. Of the numbers that could be there are a
    thousand million in some containers, and Python 3.9 closes them one by one."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
        return
    for number in numbers:
        if number >= first:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.close(number)


_MOST = 1 << 16
"""Some containers allow a thousand million, and old programs close every number there could be."""
_found: int | None = None


def raise_limit(found: int | None = None) -> int:
    """Let this process open more; the soft limit that it began with, or that `found` says."""
    global _found
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _found is None:
        _found = soft if found is None else found
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return _found


def give_back() -> None:
    """In a fork that is to become somebody else's program."""
    if _found is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_found, hard))
