"""Which cores this process may use, and how they lie: cpusets, limits, NUMA nodes, hyper-threads.

Read from the kernel's own files in a few milliseconds, on a machine of any size.
"""

from __future__ import annotations

import contextlib
import os

from tfcluster.agent import cgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

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
    quotas = (_quota(folder) for folder in cgroups.folders("self", "cpu", _LIMITS, proc))
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
