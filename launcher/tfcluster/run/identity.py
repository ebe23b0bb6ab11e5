"""Which process on which machine owns a run, in a form that a recycled pid cannot fake."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process of one boot of a machine; `start` is in clock ticks since boot (proc(5), stat)."""

    host: str
    boot_id: str
    pid: int
    start: int

    def is_alive(self) -> bool | None:
        """Whether it still runs; None where only another machine could tell."""
        if self.host != socket.gethostname():
            return None
        return self.boot_id == boot_id() and start_of(self.pid) == self.start


def this_process() -> ProcessIdentity:
    return ProcessIdentity(
        host=socket.gethostname(),
        boot_id=boot_id(),
        pid=os.getpid(),
        start=start_of(os.getpid()) or 0,
    )


def boot_id() -> str:
    """A text that changes with every boot; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_of(pid: int) -> int | None:
    """Start time of a live process, None when there is none; a zombie counts as gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None if Path("/proc/self").exists() else _start_without_proc(pid)
    state, *rest = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(rest[18])


def _start_without_proc(pid: int) -> int | None:
    import psutil  # macOS only: the import is not free

    try:
        return int(psutil.Process(pid).create_time() * 100)
    except psutil.Error:
        return None
