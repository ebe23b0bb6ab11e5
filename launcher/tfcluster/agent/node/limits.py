"""The limits of this process on its machine: usable cores and their layout, out-of-memory kills.

Cores come from affinity, cpusets, CPU quotas, NUMA nodes and hyper-threads; the evidence for an
out-of-memory kill from control groups and the kernel log. All is read from the kernel's files
within a few milliseconds, on a machine of any size.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence

KillCounts = dict[str, int]
"""Folder of a cgroup → out-of-memory kills counted there."""

COUNTERS = ("memory.events", "memory.oom_control")
_SYS = "/sys/devices/system"
_CPU_LIMITS = ("cpu.max", "cpu.cfs_quota_us")
_MEMORY_LIMITS = ("memory.max", "memory.limit_in_bytes")
_SCHEDULER_LIMIT = "SLURM_CPUS_ON_NODE"
"""The cores of this job on this node; clusters without cpusets enforce it nowhere else."""
_NO_LIMIT = 1 << 60
"""A memory limit, in bytes, from which on there is none: cgroup v1 writes a huge number."""
_MAX_REMEMBERED = 1000
"""The kills in the kernel log that are remembered until their process is reaped."""


# -- control groups


def cgroup_folders(
    pid: int | str, controller: str, files: Sequence[str], proc: str = "/proc"
) -> Iterator[str]:
    """Yield the folders of a process's cgroups of `controller` that have one of `files`.

    The process's own comes first, then its parents up to the mounted one.
    """
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
                yield from _upwards(point, _path_in_mount(path, root), files)


def _mount(line: str, controller: str) -> tuple[str, str, str] | None:
    """Return kind, root and mount point of a line of mountinfo (proc(5)) about `controller`."""
    before_dash, _, after_dash = line.partition(" - ")
    fields, options = before_dash.split(), after_dash.split()
    kind = options[0] if options else ""
    matches = kind == "cgroup2" or (kind == "cgroup" and controller in options[-1].split(","))
    return (kind, fields[3], fields[4]) if matches else None


def _path_in_mount(path: str, root: str) -> str:
    """Return a cgroup's path below its mount: in a container it may start at the host's root."""
    root = root.rstrip("/")
    return path[len(root) :] if path.startswith(root + "/") or path == root else path


def _upwards(mount: str, path: str, files: Sequence[str]) -> Iterator[str]:
    parts = [part for part in path.split("/") if part]
    for length in range(len(parts), -1, -1):
        folder = "/".join((mount, *parts[:length]))
        if any(os.path.exists(f"{folder}/{name}") for name in files):
            yield folder


# -- cores


def by_node(sys: str = _SYS) -> list[list[int]]:
    """Return the usable cores of each NUMA node that has some.

    Hyper-threads of one physical core (SMT) are next to each other.
    """
    remaining = allowed()
    nodes = []
    for node in _read_list(f"{sys}/node/online"):
        cores = remaining.intersection(_read_list(f"{sys}/node/node{node}/cpulist"))
        remaining -= cores
        nodes.append(_siblings_together(cores, sys))
    nodes.append(_siblings_together(remaining, sys))  # all cores, where no nodes are listed
    return [node for node in nodes if node]


def allowed() -> set[int]:
    """Return the cores that affinity and cpuset allow this process."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def limit(proc: str = "/proc") -> float | None:
    """Return the CPU time that this process's cgroups and its job of a scheduler allow, in cores.

    None without a limit.
    """
    quotas = [_quota(folder) for folder in cgroup_folders("self", "cpu", _CPU_LIMITS, proc)]
    scheduled = os.environ.get(_SCHEDULER_LIMIT, "")
    quotas.append(float(scheduled) if scheduled.isdecimal() else None)
    return min((quota for quota in quotas if quota is not None), default=None)


def usable() -> int:
    """Return the number of cores that this process can keep busy."""
    quota = limit()
    number = len(allowed())
    return number if quota is None else max(1, min(number, int(quota)))


