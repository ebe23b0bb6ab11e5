"""Lines that several tasks write alike, shown once with their number: asked for, never assumed."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

WINDOW_S = 0.4
"""How long a line waits for its likes from other tasks."""
LINES_AT_MOST = 20_000


class Collapser:
    """Per task a short queue of lines; lines at the heads that are alike leave together.

    The order of every task's own lines is kept.
    """

    def __init__(
        self,
        dress: Callable[[str, bytes, int], bytes],
        *,
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dress = dress
        self._window_s, self._clock = window_s, clock
        self._queues: dict[str, deque[bytes]] = {}
        self._counts: dict[str, Counter[bytes]] = {}
        self._size = 0
        self._waiting_since: float | None = None

    def feed(self, label: str, lines: Sequence[bytes]) -> None:
        """Take the next lines of a task."""
        if not lines:
            return
        self._queues.setdefault(label, deque()).extend(lines)
        self._counts.setdefault(label, Counter()).update(lines)
        self._size += len(lines)
        if self._waiting_since is None:
            self._waiting_since = self._clock()

    def due(self) -> Iterator[bytes]:
        """The lines whose window is over; all of them when very many wait."""
        waited = 0.0 if self._waiting_since is None else self._clock() - self._waiting_since
        if waited >= self._window_s or self._size > LINES_AT_MOST:
            yield from self.rest()

    def rest(self) -> Iterator[bytes]:
        """All lines that wait."""
        self._waiting_since, self._size = None, 0
        while group := self._next_group():
            label, line = group[0], self._queues[group[0]][0]
            for member in group:
                self._queues[member].popleft()
                self._counts[member][line] -= 1
            yield self._dress(label, line, len(group))
        self._counts.clear()

    def _next_group(self) -> list[str]:
        """The tasks whose first line goes next: all that have it, if it is first in all of them."""
        heads = {label: queue[0] for label, queue in self._queues.items() if queue}
        for line in dict.fromkeys(heads.values()):
            at_head = [label for label, head in heads.items() if head == line]
            if all(label in at_head for label in heads if self._counts[label][line] > 0):
                return at_head
        first = next(iter(heads.values()), None)
        return [label for label, head in heads.items() if head == first]
