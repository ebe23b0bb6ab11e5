"""The exact time of each step, for `tfcluster scale`: progress is reported twice a second only.

Off unless the launcher asks for it with `VARIABLE`. A time is read from CLOCK_MONOTONIC, which all
processes of a machine share (clock_gettime(2)), so the launcher can tell which steps lie between
two of its own actions.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable

VARIABLE = "TFCLUSTER_STEP_TIMES"
INTERVAL_S = 0.2
"""Shortest time between two reports, except when a report is full."""
MOST_STEPS = 1500
"""The steps of one report: about 40 kB of JSON, of the 64 kB that a report may have."""


class StepTimes:
    """Collects the steps and the times at which they ended, and sends them in lists."""

    def __init__(
        self, send: Callable[..., object], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send, self._clock = send, clock
        self._lock = threading.Lock()
        self._steps: list[int] = []
        self._times: list[float] = []
        self._sent_at = 0.0

    @property
    def is_on(self) -> bool:
        """True if the launcher has asked for step times."""
        return os.environ.get(VARIABLE, "") not in ("", "0")

    def note(self, step: int) -> None:
        """Note that `step` has ended now; cheap enough for every step."""
        if not self.is_on:
            return
        now = self._clock()
        with self._lock:
            self._steps.append(int(step))
            self._times.append(round(now, 6))
            is_due = now - self._sent_at >= INTERVAL_S or len(self._steps) >= MOST_STEPS
        if is_due:
            self.flush(now)

    def flush(self, now: float | None = None) -> None:
        """Send what is collected, if anything."""
        with self._lock:
            cpu_s = round(time.process_time(), 4)
            fields: dict[str, Any] = {"steps": self._steps, "times": self._times, "cpu_s": cpu_s}
            self._steps, self._times = [], []
            self._sent_at = self._clock() if now is None else now
        if fields["steps"]:
            self._send(**fields)


def count_bytes(variables: Any) -> int:
    """Return the bytes of all `variables`, of TensorFlow or Keras, with fully known shapes.

    This is the volume of dense gradients, which have their variables' shapes and types. Raises
    ValueError for a shape that is not fully known.
    """
    return sum(_elements(variable) * _element_bytes(variable) for variable in variables)


def _elements(variable: Any) -> int:
    product = 1
    for size in tuple(variable.shape):
        if size is None:
            raise ValueError(f"{getattr(variable, 'name', 'a variable')} has an unknown shape")
        product *= int(size)
    return product


def _element_bytes(variable: Any) -> int:
    import tensorflow as tf

    return int(tf.as_dtype(variable.dtype).size)
