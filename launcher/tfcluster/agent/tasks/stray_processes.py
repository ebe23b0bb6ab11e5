"""Stray processes that an ended attempt left running outside its process groups.

A task's group is killed when the task ends. A process that left the group (a daemon,
`start_new_session=True`) lives on, which may be intended: it may upload the last results while the
other tasks train. But it must end before its task's next attempt, which needs the ports, GPU memory
or files that it may hold. The agent, a subreaper, has inherited it by then and recognizes it by

* the TFCLUSTER_RUN_ID, TFCLUSTER_TASK and TFCLUSTER_ATTEMPT of its first environment (a fork keeps
  them in /proc/PID/environ), or
* its start time, when no task runs any more: a process that began after the gang's first task
  belongs to the gang; what `prepare` left running is older and is kept.

The descendants of such a process end with it. Not covered: a process that left its group *and*
began with an environment without these names (`env -i`, `sudo`), while other tasks of its node go
on; it ends when the last of them has ended and the next attempt starts, or with the agent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator

from tfcluster.agent.processes import (
    IS_LINUX,
    first_environment,
    kill_all,
    living_children,
    start_time,
)

PATIENCE_S = 1.5
"""The wait for killed processes; one in uninterruptible sleep runs no more of the user's code."""


def end(
    tasks: Collection[int],
    is_stray: Callable[[int], bool],
    reap: Callable[[], None],
    timeout_s: float = PATIENCE_S,
) -> list[int]:
    """SIGKILL the children other than `tasks` that `is_stray` selects, and their descendants.

    Return the pids that still live after `timeout_s`. `reap` reaps every child that has ended.
    """

    def find() -> list[int]:
        reap()
        return list(_strays(tasks, is_stray)) if _has_orphans(tasks) else []

    return kill_all(find, timeout_s)


def began_since(moment: int) -> Callable[[int], bool]:
    """Return a selector of processes that started at `moment` (clock ticks since boot) or later."""
    return lambda pid: start_time(pid) >= moment


def carries(marks: Collection[bytes]) -> Callable[[int], bool]:
    """Return a selector of processes whose first environment has all of `marks`."""
    required = frozenset(marks)
    return lambda pid: bool(required) and required.issubset(first_environment(pid))


def marks(env: dict[str, str]) -> frozenset[bytes]:
    """Return what marks the processes of one attempt of a task; empty without it in `env`."""
    names = ("TFCLUSTER_RUN_ID", "TFCLUSTER_TASK", "TFCLUSTER_ATTEMPT")
    if not all(name in env for name in names):
        return frozenset()
    return frozenset(f"{name}={env[name]}".encode() for name in names)


def _has_orphans(tasks: Collection[int]) -> bool:
    """Return whether this process has children besides `tasks`, from one file of /proc."""
    if not IS_LINUX:
        return False
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return any(int(pid) not in tasks for pid in file.read().split())
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return True


def _strays(tasks: Collection[int], is_stray: Callable[[int], bool]) -> Iterator[int]:
    children = living_children()
    waiting = [(pid, False) for pid in children.get(os.getpid(), ()) if pid not in tasks]
    while waiting:
        pid, is_below_stray = waiting.pop()
        is_below_stray = is_below_stray or is_stray(pid)
        if is_below_stray:
            yield pid
        waiting += [(child, is_below_stray) for child in children.get(pid, ())]