def _quota(folder: str) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        if os.path.exists(f"{folder}/cpu.max"):
            quota, period = _read_fields(f"{folder}/cpu.max")
            return None if quota == "max" else int(quota) / int(period)
        (quota,) = _read_fields(f"{folder}/cpu.cfs_quota_us")
        (period,) = _read_fields(f"{folder}/cpu.cfs_period_us")
        return int(quota) / int(period) if int(quota) > 0 else None
    return None


def _siblings_together(cores: Collection[int], sys: str) -> list[int]:
    with contextlib.suppress(OSError, ValueError):
        if _read_fields(f"{sys}/cpu/smt/active") == ["1"]:
            ordered: dict[int, None] = {}
            for core in sorted(cores):
                if core not in ordered:
                    siblings = _read_list(f"{sys}/cpu/cpu{core}/topology/thread_siblings_list")
                    ordered.update(dict.fromkeys([core, *siblings]))
            return [core for core in ordered if core in cores]
    return sorted(cores)


def _read_list(path: str) -> list[int]:
    """Read a list as the kernel writes it, ``0-3,8,10-11``; return [] where it is unreadable."""
    numbers: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for part in "".join(_read_fields(path)).split(","):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def _read_fields(path: str) -> list[str]:
    with open(path) as file:
        return file.read().split()


# -- out-of-memory kills


class OomDetector:
    """A watch for out-of-memory kills of one agent's tasks."""

    def __init__(self, proc: str = "/proc", kernel_log: str = "/dev/kmsg") -> None:
        self._proc = proc
        self._explained: KillCounts = {}
        """The kills that were attributed to a task already."""
        self._log = _KernelLog(kernel_log)

    def count_kills(self, pid: int) -> KillCounts:
        """Return the kills in a task's cgroups at its start, which `evidence` needs later."""
        self._log.forget(pid)
        folders = cgroup_folders(pid, "memory", COUNTERS, self._proc)
        counts = {folder: _kills(folder) for folder in folders}
        return {folder: n - self._explained.get(folder, 0) for folder, n in counts.items()}

    def evidence(self, pid: int, counts_before: KillCounts) -> str | None:
        """Return the evidence that a task's SIGKILL was an out-of-memory kill, or None."""
        line = self._log.kill_of(pid)
        grown = []
        for folder, before in counts_before.items():
            explained, count = self._explained.get(folder, 0), _kills(folder)
            if count - explained > before:
                grown.append((folder, count))
                self._explained[folder] = explained + 1
        if line is not None:
            return f"kernel log: {line}"
        if not grown:
            return None
        folder, count = grown[0]
        return f"{_describe_cgroup(folder)}: its count of out-of-memory kills rose to {count}"

    def close(self) -> None:
        self._log.close()


class _KernelLog:
    """The kernel log from now on; it has no lines where this user may not read it."""

    def __init__(self, path: str) -> None:
        self._killed: dict[int, str] = {}
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)

    def forget(self, pid: int) -> None:
        """Drop an old kill of this pid, which a new process has now."""
        self._killed.pop(pid, None)

    def kill_of(self, pid: int) -> str | None:
        """Return the line that reports the kill of this pid, or None."""
        for record in self._records():
            text = record.partition(";")[2].partition("\n")[0]
            killed = killed_pid(text)
            if killed is not None and len(self._killed) < _MAX_REMEMBERED:
                self._killed[killed] = text
        return self._killed.pop(pid, None)

    def _records(self) -> Iterator[str]:
        while self._fd >= 0:
            try:
                record = os.read(self._fd, 8192)
            except BrokenPipeError:  # records were overwritten unread: the next read goes on
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
    """Return the pid that a line of the kernel log reports as killed (mm/oom_kill.c), or None."""
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


def _describe_cgroup(folder: str) -> str:
    for name in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError), open(f"{folder}/{name}") as file:
            limit = int(file.read())
            if limit < _NO_LIMIT:
                return f"cgroup {folder} with a limit of {limit / (1 << 20):.0f} MiB"
    return f"cgroup {folder}"
