"""The exact time of each step, for `tfcluster scale`: progress is reported twice a second only."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from typing import Any, Callable

VARIABLE = "TFCLUSTER_STEP_ENDS"
"""The variable by which the launcher asks for step times."""
INTERVAL_S = 0.2
"""Shortest time between two reports."""
MOST_STEPS = 1500
"""The steps of one report: about 40 kB of JSON, of the 64 kB that a report may have."""


class StepEnds:
    """Collects the ends of steps and sends them in lists.

    The clock is CLOCK_MONOTONIC, which all processes of a machine share (clock_gettime(2)), so the
    launcher can tell which steps lie between two of its own actions.
    """

    def __init__(
        self, send: Callable[..., object], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send, self._clock = send, clock
        self._ends: list[tuple[int, float]] = []
        self._sent_at = 0.0
        self._gradient_bytes: int | None = None

    @property
    def is_on(self) -> bool:
        """True if the launcher has asked for step times."""
        return os.environ.get(VARIABLE, "") not in ("", "0")

    def note_gradients(self, variables: Iterable[Any]) -> None:
        """Note the bytes of dense gradients of `variables`, whose shapes must be known."""
        import tensorflow as tf

        sizes = (math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)
        self._gradient_bytes = int(sum(sizes))

    def note(self, step: int) -> None:
        """Note that `step` has ended now; cheap enough for every step."""
        if not self.is_on:
            return
        now = self._clock()
        self._ends.append((int(step), round(now, 6)))
        if now - self._sent_at >= INTERVAL_S or len(self._ends) >= MOST_STEPS:
            self.flush()

    def flush(self) -> None:
        """Send what is collected, with the processor time of this process so far."""
        if not self._ends:
            return
        ends, self._ends = self._ends, []
        self._sent_at = ends[-1][1]
        steps, times = zip(*ends)
        cpu_s = round(time.process_time(), 4)
        self._send(steps=steps, times=times, cpu_s=cpu_s, gradient_bytes=self._gradient_bytes)
