"""The memory and processor time of the running tasks, read from /proc every few seconds.

With them goes what may make the tasks of this node slower than others: the node's load, waiting
for memory, the processor's clock, and the time in which a CPU quota stops a task.

A task's processes are its process group and all descendants of it, also those that left the group.
One sample reads a small file per process of a task, and lists all processes (0.1 ms per 100): each
new one is read once to learn whose it is. Memory is the resident set (RSS), as `top` and `ps`
show it: pages that several processes share count in each. Other systems than Linux have no /proc:
nothing is sent.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable

from tfcluster.agent import catalogue as msg
from tfcluster.agent.node import limits
from tfcluster.agent.node.gpu_meter import GpuMeter
from tfcluster.agent.processes import IS_LINUX, read_bytes
from tfcluster.agent.tasks.task import Task

FIRST_S = 1.5
"""The time from a task's start to the first sample."""
INTERVAL_S = 5.0
LONGEST_S = 30.0
_SHARE = 2000
"""The agent spends at most this part (0.05 %) of one core on samples: on a machine with thousands
of processes or tasks they are further apart."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_START, _RSS = 19, 21
"""Two of the fields after the process's name (proc(5) counts from 1, with two before these)."""


class UsageMeter:
    """The samples of one run's tasks on this node."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self.due_at: float | None = None
        """The moment of the next sample; None while no task runs."""
        self._known: dict[str, tuple[int | None, bytes]] = {}
        """Each process's number in /proc → the pid of the task that it belongs to, or None, and
        the moment of its start, which tells it from a later one with the same number."""
        self._before: dict[int, tuple[float, float]] = {}
        """A task's pid → moment and processor time in seconds of the last sample."""
        self._throttling: dict[int, tuple[float, int, int] | None] = {}
        """A task's pid → what CPU quotas had done to it by the last sample (`_throttling`)."""
        self._gpus = GpuMeter()

    @property
    def child(self) -> int:
        """The process that asks the GPUs; 0 if there is none."""
        return self._gpus.pid

    def begin(self, task: Task) -> None:
        """Measure this task from now on, unless it is a node's prepare step (attempt 0)."""
        if not IS_LINUX or task.attempt == 0:
            return
        self._before[task.pid] = task.started_at, 0.0
        self._known.pop(str(task.pid), None)  # an earlier process may have had this number
        first_at = task.started_at + FIRST_S
        self.due_at = first_at if self.due_at is None else min(self.due_at, first_at)

    def end(self, task: Task) -> None:
        self._throttling.pop(task.pid, None)
        if self._before.pop(task.pid, None) is not None and not self._before:
            self.due_at = None
            self._known.clear()

    def sample(self, tasks: Iterable[Task]) -> msg.NodeUsage | None:
        """Return the use since the last sample of those tasks that run; set `due_at` anew."""
        began, spent = time.monotonic(), time.thread_time()
        running = {task.pid: task for task in tasks if task.pid in self._before}
        used: list[msg.TaskUsage] = []
        with contextlib.suppress(OSError):  # no free descriptor or process: the agent must go on
            used += [
                self._describe(running[pid], rss, seconds, began)
                for pid, (rss, seconds) in self._read(running).items()
                if rss  # else it has just ended
            ]
            self._gpus.ask()
        spent = time.thread_time() - spent
        self.due_at = began + min(LONGEST_S, max(INTERVAL_S, spent * _SHARE))
        if not used:
            return None
        return msg.NodeUsage(
            tasks=used, load=node_load(), memory_stall=_memory_stall(), clock=_clock()
        )

    def close(self) -> None:
        self._gpus.close()

    def _describe(self, task: Task, rss: int, seconds: float, now: float) -> msg.TaskUsage:
        at, seconds_before = self._before[task.pid]
        self._before[task.pid] = now, seconds
        # A child's time is lost if the agent, not the task, has reaped it.
        cores = max(0.0, seconds - seconds_before) / max(now - at, 0.001)
        counted = _throttling(task.pid, self._proc)
        before, self._throttling[task.pid] = self._throttling.get(task.pid), counted
        throttled = None
        if before and counted:
            stopped_s, stopped, periods = (b - a for a, b in zip(before, counted))
            # The seconds are summed over cores: the part of the periods bounds them.
            share = min(stopped_s / max(now - at, 0.001), stopped / periods if periods else 0.0)
            throttled = round(min(1.0, max(0.0, share)), 3)
        use, memory = self._gpus.use_of(task.gpus, task.gpu_order)
        return msg.TaskUsage(
            task=task.name,
            rss_bytes=rss,
            cores=round(cores, 3),
            gpu=use,
            gpu_memory_bytes=memory,
            throttled=throttled,
        )

    def _read(self, running: Iterable[int]) -> dict[int, tuple[int, float]]:
        """Return pid of a task → resident bytes and processor seconds of all its processes."""
        totals = dict.fromkeys(running, (0, 0.0))
        for name, (owner, start) in list(self._known.items()):
            if owner in totals:
                fields = self._stat(name)
                if _start(fields) == start:
                    _add(totals, owner, fields)
                else:
                    del self._known[name]
        self._add_new(totals)
        return totals

    def _add_new(self, totals: dict[int, tuple[int, float]]) -> None:
        """Learn whose the new processes are, and forget those that have ended."""
        names = {name for name in os.listdir(self._proc) if name.isdigit()}
        for name in self._known.keys() - names:
            del self._known[name]
        for name in sorted(names - self._known.keys(), key=int):  # a parent before its children
            if fields := self._stat(name):
                owner = self._owner(int(name), fields, totals)
                self._known[name] = owner, _start(fields)
                _add(totals, owner, fields)

    def _owner(self, pid: int, fields: list[bytes], tasks: Iterable[int]) -> int | None:
        """Return the task that a new process belongs to: by its group, or by its parent."""
        parent, group = fields[1].decode(), int(fields[2])
        if pid in tasks or group in tasks:
            return pid if pid in tasks else group
        return self._known.get(parent, (None, b""))[0]

    def _stat(self, name: str) -> list[bytes]:
        """Return the fields of /proc/PID/stat from the state (field 3) on; [] if it has ended."""
        fields = read_bytes(f"{self._proc}/{name}/stat").rpartition(b")")[2].split()
        return fields if len(fields) > _RSS else []


