"""The loss of a node, as a value: the backend that finds the reason says what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LossNature(StrEnum):
    """The kind of a loss; whether a restart counts depends on it, never on the words."""

    UNKNOWN = "unknown"
    """The reason is not known, or says nothing about another try."""
    INFRASTRUCTURE = "infrastructure"
    """The cluster or the daemon lost it: another node, or another try, may well work."""
    SILENT = "silent"
    """The machine under it did not answer, so it was given up; else like `INFRASTRUCTURE`."""
    NO_PLACE = "no_place"
    """The scheduler has found no other place for it in time."""
    PREEMPTED = "preempted"
    """Somebody took its place on purpose."""
    OWN_FAILURE = "own_failure"
    """The node's own processes have ended it."""
    OUT_OF_MEMORY = "out_of_memory"
    """The node's own processes took more memory than they may use."""
    PERMANENT = "permanent"
    """Another node would end the same way: the spec or the cluster must change."""

    @property
    def is_own_end(self) -> bool:
        """True if the job or the spec has ended it: another node may end the same way."""
        return self in (self.OWN_FAILURE, self.OUT_OF_MEMORY, self.PERMANENT)


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """The reason why a node is lost, or does not answer."""

    reason: str
    """A sentence for the user."""
    nature: LossNature = LossNature.UNKNOWN

    def __str__(self) -> str:
        return self.reason
