"""The states of runs, nodes and tasks, the same for all backends, and their transitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar


class Status(StrEnum):
    """States of a run and, where they apply, of a task."""

    STARTING = "starting"
    QUEUED = "queued"
    """The state of a run whose nodes are not allocated yet."""
    RUNNING = "running"
    STALLED = "stalled"
    """The state of a run that takes no step for much longer than usual."""
    SUSPENDED = "suspended"
    """The state of a run whose processes are all stopped, by a scheduler that continues them."""
    RESTARTING = "restarting"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        return self in _FINAL

    @property
    def words(self) -> str:
        """The status as a sentence has it: ``timed out``."""
        return self.replace("_", " ")


_FINAL = frozenset(
    {Status.SUCCEEDED, Status.FAILED, Status.TIMED_OUT, Status.INTERRUPTED, Status.LOST}
)


State = TypeVar("State", bound=str)

RUN: Final[Mapping[Status, Mapping[str, Status]]] = {
    Status.STARTING: {
        "run_queued": Status.QUEUED,
        "all_started": Status.RUNNING,
        "restarting": Status.RESTARTING,
        "run_stopping": Status.STOPPING,
    },
    Status.QUEUED: {
        "nodes_allocated": Status.STARTING,
        "run_continued": Status.STARTING,
        "run_stopping": Status.STOPPING,
    },
    Status.RUNNING: {
        "stalled": Status.STALLED,
        "restarting": Status.RESTARTING,
        "run_stopping": Status.STOPPING,
        "run_continued": Status.STARTING,
    },
    Status.STALLED: {
        "stall_ended": Status.RUNNING,
        "restarting": Status.RESTARTING,
        "run_stopping": Status.STOPPING,
        "run_continued": Status.STARTING,
    },
    Status.SUSPENDED: {},
    Status.RESTARTING: {
        "all_started": Status.RUNNING,
        "run_stopping": Status.STOPPING,
        "run_continued": Status.STARTING,
    },
    Status.STOPPING: {"run_queued": Status.QUEUED, "run_continued": Status.STARTING},
    **{status: {} for status in _FINAL},
    Status.INTERRUPTED: {"run_continued": Status.STARTING},
}
"""The states of a run: state → event → next state.

In addition, ``run_finished`` leads from any state that is not final to the one it names, and a run
whose coordinator is gone is read as `lost`."""

NODE: Final[Mapping[str, Mapping[str, str]]] = {
    "connecting": {
        "node_connected": "connected",
        "node_reconnected": "connected",
        "node_lost": "lost",
        "run_finished": "gone",
    },
    "connected": {
        "node_unreachable": "connecting",
        "node_lost": "lost",
        "run_finished": "gone",
    },
    "lost": {
        "node_connected": "connected",
        "node_reconnected": "connected",
        "run_finished": "gone",
    },
    "gone": {},
}
"""The states of a node: state → event → next state."""

_ENDS: Final = {
    "exited_well": "succeeded",
    "exited_badly": "failed",
    "ended_by_us": "stopped",
    "node_lost": "lost",
}
_AGAIN: Final = {"run_continued": "restarting"}
_NOT_HEARD: Final = {"run_finished": "lost"}
"""The run ended without the task's own end: its coordinator was killed with its job."""
TASK: Final[Mapping[str, Mapping[str, str]]] = {
    "waiting": {"task_started": "starting", "node_lost": "lost"},
    "starting": {"joined": "running", "task_stopping": "stopping", **_ENDS, **_NOT_HEARD, **_AGAIN},
    "running": {"task_stopping": "stopping", **_ENDS, **_NOT_HEARD, **_AGAIN},
    "stopping": {**_ENDS, **_NOT_HEARD, **_AGAIN},
    "succeeded": {"restarting": "restarting", "task_started": "starting", **_AGAIN},
    "failed": {"restarting": "restarting", "task_started": "starting", **_AGAIN},
    "stopped": {"restarting": "restarting", "task_started": "starting", **_AGAIN},
    "lost": {"restarting": "restarting", "task_started": "starting", **_ENDS, **_AGAIN},
    "restarting": {
        "task_started": "starting",
        "run_finished": "stopped",
        "left_out": "stopped",
        "node_lost": "lost",
    },
}
"""The states of a task: state → event → next state.

An exit may still be reported by a task whose node was lost. ``left_out``: it is not among the
members of the next attempt."""


def after(table: Mapping[State, Mapping[str, State]], state: State, trigger: str) -> State:
    """Return the state that `trigger` leads to; `state` itself if it leads nowhere."""
    return table[state].get(trigger, state)
