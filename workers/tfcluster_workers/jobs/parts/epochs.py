"""Three ways to run one epoch of a custom training loop; all give the same numbers.

`for`        a Python loop over the batches, one compiled step each: the easiest to debug
`steps`      an iterator and a number of steps: `keras.steps_per_execution` of them in one call
`function`   the whole epoch in one call: the least Python, but no progress until it ends

A call cannot be interrupted: progress is reported and SIGTERM handled between calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Callable

from tfcluster_workers import keras_choice

Call = tuple[int, Callable[..., Any], tuple[Any, ...]]
"""Number of steps, function and arguments; the function returns the sum of the steps' losses."""
Step = Callable[[Any], Any]
"""A function that runs one step on all replicas with a distributed batch and returns the loss."""


@dataclass(frozen=True)
class Data:
    """The distributed batches, in the same order in each epoch."""

    iterator: Any
    """One iterator for all epochs: destroying one and making another can take seconds."""
    steps: int
    """Steps per epoch."""


def distribute(strategy: Any, batches: Any, *, steps: int, done: int) -> Data:
    """Distribute `batches` (a tf.data.Dataset of one epoch of `steps`), after `done` steps."""
    remaining = batches.repeat().skip(done % steps)
    return Data(iter(strategy.experimental_distribute_dataset(remaining)), steps)


Way = Callable[[Data, int], Iterator[Call]]
"""A function that yields the calls of one epoch; its second argument is the steps already done."""


def by_for(step: Step) -> Way:
    """Return the way `for`: a Python loop around one compiled step."""
    import tensorflow as tf

    compiled = tf.function(step)

    def epoch(data: Data, done: int) -> Iterator[Call]:
        for batch in islice(data.iterator, data.steps - done):
            yield 1, compiled, (batch,)

    return epoch


def by_steps(step: Step) -> Way:
    """Return the way `steps`: a compiled function takes the batches of several steps itself."""
    compiled, per_call = _several(step), keras_choice.steps_per_execution()

    def epoch(data: Data, done: int) -> Iterator[Call]:
        for first in range(done, data.steps, per_call):
            steps = min(per_call, data.steps - first)
            yield steps, compiled, (data.iterator, steps)

    return epoch


def by_function(step: Step) -> Way:
    """Return the way `function`: the whole epoch inside a `tf.function`."""
    compiled = _several(step)

    def epoch(data: Data, done: int) -> Iterator[Call]:
        yield data.steps - done, compiled, (data.iterator, data.steps - done)

    return epoch


def _several(step: Step) -> Callable[[Any, int], Any]:
    """Return a compiled function that runs several steps and returns the sum of their losses."""
    import tensorflow as tf

    def several(iterator: Any, steps: Any) -> Any:
        total = tf.constant(0.0)
        for _ in tf.range(steps):
            total += step(next(iterator))
        return total

    compiled = tf.function(several)
    return lambda iterator, steps: compiled(iterator, tf.constant(steps))


WAYS = {"for": by_for, "steps": by_steps, "function": by_function}
