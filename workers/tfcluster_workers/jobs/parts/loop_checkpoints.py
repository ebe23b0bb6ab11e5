"""Saves and restores the state of a custom training loop, also when it is preempted.

A machine that is about to be taken away sends SIGTERM to its task. TensorFlow's
PreemptionCheckpointHandler informs the other workers; all save after the same step and exit with
code 42, and the launcher restarts them without counting a failure.
"""

from __future__ import annotations

import shutil
import signal
import sys
from typing import Any, Callable

from tfcluster_workers import context, reporting

PREEMPTED = 42
"""The exit code of a task that has saved because it was preempted."""


def variables_of(metric: Any) -> list[Any]:
    """Return a metric's variables as TensorFlow's: a Keras 3 metric itself cannot be saved."""
    import tensorflow as tf

    return [each if isinstance(each, tf.Variable) else each.value for each in metric.variables]


class LoopCheckpoints:
    """The checkpoints of a loop; `step` counts the steps done and is saved with them.

    Every task must save, since saving may reduce variables across the workers: the chief saves into
    the checkpoint directory, the others into folders that `close` removes. The constructor restores
    the newest checkpoint of the checkpoint directory, the same one in all tasks.
    """

    def __init__(self, strategy: Any, *, keep: int = 3, **state: Any) -> None:
        import tensorflow as tf

        self._context = context.current()
        if not self._context.is_chief:  # an earlier attempt may have left an incomplete one
            shutil.rmtree(self._context.save_dir, ignore_errors=True)
        with strategy.scope():
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._checkpoint = tf.train.Checkpoint(step=self.step, **state)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            str(self._context.save_dir),
            max_to_keep=keep,
            checkpoint_name="ckpt",
            init_fn=self._restore_chief_checkpoint,
        )
        self._handler: Any = self._watch_for_preemption(strategy)  # this also restores
        if self.steps_done:
            print(f"resuming after step {self.steps_done}", flush=True)

    def _watch_for_preemption(self, strategy: Any) -> Any:
        import tensorflow as tf

        experimental = tf.distribute.experimental
        return experimental.PreemptionCheckpointHandler(
            strategy.cluster_resolver,
            self._manager,
            termination_config=experimental.TerminationConfig(
                exit_fn=lambda: sys.exit(PREEMPTED), grace_period=0, save_fn=self._write
            ),
        )

    def _restore_chief_checkpoint(self) -> None:
        """Restore the chief's checkpoint; the manager calls it if this task's folder is empty."""
        import tensorflow as tf

        latest = tf.train.latest_checkpoint(str(self._context.checkpoint_dir))
        if latest is not None:
            self._checkpoint.restore(latest)

    @property
    def steps_done(self) -> int:
        return int(self.step.numpy())

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return `function(*args)`, one step or several; after a SIGTERM, save and exit instead."""
        return self._handler.run(function, *args)

    def save(self) -> None:
        """Save now; the chief reports it."""
        path = self._write()
        if self._context.is_chief:
            reporting.saved(path, step=self.steps_done)

    def _write(self) -> str:
        return str(self._manager.save(checkpoint_number=self.steps_done))

    def close(self) -> None:
        """End the watch for preemption, so that SIGTERM ends the task again; remove its folder."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handler.__del__()  # ends its threads, which refer to it, so nothing else calls it
        if not self._context.is_chief:
            shutil.rmtree(self._context.save_dir, ignore_errors=True)
