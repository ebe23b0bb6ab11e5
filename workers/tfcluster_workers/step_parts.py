"""The parts of a task's steps: input, compute, collectives, callbacks, other Python.

The hooks (hooks/step_clocks.py) report which part the thread that trains begins and leaves; their
times are exclusive, so that all parts of a step add up to it. What happens inside of a
`tf.function` is measured there, by timestamps in its graph, and is taken off the function's time.
docs/guides/slow-steps.md has the errors of these figures.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable

ENTRY_S = 0.25
"""The least time of an entry: shorter steps share one, as reading the graph's clocks takes time."""
INTERVAL_S = 5.0
"""The time between two reports; an entry and the report of what is left may be longer."""
MOST_ENTRIES = 120
"""The entries of one report: about 5 kB of JSON."""

INPUT, COLLECTIVE, FUNCTION = "input", "collective", "function"
CALLBACKS, EVALUATION, OTHER = "callbacks", "evaluation", "other"


@dataclass(frozen=True)
class GraphTimes:
    """The sums that the graphs of this process have measured so far."""

    input_s: float = 0.0
    collective_s: float = 0.0
    reduced_bytes: float = 0.0
    """The bytes that collectives have got from this task."""

    def __sub__(self, other: GraphTimes) -> GraphTimes:
        return GraphTimes(
            self.input_s - other.input_s,
            self.collective_s - other.collective_s,
            self.reduced_bytes - other.reduced_bytes,
        )


_UNCOUNTED = contextlib.nullcontext()


class _Turn:
    """The context that `StepParts.of` returns; a generator would take three times as long."""

    __slots__ = ("_begun", "_part", "_parts")

    def __init__(self, parts: StepParts, part: str) -> None:
        self._parts, self._part = parts, part

    def __enter__(self) -> None:
        self._begun = self._parts.begin(self._part)

    def __exit__(self, *_: object) -> None:
        self._parts.end(self._begun)


class StepParts:
    """The clock of the parts of a task's steps, and the reports of them.

    Entries end where the number of the step, counted in calls, is a multiple of a power of two, so
    that all tasks of a gang have common ends.
    """

    def __init__(
        self, send: Callable[..., object], *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._send, self._clock = send, clock
        self.read_graphs: Callable[[], GraphTimes] = GraphTimes
        self.is_on = False
        """True if the hooks report the parts."""
        self._thread: int | None = None
        """The thread that trains: the others' calls do not count."""
        self._part, self._since = OTHER, 0.0
        self._spent: dict[str, float] = {}
        self._graphs = GraphTimes()
        """The sums of the graphs when the entry began, without evaluations."""
        self._began = 0.0
        """The time when the entry began."""
        self._last = 0
        """The last step."""
        self._after = 0
        """The last step of the report before."""
        self._stride = 1
        """The calls of an entry; a call is a step, or `steps_per_execution`."""
        self._entries: list[tuple[int, float, float, float, float, float]] = []
        self._reduced_bytes = 0.0
        self._sent_at = 0.0

    def of(self, part: str) -> contextlib.AbstractContextManager[Any]:
        """Return a context whose time counts to `part`, without what inner ones count to theirs."""
        is_counted = self.is_on and threading.get_ident() == self._thread
        return _Turn(self, part) if is_counted and self._part != EVALUATION else _UNCOUNTED

    def begin(self, part: str) -> tuple[str, GraphTimes | None]:
        """Count the time from now on to `part`; return what `end` needs."""
        return self._turn_to(part), self.read_graphs() if part == EVALUATION else None

    def end(self, begun: tuple[str, GraphTimes | None]) -> None:
        """Count the time from now on to the part before; graphs that ran meanwhile do not count."""
        before, graphs = begun
        self._turn_to(before)
        if graphs is not None:
            self._graphs = self._graphs - (graphs - self.read_graphs())

    def _turn_to(self, part: str) -> str:
        """Count the time since the last turn; return the part that it went to."""
        now, before = self._clock(), self._part
        self._spent[before] = self._spent.get(before, 0.0) + now - self._since
        self._part, self._since = part, now
        return before

    def note(self, step: int) -> None:
        """Note that the calling thread has ended `step`; cheap enough for every step."""
        if not self.is_on:
            return
        thread = threading.get_ident()
        if thread != self._thread or step <= self._last:
            self._begin(thread, step)
            return
        call, self._last = step // (step - self._last), step
        if call % self._stride:
            return
        passed_s = self._clock() - self._began
        if passed_s < ENTRY_S / 2 and self._stride < 1 << 16:
            self._stride *= 2
        elif passed_s > ENTRY_S * 4 and self._stride > 1:
            self._stride //= 2
        if call % self._stride == 0:
            self._end_entry(step)

    def restart(self) -> None:
        """Send what is collected, and leave out the time until the next step ends."""
        self.flush()
        self._thread = None

    def _begin(self, thread: int, step: int) -> None:
        """Begin to count: the steps until here trace and compile functions."""
        self._entries, self._reduced_bytes = [], 0.0
        self._thread, self._last, self._after = thread, step, step
        self._sent_at = self._since = self._began = self._clock()
        self._part, self._spent, self._graphs = OTHER, {}, self.read_graphs()

    def _end_entry(self, step: int) -> None:
        self._turn_to(self._part)
        spent, self._spent, self._began = self._spent, {}, self._since
        graphs, before = self.read_graphs(), self._graphs
        inside, self._graphs = graphs - before, graphs
        seconds = sum(spent.values()) - spent.get(EVALUATION, 0.0)
        # A change of the system's clock must not make them negative.
        input_s, collective_s = max(0.0, inside.input_s), max(0.0, inside.collective_s)
        compute_s = max(0.0, spent.get(FUNCTION, 0.0) - input_s - collective_s)
        self._entries.append(
            (
                step,
                seconds,
                input_s + spent.get(INPUT, 0.0),
                compute_s,
                collective_s + spent.get(COLLECTIVE, 0.0),
                spent.get(CALLBACKS, 0.0),
            )
        )
        self._reduced_bytes += inside.reduced_bytes
        if self._since - self._sent_at >= INTERVAL_S or len(self._entries) >= MOST_ENTRIES:
            self.flush()

    def flush(self) -> None:
        """Send what is collected."""
        if not self._entries:
            return
        entries, self._entries = self._entries, []
        reduced, self._reduced_bytes = self._reduced_bytes, 0.0
        self._sent_at = self._since
        steps, *parts = zip(*entries)
        names = ("seconds", "input_s", "compute_s", "collective_s", "callbacks_s")
        lists: dict[str, Any] = {
            name: [round(value, 5) for value in values] for name, values in zip(names, parts)
        }
        after, self._after = self._after, steps[-1]
        self._send(after=after, steps=steps, reduced_bytes=int(reduced), **lists)
