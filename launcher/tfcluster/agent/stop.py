"""The one stop ladder: SIGTERM to the group, grace, SIGKILL to the group, reap.

`MultiWorkerMirroredStrategy` swallows SIGTERM (tf-facts: preemption_notifier.cc), so the second
rung is the usual one. SIGCONT goes with SIGTERM: a stopped process would never see it.
"""

from __future__ import annotations

import signal
import time

from tfcluster.agent.task import Task

UNKILLABLE_S = 5.0
"""A killed task that lives so long is told of; to give back much memory or a GPU takes seconds."""
DRAIN_S = 0.5
"""How long after its end a task's pipe is waited for: a grandchild may hold it."""


def ask_to_end(task: Task, grace_s: float) -> None:
    """First rung; asking again can only bring the second one nearer."""
    first = not task.stopping
    task.stopping = True
    kill_at = time.monotonic() + grace_s
    task.kill_at = kill_at if task.kill_at is None else min(task.kill_at, kill_at)
    if first and grace_s > 0:
        task.signal_group(signal.SIGTERM)
        task.signal_group(signal.SIGCONT)


def climb(task: Task, now: float) -> None:
    """Second rung, once the grace is over; nothing for a task nobody asked to end."""
    if task.usage is None and task.kill_at is not None and now >= task.kill_at:
        kill(task, now)


def kill(task: Task, now: float) -> None:
    """SIGKILL to the group, which a stopped process obeys as well. One in uninterruptible sleep
    (a dead NFS server, a GPU driver) does not until it wakes: it is told of, not waited for."""
    task.stopping = True
    task.kill_at = None
    task.signal_group(signal.SIGKILL)
    if not task.is_unkillable:
        task.unkillable_at = now + UNKILLABLE_S


def clear_group(task: Task) -> None:
    """Last rung: what its own children left running in its group ends with it."""
    task.signal_group(signal.SIGKILL)
