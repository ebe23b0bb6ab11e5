"""The limits of this process on its machine: usable cores and their layout, out-of-memory kills.

Cores come from affinity, cpusets, CPU quotas, NUMA nodes and hyper-threads; the evidence for an
out-of-memory kill from control groups and the kernel log. All is read from the kernel's files
within a few milliseconds, on a machine of any size.
"""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    Counts = dict[str, int]
    """Folder of a cgroup → kills counted there."""


def folders(
    pid: int | str, controller: str, files: Sequence[str], proc: str = "/proc"
) -> Iterator[str]:
    """Those of `controller` that hold one of `files`: the process's own first, up to the one
    mounted here."""
    try:
        with open(f"{proc}/self/mountinfo") as file:
            mounts = [mount for line in file if (mount := _mount(line, controller)) is not None]
        with open(f"{proc}/{pid}/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return
    for hierarchy, controllers, path in lines:
        kind = "cgroup2" if hierarchy == "0" else "cgroup"
        if kind == "cgroup" and controller not in controllers.split(","):
            continue
        for mount_kind, root, point in mounts:
            if mount_kind == kind:
                yield from _upwards(point, _below(path, root), files)


def _mount(line: str, controller: str) -> tuple[str, str, str] | None:
    """Kind, root and mount point of a line of mountinfo (proc(5)), where it is `controller`'s."""
    left, _, right = line.partition(" - ")
    fields, about = left.split(), right.split()
    kind = about[0] if about else ""
    is_its = kind == "cgroup2" or (kind == "cgroup" and controller in about[-1].split(","))
    return (kind, fields[3], fields[4]) if is_its else None


def _below(path: str, root: str) -> str:
    """In a container /proc may name the cgroup from the host's root, the mount only ours."""
    root = root.rstrip("/")
    return path[len(root) :] if path.startswith(root + "/") or path == root else path


def _upwards(mount: str, path: str, files: Sequence[str]) -> Iterator[str]:
    parts = [part for part in path.split("/") if part]
    for length in range(len(parts), -1, -1):
        folder = "/".join((mount, *parts[:length]))
        if any(os.path.exists(f"{folder}/{name}") for name in files):
            yield folder


_SYS = "/sys/devices/system"
_LIMITS = ("cpu.max", "cpu.cfs_quota_us")


def by_node(sys: str = _SYS) -> list[list[int]]:
    """The usable cores of each NUMA node that has some. Those that share the units of one
    physical core (SMT) are neighbours."""
    left = allowed()
    found = []
    for node in _numbers(f"{sys}/node/online"):
        own = left.intersection(_numbers(f"{sys}/node/node{node}/cpulist"))
        left -= own
        found.append(_siblings_together(own, sys))
    found.append(_siblings_together(left, sys))  # all of them, where nothing is told of nodes
    return [node for node in found if node]


def allowed() -> set[int]:
    """What affinity and cpuset leave to this process."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def limit(proc: str = "/proc") -> float | None:
    """How many cores' time the control groups of this process allow; None: there is no limit."""
    quotas = (_quota(folder) for folder in folders("self", "cpu", _LIMITS, proc))
    return min((quota for quota in quotas if quota is not None), default=None)


def usable() -> int:
    """How many can be kept busy."""
    of_time = limit()
    number = len(allowed())
    return number if of_time is None else max(1, min(number, int(of_time)))


def _quota(folder: str) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        if os.path.exists(f"{folder}/cpu.max"):
            quota, period = _words(f"{folder}/cpu.max")
            return None if quota == "max" else int(quota) / int(period)
        (quota,) = _words(f"{folder}/cpu.cfs_quota_us")
        (period,) = _words(f"{folder}/cpu.cfs_period_us")
        return int(quota) / int(period) if int(quota) > 0 else None
    return None


def _siblings_together(cores: Collection[int], sys: str) -> list[int]:
    with contextlib.suppress(OSError, ValueError):
        if _words(f"{sys}/cpu/smt/active") == ["1"]:
            found: dict[int, None] = {}
            for core in sorted(cores):
                if core not in found:
                    of_one = _numbers(f"{sys}/cpu/cpu{core}/topology/thread_siblings_list")
                    found.update(dict.fromkeys([core, *of_one]))
            return [core for core in found if core in cores]
    return sorted(cores)


def _numbers(path: str) -> list[int]:
    """Of a list as the kernel writes it: ``0-3,8,10-11``; empty where it cannot be read."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for part in "".join(_words(path)).split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    return found


def _words(path: str) -> list[str]:
    with open(path) as file:
        return file.read().split()


COUNTERS = ("memory.events", "memory.oom_control")
_MEMORY_LIMITS = ("memory.max", "memory.limit_in_bytes")
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
        found = folders(pid, "memory", COUNTERS, self._proc)
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
    for name in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError), open(f"{folder}/{name}") as file:
            limit = int(file.read())
            if limit < _NO_LIMIT:
                return f"cgroup {folder} with a limit of {limit / (1 << 20):.0f} MiB"
    return f"cgroup {folder}"
