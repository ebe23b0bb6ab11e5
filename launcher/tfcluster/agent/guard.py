"""The guard: the agent's parent process, which kills what the agent started when the agent ends.

PDEATHSIG reaches only a task itself, not the processes that the task started. The guard has its own
session, a pipe from the agent, and a list of process groups with the start times of their leaders.
When the pipe closes, it kills those groups, then (as the subreaper above the agent) every other
process that the agent left, and removes the agent's files.

It imports almost nothing, because it stays in memory as long as the run.
"""

from __future__ import annotations

import contextlib
import os
import signal

from tfcluster.agent import NoReturn
from tfcluster.agent.processes import (
    REQUESTS,
    become_subreaper,
    discard_streams,
    kill_descendants,
    signal_group,
)

_KILL_S = 60.0


class Recorder:
    """The agent's end of the pipe, which tells the guard what to kill and remove."""

    def __init__(self, fd: int, pid: int) -> None:
        self._fd = fd
        self.pid = pid

    def add_group(self, pgid: int, started: int) -> None:
        self._write(f"+ {pgid} {started}")

    def drop_group(self, pgid: int) -> None:
        self._write(f"- {pgid}")

    def add_file(self, path: str) -> None:
        """Record a complete file: the guard removes it, unless it has been replaced."""
        self._write(f"f {file_identity(path)} {path}")

    def drop_file(self, path: str) -> None:
        self._write(f"d {path}")

    def _write(self, line: str) -> None:
        # A dead guard is noticed through another pipe (`agent.py`).
        with contextlib.suppress(BrokenPipeError):
            os.write(self._fd, line.encode() + b"\n")


def fork_guard() -> tuple[Recorder, int]:
    """Fork: the child returns as the agent, the parent stays as its guard and never returns.

    Return the recorder and a descriptor that reports end-of-file when the guard dies. Call this
    from the only thread, before anything large is imported.
    """
    become_subreaper()
    from_agent, to_guard = os.pipe()
    guard_alive, held_by_guard = os.pipe()
    guard_pid = os.getpid()
    if os.fork() == 0:
        os.close(from_agent)
        os.close(held_by_guard)
        os.setsid()
        become_subreaper()  # not inherited over a fork
        return Recorder(to_guard, guard_pid), guard_alive
    os.close(to_guard)
    os.close(guard_alive)
    _run_guard(from_agent)


def _run_guard(from_agent: int) -> NoReturn:
    """Wait for the agent's end, kill what it left, remove its files and exit."""
    for number in REQUESTS:
        signal.signal(number, signal.SIG_IGN)
    discard_streams(0, 1, 2)
    groups, files = _read_records(from_agent)
    for pgid, started in groups.items():
        signal_group(pgid, started, signal.SIGKILL)
    kill_descendants(_KILL_S)
    for path, identity in files.items():
        with contextlib.suppress(OSError):
            if file_identity(path) == identity:  # else a new agent of this run made it
                os.unlink(path)
    os._exit(0)


def file_identity(path: str) -> str:
    """Return what tells a file from a later one at its path.

    A file system may reuse the inode number of a removed file, but the time differs.
    """
    status = os.lstat(path)
    return f"{status.st_ino}.{status.st_mtime_ns}"


def _read_records(from_agent: int) -> tuple[dict[int, int], dict[str, str]]:
    """Return the groups and files on record when the agent's end of the pipe closes."""
    groups: dict[int, int] = {}
    files: dict[str, str] = {}
    tail = b""
    while data := os.read(from_agent, 65536):
        *lines, tail = (tail + data).split(b"\n")
        for line in lines:
            action, _, value = line.decode().partition(" ")
            if action == "+":
                pgid, started = value.split()
                groups[int(pgid)] = int(started)
            elif action == "-":
                groups.pop(int(value), None)
            elif action == "f":
                identity, _, path = value.partition(" ")
                files[path] = identity
            else:
                files.pop(value, None)
    return groups, files
