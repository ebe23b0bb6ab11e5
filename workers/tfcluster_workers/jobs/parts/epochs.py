"""Three ways to do one epoch of a loop of one's own; all give the same numbers.

`for`        a Python loop over the batches, one compiled step each: the easiest to debug.
`steps`      an iterator and a number of steps: `keras.steps_per_execution` of them in one call.
`function`   the whole epoch in one call: the least Python, and the longest silence.

A call cannot be interrupted: progress is told and SIGTERM is answered between calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Callable

from tfcluster_workers import keras_choice

Call = tuple[int, Callable[..., Any], tuple[Any, ...]]
"""How many steps it does; what to call; with what. It returns the sum of the steps' losses."""
Step = Callable[[Any], Any]
"""One step of all replicas with one distributed batch; returns the loss."""


@dataclass(frozen=True)
class Data:
    """Batches on all replicas, in the same order in each epoch."""

    iterator: Any
    """Goes on into the next epoch by itself: to end one and begin another can take seconds."""
    steps: int
    """In one epoch."""


def distribute(strategy: Any, batches: Any, *, steps: int, done: int) -> Data:
    """`batches` (a tf.data.Dataset of one epoch of `steps`) from where `done` steps have led."""
    rest = batches.repeat().skip(done % steps)
    return Data(iter(strategy.experimental_distribute_dataset(rest)), steps)


Way = Callable[[Data, int], Iterator[Call]]
"""Called for each epoch with the number of its steps that are done already."""


def by_for(step: Step) -> Way:
    """`for` outside, around one compiled step."""
    import tensorflow as tf

    compiled = tf.function(step)

    def epoch(data: Data, done: int) -> Iterator[Call]:
        for batch in islice(data.iterator, data.steps - done):
            yield 1, compiled, (batch,)

    return epoch


def by_steps(step: Step) -> Way:
    """An iterator with a step count: the function takes its batches itself."""
    compiled, at_once = _several(step), keras_choice.steps_per_execution()

    def epoch(data: Data, done: int) -> Iterator[Call]:
        for first in range(done, data.steps, at_once):
            steps = min(at_once, data.steps - first)
            yield steps, compiled, (data.iterator, steps)

    return epoch


def by_function(step: Step) -> Way:
    """The whole epoch inside `tf.function`."""
    compiled = _several(step)

    def epoch(data: Data, done: int) -> Iterator[Call]:
        yield data.steps - done, compiled, (data.iterator, data.steps - done)

    return epoch


def _several(step: Step) -> Callable[[Any, int], Any]:
    import tensorflow as tf

    def several(iterator: Any, steps: Any) -> Any:
        total = tf.constant(0.0)
        for _ in tf.range(steps):
            total += step(next(iterator))
        return total

    compiled = tf.function(several)
    return lambda iterator, steps: compiled(iterator, tf.constant(steps))


WAYS = {"for": by_for, "steps": by_steps, "function": by_function}
