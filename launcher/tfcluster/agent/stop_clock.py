"""Notices that a loop did not run for long: its process was stopped, or its machine was.

A scheduler that suspends a job, a hypervisor and Ctrl-Z stop processes without a word, and the
clock goes on. A loop sees it afterwards, from the time since it last looked.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STOPPED_S = 3.0
"""The delay from which on a loop was stopped: a busy machine delays it less."""


class StopClock:
    """The turns of one loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_at = clock()

    def take_stop(self, allowed_s: float | None = 0.0) -> float:
        """Return the seconds since the last call if the loop was stopped in them, else 0.

        `allowed_s`: how long it has waited at most; None for a wait without a limit. It may have
        been stopped when that wait had just begun.
        """
        last_at, self._last_at = self._last_at, self._clock()
        passed_s = self._last_at - last_at
        is_late = allowed_s is not None and passed_s >= max(0.0, allowed_s) + STOPPED_S
        return passed_s if is_late else 0.0
