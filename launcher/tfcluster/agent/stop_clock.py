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
    """The turns of one loop, and for how long it was stopped between them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_at = clock()
        self.stopped_s = 0.0

    def note_turn(self, allowed_s: float | None = 0.0) -> None:
        """Note that the loop runs, and add the time since the last call if it was stopped in it.

        `allowed_s`: how long it has waited at most; None for a wait without a limit. It may have
        been stopped when that wait had just begun.
        """
        last_at, self._last_at = self._last_at, self._clock()
        passed_s = self._last_at - last_at
        if allowed_s is not None and passed_s >= max(0.0, allowed_s) + STOPPED_S:
            self.stopped_s += passed_s
