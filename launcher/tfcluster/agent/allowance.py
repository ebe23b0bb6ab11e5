"""How fast something may go on for long, and how much of it may come at once."""

from __future__ import annotations


class Allowance:
    """A bucket that holds `burst` and gets `per_s` each second; one spending may exceed it."""

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._level, self._at = burst, now

    def spend(self, amount: float, now: float) -> None:
        self._fill(now)
        self._level -= amount

    def wait_s(self, now: float) -> float:
        """Seconds until something may be spent again; 0: now."""
        self._fill(now)
        return max(0.0, -self._level / self._per_s)

    def _fill(self, now: float) -> None:
        self._level = min(self._burst, self._level + self._per_s * max(0.0, now - self._at))
        self._at = max(now, self._at)
