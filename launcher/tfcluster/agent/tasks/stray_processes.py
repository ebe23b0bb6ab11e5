"""What an ended attempt left running outside its process groups: it ends before the next begins.

A task's group ends with the task (`stop.clear_group`). A process that left the group (a daemon,
`start_new_session=True`) lives on, which may be meant: it may upload the last results while the
other tasks train. But it must not live into its task's next attempt, where it would hold the old
one's port, GPU memory or files. The agent, a subreaper, has inherited it by then, and knows it by

* the TFCLUSTER_RUN_ID, TFCLUSTER_TASK and TFCLUSTER_ATTEMPT it was started with (a fork keeps
  them in /proc/PID/environ), or
* when no task runs any more: its start time. What began after the gang's first task is the
  gang's; what `prepare` left running is older and stays.

What is below such a process ends with it. Not covered: a process that left its group *and* began
with an environment without these names (`env -i`, `sudo`), while other tasks of its node go on;
it ends when the last of them has ended and the next attempt starts, or with the agent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from tfcluster.agent.processes import IS_LINUX, living_children, start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

PATIENCE_S = 1.5
"""How long the killed are waited for; one in uninterruptible sleep runs no more code of ours."""


def end(
    tasks: Collection[int],
    is_left: Callable[[int], bool],
    reap: Callable[[], None],
    timeout_s: float = PATIENCE_S,
) -> list[int]:
    """SIGKILL what `is_left` says of our children that are no `tasks`, and what is below it.

    Returns the pids that still live after `timeout_s`. `reap` collects every child that ended.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        reap()
        condemned = list(_condemned(tasks, is_left)) if _has_orphans(tasks) else []
        if not condemned or time.monotonic() > deadline:
            return condemned
        for pid in condemned:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def began_since(moment: int) -> Callable[[int], bool]:
    """For `end`: processes with this start time (clock ticks since boot) or a later one."""
    return lambda pid: start_time(pid) >= moment


def carries(marks: Collection[bytes]) -> Callable[[int], bool]:
    """For `end`: processes whose first environment had all of `marks`."""
    wanted = frozenset(marks)
    return lambda pid: bool(wanted) and wanted <= _environment(pid)


def marks(env: dict[str, str]) -> frozenset[bytes]:
    """What tells a task's processes of one attempt; empty where `env` does not name it."""
    names = ("TFCLUSTER_RUN_ID", "TFCLUSTER_TASK", "TFCLUSTER_ATTEMPT")
    if not all(name in env for name in names):
        return frozenset()
    return frozenset(f"{name}={env[name]}".encode() for name in names)


def _has_orphans(tasks: Collection[int]) -> bool:
    """Whether we have children besides `tasks`: one small file instead of all of /proc."""
    if not IS_LINUX:
        return False
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return any(int(pid) not in tasks for pid in file.read().split())
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return True


def _condemned(tasks: Collection[int], is_left: Callable[[int], bool]) -> Iterator[int]:
    children = living_children()
    waiting = [(pid, False) for pid in children.get(os.getpid(), ()) if pid not in tasks]
    while waiting:
        pid, is_condemned = waiting.pop()
        is_condemned = is_condemned or is_left(pid)
        if is_condemned:
            yield pid
        waiting += [(child, is_condemned) for child in children.get(pid, ())]


def _environment(pid: int) -> frozenset[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return frozenset(file.read().split(b"\0"))
    except OSError:
        return frozenset()