def node_load() -> float:
    """Return the processes that run or want to, per core, on average over a minute."""
    return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)


def _memory_stall(path: str = "/proc/pressure/memory") -> float | None:
    """Return the part of the last ten seconds in which some process waited for memory."""
    average = re.match(rb"some avg10=([0-9.]+)", read_bytes(path))
    return round(float(average[1]) / 100, 4) if average else None


def _clock(folder: str = "/sys/devices/system/cpu/cpu0/cpufreq") -> float | None:
    """Return the first core's clock as a part of its highest."""
    names = ("scaling_cur_freq", "cpuinfo_max_freq")
    now, highest = (read_bytes(f"{folder}/{name}").strip() for name in names)
    # A driver that does not know the clock writes 0 or a word.
    return (
        round(int(now) / int(highest), 3)
        if now.isdigit() and highest.isdigit() and int(highest)
        else None
    )


def _throttling(pid: int, proc: str) -> tuple[float, int, int] | None:
    """Return what the tightest CPU quota of a process's cgroups has done so far.

    That is the seconds for which it stopped the process, the periods in which it did, and all its
    periods. Source: Documentation/scheduler/sched-bwc.rst; cgroup v1 counts nanoseconds.
    """
    found = []
    for folder in limits.cgroup_folders(pid, "cpu", ("cpu.stat",), proc):
        stat = dict(re.findall(rb"(\w+) (\d+)", read_bytes(f"{folder}/cpu.stat")))
        if b"nr_periods" in stat and b"nr_throttled" in stat:
            seconds = int(stat.get(b"throttled_usec", 0)) / 1e6
            seconds = seconds or int(stat.get(b"throttled_time", 0)) / 1e9
            found.append((seconds, int(stat[b"nr_throttled"]), int(stat[b"nr_periods"])))
    return max(found, default=None)


def _start(fields: list[bytes]) -> bytes:
    return fields[_START] if fields else b""


def _add(totals: dict[int, tuple[int, float]], owner: int | None, fields: list[bytes]) -> None:
    if owner is not None and owner in totals:
        rss, seconds = totals[owner]
        ticks = sum(map(int, fields[11:15]))  # its own and its reaped children's
        totals[owner] = rss + int(fields[_RSS]) * _PAGE, seconds + ticks / _TICKS
