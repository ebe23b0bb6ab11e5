"""The chief's side of a parameter-server job: hands out steps, reports and saves them in spans.

A coordinator does not know how far its workers are before all it scheduled is done. So steps are
handed out from one checkpoint to the next, and what was reported once is never taken back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from tfcluster_workers import reporting

LOOK_S = 0.2
"""How often the chief looks how far the workers are."""


@dataclass
class Steps:
    """Counts the steps of a training, wherever it was begun."""

    coordinator: Any
    """A ClusterCoordinator."""
    checkpoint: Any
    """A tf.train.Checkpoint of all that shall outlive the chief; it gets a `step`."""
    iterations: Any
    """The optimizer's counter, which the ps keep."""
    metrics: Callable[[], Mapping[str, float]] = dict
    """For the progress; asked each time one looks."""
    batch_size: int | None = None
    """Examples of a step."""
    per_call: int = 1
    """Steps that are handed out at once (`keras.steps_per_execution`)."""
    keep: int = 3
    done: int = field(init=False, default=0)
    """Steps that all workers together have done."""
    _manager: Any = field(init=False)

    def __post_init__(self) -> None:
        import tensorflow as tf

        self.checkpoint.step = tf.Variable(0, dtype=tf.int64, trainable=False)
        # The ps write their part of it: the folder must mean the same to them. It may be a URL,
        # which a Path would spoil.
        folder = os.environ.get("TFCLUSTER_CHECKPOINT_DIR") or os.path.abspath("checkpoints")
        self._manager = tf.train.CheckpointManager(
            self.checkpoint, folder, self.keep, checkpoint_name="ckpt"
        )

    @property
    def latest_checkpoint(self) -> str:
        return str(self._manager.latest_checkpoint)

    def restore(self) -> int:
        """Put back the newest state of the checkpoint directory; the steps done until then."""
        self._manager.restore_or_initialize()
        self.done = int(self.checkpoint.step)
        return self.done

    def run(self, call: Callable[..., Any], *args: Any, last: int, every: int) -> Iterator[int]:
        """Have steps done until there are `last`; gives the number done at each checkpoint.

        `call(*args, n)` does n steps (an int64 tensor: `per_call`, or fewer before a checkpoint).
        There is a checkpoint at each multiple of `every` steps, and at the end. The calls of a
        worker that dies are done by the others. Raises what a call has raised.
        """
        import tensorflow as tf

        while self.done < last:
            until = min(last, self.done + every - self.done % every)
            for first in range(self.done, until, self.per_call):
                steps = tf.constant(min(self.per_call, until - first), tf.int64)
                self.coordinator.schedule(call, (*args, steps))
            self._follow(until)
            self.coordinator.join()
            self.done = until
            self._report(until)
            self._save()
            yield until
        reporting.finished()

    def _follow(self, until: int) -> None:
        """Report how far the workers are until they have done all that was handed out."""
        before = int(self.iterations)
        while not self.coordinator.done():
            # What a dying worker had all but done is counted twice.
            self._report(min(until, self.done + int(self.iterations) - before))
            time.sleep(LOOK_S)

    def _report(self, step: int) -> None:
        reporting.progress(
            step,
            metrics=self.metrics(),
            batch_size=self.batch_size,
            steps_per_execution=self.per_call,
        )

    def _save(self) -> None:
        self.checkpoint.step.assign(self.done)
        path = self._manager.save(checkpoint_number=self.done)
        reporting.saved(str(path), step=self.done)
