"""The agent's companion: when the agent is gone, it kills what the agent had started.

PDEATHSIG reaches only a task itself, not the processes the task made. So the guard, the agent's
parent with a session of its own, holds a pipe from the agent and a list of process groups with
the start times of their leaders. At the end of the pipe it kills those groups, then (as the
subreaper above the agent) whatever else the agent left below it, and removes the agent's files.

It imports next to nothing: it stays in memory for as long as the run lasts.
"""

from __future__ import annotations

import contextlib
import os
import signal

from tfcluster.agent.processes import become_subreaper, kill_descendants, signal_group

_LAST_EFFORT_S = 60.0


class Recorder:
    """The agent's end: what the guard must kill and remove if the agent dies."""

    def __init__(self, fd: int, pid: int) -> None:
        self._fd = fd
        self.pid = pid

    def add_group(self, pgid: int, started: int) -> None:
        self._write(f"+ {pgid} {started}")

    def drop_group(self, pgid: int) -> None:
        self._write(f"- {pgid}")

    def add_file(self, path: str) -> None:
        """Once it is there and whole: the guard removes it unless somebody made it anew."""
        self._write(f"f {file_identity(path)} {path}")

    def drop_file(self, path: str) -> None:
        self._write(f"d {path}")

    def _write(self, line: str) -> None:
        # A dead guard is noticed through its own pipe (`agent.py`), not here.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._fd, line.encode() + b"\n")


def fork_guard() -> tuple[Recorder, int]:
    """Fork: the child returns as the agent, the parent stays as its guard and never returns.

    Returns the recorder and a descriptor that reports end-of-file when the guard dies. Must be
    called before anything large is imported, from the only thread.
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
    _guard(from_agent)


def _guard(from_agent: int) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    groups, files = _listen(from_agent)
    for pgid, started in groups.items():
        signal_group(pgid, started, signal.SIGKILL)
    kill_descendants(_LAST_EFFORT_S)
    for path, made in files.items():
        with contextlib.suppress(OSError):
            if file_identity(path) == made:  # else a new agent of this run has put its own there
                os.unlink(path)
    os._exit(0)


def file_identity(path: str) -> str:
    """Tells a file from a later one at its path: a file system gives the number of a removed file
    to the next one, but its time differs."""
    found = os.lstat(path)
    return f"{found.st_ino}.{found.st_mtime_ns}"


def _listen(from_agent: int) -> tuple[dict[int, int], dict[str, str]]:
    """The groups and files on record when the agent's end of the pipe closed."""
    groups: dict[int, int] = {}
    files: dict[str, str] = {}
    rest = b""
    while data := os.read(from_agent, 65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            what, _, value = line.decode().partition(" ")
            if what == "+":
                pgid, started = value.split()
                groups[int(pgid)] = int(started)
            elif what == "-":
                groups.pop(int(value), None)
            elif what == "f":
                made, _, path = value.partition(" ")
                files[path] = made
            else:
                files.pop(value, None)
    return groups, files


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn
