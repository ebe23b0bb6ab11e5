"""The tasks' pipes, listened to as one, and after a small read not at all for a moment.

They fill meanwhile, so that one wake-up moves many lines. Exits, orders and files do not wait.
"""

from __future__ import annotations

import selectors
import time

from tfcluster.agent.output import size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SMALL_READ = 256 << 10
"""Of all pipes together; a pipe that was half full is no small read either."""
TRICKLE = 32 << 10
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.004, 0.032
"""Doubling while no read is more than a trickle."""


class Pipes:
    """Calls `drain` for each pipe that holds something; that returns how many bytes it moved."""

    def __init__(
        self, selector: selectors.BaseSelector, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._selector, self._clock = selector, clock
        self._pipes = selectors.DefaultSelector()
        self._sizes: dict[int, int] = {}
        self._pause_s = SHORTEST_PAUSE_S
        self.listens_at: float | None = None
        """When `on_time` must be called next: the end of a pause."""
        self._listen()

    def add(self, pipe: int, drain: Callable[[], int]) -> None:
        self._pipes.register(pipe, selectors.EVENT_READ, drain)
        self._sizes[pipe] = size_of(pipe)

    def discard(self, pipe: int) -> None:
        """Listen to it no more, if anybody does."""
        if self._sizes.pop(pipe, 0):
            self._pipes.unregister(pipe)

    def close(self) -> None:
        self._pipes.close()

    def on_time(self, now: float) -> None:
        if self.listens_at is not None and now >= self.listens_at:
            self.listens_at = None
            self._listen()

    def _listen(self) -> None:
        self._selector.register(self._pipes, selectors.EVENT_READ, lambda _events: self._drain())

    def _drain(self) -> None:
        moved = {key.fd: key.data() for key, _ in self._pipes.select(0)}
        total = sum(moved.values())
        if total >= TRICKLE:
            self._pause_s = SHORTEST_PAUSE_S
        if total >= SMALL_READ or any(
            2 * count >= self._sizes.get(pipe, SMALL_READ) for pipe, count in moved.items()
        ):
            return
        self._selector.unregister(self._pipes)
        self.listens_at = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
