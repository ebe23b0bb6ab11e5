"""How long a gang may be silent: until all have joined, and between signs of life (pure).

The start deadline runs from the first task that waits for its peers, not from process start: a
download before that is no failure. Silence counts only after the first progress, and longer gaps
that have been seen (`steps_per_execution`, a slow validation) are allowed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tfcluster.plan.plan import Supervision
from tfcluster.run.tally import Tally

NOTICE_S: Final = 600.0
"""Without a stall deadline a run that is silent for so long is told of, once, and goes on."""
_GAPS_ALLOWED: Final = 3.0


@dataclass(slots=True)
class Patience:
    """One attempt's; all times are seconds of the coordinator's clock."""

    policy: Supervision
    heard_at: float | None = None
    """The last sign of life after the first progress; None before it."""
    longest_gap_s: float = 0.0
    noticed: bool = False
    """Whether the one notice of an undated silence was given."""
    _ready_at: float | None = None

    def note(self, report: Mapping[str, Any], now: float) -> None:
        """A report of any task of the gang."""
        match report.get("type"):
            case "ready" if self._ready_at is None:
                self._ready_at = now
            case "progress":
                self._note_step(report, now)
            case "alive" | "evaluated" | "saved" | "saved_elsewhere" if self.heard_at is not None:
                self.heard_at = now

    def _note_step(self, report: Mapping[str, Any], now: float) -> None:
        since = self.heard_at
        if since is None and report.get("steps_per_execution"):
            since = self._ready_at  # its first execution was as long as the next will be
        if since is not None:
            self.longest_gap_s = max(self.longest_gap_s, now - since)
        self.heard_at = now

    def note_output(self, at: float) -> None:
        """Some task has written a line at `at`."""
        if self.heard_at is not None:
            self.heard_at = max(self.heard_at, at)

    def start_due(self, gang: Tally) -> float | None:
        """When the start has failed; None while nobody waits.

        Only who waits now counts: one that was started again alone begins anew.
        """
        if any(one.has_searched and one.is_core for one in gang.standings()):
            return None  # a tuner that came after the search waits in vain, until all is over
        since = gang.waits_since()
        return None if since is None else since + self.policy.start_deadline_s

    @property
    def stall_due(self) -> float | None:
        """When the silence is too long; None before the first progress, or after the notice."""
        if self.heard_at is None or self.noticed:
            return None
        limit = self.policy.stall_deadline_s or NOTICE_S
        return self.heard_at + max(limit, _GAPS_ALLOWED * self.longest_gap_s)
