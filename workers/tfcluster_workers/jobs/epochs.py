"""Three ways to do one epoch of a loop of one's own; all give the same numbers.

`for`        a Python loop over the batches, one compiled step each: the easiest to debug.
`steps`      an iterator and a number of steps: `keras.steps_per_execution` of them in one call.
`function`   the whole epoch in one call: the least Python, and the longest silence.

A call cannot be interrupted: progress is told and SIGTERM is answered between calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable

from tfcluster_workers import keras_choice

Call = tuple[int, Callable[..., Any], tuple[Any, ...]]
"""How many steps it does; what to call; with what. It returns the sum of the steps' losses."""


@dataclass
class Data:
    """The batches of an epoch, the same and in the same order each time."""

    strategy: Any
    batches: Any
    steps: int
    """In one epoch."""
    _whole: Any = field(init=False)

    def __post_init__(self) -> None:
        self._whole = self.strategy.experimental_distribute_dataset(self.batches)

    def epoch(self, *, first: int) -> Any:
        """A distributed dataset of one epoch from step `first` on."""
        if first == 0:
            return self._whole
        return self.strategy.experimental_distribute_dataset(self.batches.skip(first))

    def endless(self, *, first: int) -> Any:
        """An iterator that goes on into the next epochs."""
        rest = self.batches.repeat().skip(first)
        return iter(self.strategy.experimental_distribute_dataset(rest))


Way = Callable[[Data, int], Iterator[Call]]
"""Called for each epoch with the number of its steps that are done already."""


def by_for(step: Callable[[Any], Any]) -> Way:
    """`for` outside, around one compiled step."""
    import tensorflow as tf

    compiled = tf.function(step)

    def epoch(data: Data, first: int) -> Iterator[Call]:
        for batch in data.epoch(first=first):
            yield 1, compiled, (batch,)

    return epoch


def by_steps(step: Callable[[Any], Any]) -> Way:
    """An iterator with a step count; one iterator for all epochs: ending one can take seconds."""
    import tensorflow as tf

    def several(iterator: Any, steps: Any) -> Any:
        total = tf.constant(0.0)
        for _ in tf.range(steps):
            total += step(next(iterator))
        return total

    compiled = tf.function(several)
    at_once = keras_choice.steps_per_execution()
    iterators: list[Any] = []

    def epoch(data: Data, first: int) -> Iterator[Call]:
        if not iterators:
            iterators.append(data.endless(first=first))
        for done in range(first, data.steps, at_once):
            steps = min(at_once, data.steps - done)
            yield steps, compiled, (iterators[0], tf.constant(steps))

    return epoch


def by_function(step: Callable[[Any], Any]) -> Way:
    """The whole epoch inside `tf.function`."""
    import tensorflow as tf

    def whole(batches: Any) -> Any:
        total = tf.constant(0.0)
        for batch in batches:
            total += step(batch)
        return total

    compiled = tf.function(whole)
    # TensorFlow asks in the function for options that it has read outside already.
    warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")

    def epoch(data: Data, first: int) -> Iterator[Call]:
        yield data.steps - first, compiled, (data.epoch(first=first),)

    return epoch


WAYS = {"for": by_for, "steps": by_steps, "function": by_function}
