"""The event loop of a coordinator, whose clock stands still while the process is stopped.

A scheduler suspends a whole job, and a user stops a coordinator with Ctrl-Z. All deadlines are
times of this clock: none has passed when the process goes on, and no node is silent.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

from tfcluster.agent.stop_clock import StopClock


class RunLoop(asyncio.SelectorEventLoop):
    """An event loop that notices when its process did not run."""

    def __init__(self) -> None:
        self.on_stopped: Callable[[float], None] = lambda seconds: None
        """Called with its length after each stop, before the next callback."""
        self._clock = StopClock()
        self._stopped_s = self._told_s = 0.0
        """The time for which the process was stopped so far, and what was told of it."""
        super().__init__(_Selector(self))

    def time(self) -> float:
        self.note_turn()  # what is due in 2 s from now is not due in 2 s and the stop
        return super().time() - self._stopped_s

    def note_turn(self, waited_s: float | None = 0.0) -> None:
        """Note that the process runs, after a wait of at most `waited_s` (None: any)."""
        self._stopped_s += self._clock.take_stop(waited_s)

    def tell(self) -> None:
        """Tell of what was noted of a stop."""
        if seconds := self._stopped_s - self._told_s:
            self._told_s = self._stopped_s
            self.on_stopped(seconds)


class _Selector(selectors.DefaultSelector):
    """The selector of a `RunLoop`, which measures its waits and what happens between them."""

    def __init__(self, loop: RunLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        self._loop.note_turn()
        ready = super().select(timeout)
        self._loop.note_turn(timeout)
        self._loop.tell()
        return ready
