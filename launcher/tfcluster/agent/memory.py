"""Evidence that the kernel's out-of-memory killer ended a task: it looks like any other SIGKILL.

Two witnesses, the better one first:

* the kernel log (`/dev/kmsg`, root or kernel.dmesg_restrict=0): names the pid it killed;
* the counters of the task's memory cgroup and those above it (v2: `oom_kill` in memory.events,
  v1: in memory.oom_control), read at the task's start and at its end. They count the kills of
  all tasks of a cgroup, so each kill that is counted explains one task's end only.

Neither tells of a killer in user space (earlyoom, systemd-oomd, a batch system's).
"""

from __future__ import annotations

import contextlib
import os

from tfcluster.agent import cgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Counts = dict[str, int]
    """Folder of a cgroup → kills counted there."""

COUNTERS = ("memory.events", "memory.oom_control")
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_NO_LIMIT = 1 << 60
_MOST_KEPT = 1000


class Witness:
    """Watches the machine for all tasks of one agent."""

    def __init__(self, proc: str = "/proc", kernel_log: str = "/dev/kmsg") -> None:
        self._proc = proc
        self._explained: Counts = {}
        """Kills that were put down to a task already."""
        self._log = _KernelLog(kernel_log)

    def look(self, pid: int) -> Counts:
        """At a task's start; give what it returns to `evidence`."""
        self._log.forget(pid)
        found = cgroups.folders(pid, "memory", COUNTERS, self._proc)
        counts = {folder: _kills(folder) for folder in found}
        return {folder: n - self._explained.get(folder, 0) for folder, n in counts.items()}

    def evidence(self, pid: int, before: Counts) -> str | None:
        """In words, for a task that ended by a SIGKILL that was not ours; None: there is none."""
        line = self._log.kill_of(pid)
        grown = [folder for folder in before if self._unexplained(folder) > before[folder]]
        if line is None and not grown:
            return None
        now = {folder: _kills(folder) for folder in grown}
        for folder in grown:
            self._explained[folder] = self._explained.get(folder, 0) + 1
        if line is not None:
            return f"kernel log: {line}"
        return f"{_shown(grown[0])}: its count of kills rose to {now[grown[0]]}"

    def _unexplained(self, folder: str) -> int:
        return _kills(folder) - self._explained.get(folder, 0)

    def close(self) -> None:
        self._log.close()


class _KernelLog:
    """What the kernel says from now on; silent where this user may not read it."""

    def __init__(self, path: str) -> None:
        self._killed: dict[int, str] = {}
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)

    def forget(self, pid: int) -> None:
        """A new process has this number."""
        self._killed.pop(pid, None)

    def kill_of(self, pid: int) -> str | None:
        for record in self._records():
            text = record.partition(";")[2].partition("\n")[0]
            killed = killed_pid(text)
            if killed is not None and len(self._killed) < _MOST_KEPT:
                self._killed[killed] = text
        return self._killed.pop(pid, None)

    def _records(self) -> Iterator[str]:
        while self._fd >= 0:
            try:
                record = os.read(self._fd, 8192)
            except (
                BrokenPipeError
            ):  # records were overwritten before we came: the next read goes on
                continue
            except OSError:
                return
            if not record:
                return
            yield record.decode(errors="replace")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def killed_pid(text: str) -> int | None:
    """Whom a line of the kernel log says the out-of-memory killer ended (mm/oom_kill.c)."""
    if "Killed process " in text:
        number = text.partition("Killed process ")[2].partition(" ")[0]
    elif text.startswith("oom-kill:"):
        number = text.partition(",pid=")[2].partition(",")[0]
    else:
        return None
    return int(number) if number.isdigit() else None


def _kills(folder: str) -> int:
    for name in COUNTERS:
        with contextlib.suppress(OSError, ValueError), open(f"{folder}/{name}") as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    return 0


def _shown(folder: str) -> str:
    for name in _LIMITS:
        with contextlib.suppress(OSError, ValueError), open(f"{folder}/{name}") as file:
            limit = int(file.read())
            if limit < _NO_LIMIT:
                return f"cgroup {folder} with a limit of {limit / (1 << 20):.0f} MiB"
    return f"cgroup {folder}"
