"""One family of states for every run, whatever it runs on."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """States of a run and, where they apply, of a task."""

    STARTING = "starting"
    RUNNING = "running"
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


_FINAL = frozenset(
    {Status.SUCCEEDED, Status.FAILED, Status.TIMED_OUT, Status.INTERRUPTED, Status.LOST}
)
