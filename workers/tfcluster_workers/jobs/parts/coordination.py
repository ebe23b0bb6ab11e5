"""Schedules the steps of a parameter-server job in the chief, reports progress and saves.

A coordinator cannot tell how far its workers are before everything it scheduled is done. So steps
are scheduled from one checkpoint to the next, and a reported step never decreases.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from tfcluster_workers import reporting

POLL_S = 0.2
"""Seconds between two checks of the workers' progress."""


@dataclass
class Steps:
    """The steps of a training: scheduled, counted, reported and saved."""

    coordinator: Any
    """A ClusterCoordinator."""
    checkpoint: Any
    """A tf.train.Checkpoint of the state to save; it gets a `step`."""
    iterations: Any
    """The optimizer's step counter, held by the ps tasks."""
    metrics: Callable[[], Mapping[str, float]] = dict
    """Returns the metrics for a progress report."""
    batch_size: int | None = None
    """Examples per step."""
    per_call: int = 1
    """Steps scheduled in one call (`keras.steps_per_execution`)."""
    keep: int = 3
    """Checkpoints to keep."""
    done: int = field(init=False, default=0)
    """Steps that all workers together have done."""
    _manager: Any = field(init=False)

    def __post_init__(self) -> None:
        import tensorflow as tf

        self.checkpoint.step = tf.Variable(0, dtype=tf.int64, trainable=False)
        # The ps tasks write their part of it, so the folder must be the same one for them. It may
        # be a URL, which a Path would break.
        folder = os.environ.get("TFCLUSTER_CHECKPOINT_DIR") or os.path.abspath("checkpoints")
        self._manager = tf.train.CheckpointManager(
            self.checkpoint, folder, self.keep, checkpoint_name="ckpt"
        )

    @property
    def latest_checkpoint(self) -> str:
        return str(self._manager.latest_checkpoint)

    def restore(self) -> int:
        """Restore the newest checkpoint of the checkpoint directory; return the steps done."""
        self._manager.restore_or_initialize()
        self.done = int(self.checkpoint.step)
        return self.done

    def run(self, call: Callable[..., Any], *args: Any, last: int, every: int) -> Iterator[int]:
        """Run steps until `last` are done; yield the number of steps done at each checkpoint.

        `call(*args, n)` runs n steps (an int64 tensor: `per_call`, or fewer before a checkpoint).
        A checkpoint is saved at each multiple of `every` steps and at the end. If a worker dies,
        the others run its calls. Raises the error that a call has raised.
        """
        import tensorflow as tf

        while self.done < last:
            until = min(last, self.done + every - self.done % every)
            for first in range(self.done, until, self.per_call):
                steps = tf.constant(min(self.per_call, until - first), tf.int64)
                self.coordinator.schedule(call, (*args, steps))
            self._follow(until, last)
            self.coordinator.join()
            self.done = until
            self._report(until, last)
            self._save()
            yield until
        reporting.finished()

    def _follow(self, until: int, last: int) -> None:
        """Report progress until the workers have done all scheduled steps."""
        before = int(self.iterations)
        while not self.coordinator.done():
            # `min`: a step that a dying worker had almost done may be counted twice.
            self._report(min(until, self.done + int(self.iterations) - before), last)
            time.sleep(POLL_S)

    def _report(self, step: int, last: int) -> None:
        reporting.progress(
            step,
            total=last,
            metrics=self.metrics(),
            batch_size=self.batch_size,
            steps_per_execution=self.per_call,
        )

    def _save(self) -> None:
        self.checkpoint.step.assign(self.done)
        path = self._manager.save(checkpoint_number=self.done)
        reporting.saved(str(path), step=self.done)
