"""Saves the state of a loop of one's own, also when it is preempted, and puts it back.

A machine that is about to go sends SIGTERM to its task. TensorFlow's PreemptionCheckpointHandler
tells the other workers, all save after one and the same step, and all exit with 42: the launcher
starts them again without counting a failure.
"""

from __future__ import annotations

import shutil
import signal
import sys
from typing import Any, Callable

from tfcluster_workers import context, reporting

PREEMPTED = 42


def variables_of(metric: Any) -> list[Any]:
    """A metric's variables as TensorFlow's: a metric of Keras 3 is nothing to be saved itself."""
    import tensorflow as tf

    found = metric.variables
    return [one if isinstance(one, tf.Variable) else one.value for one in found]


class LoopCheckpoints:
    """The checkpoints of one loop; `step` counts the steps that are done and is saved with them.

    Every task saves (variables may be reduced in doing so), the chief into the checkpoint
    directory, the others beside it into a folder that `close` removes. The newest state of the
    checkpoint directory is put back at once, the same on all tasks.
    """

    def __init__(self, strategy: Any, *, keep: int = 3, **state: Any) -> None:
        import tensorflow as tf

        self._here = context.current()
        if not self._here.is_chief:  # what an earlier attempt left half done
            shutil.rmtree(self._here.save_dir, ignore_errors=True)
        with strategy.scope():
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._checkpoint = tf.train.Checkpoint(step=self.step, **state)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            str(self._here.save_dir),
            max_to_keep=keep,
            checkpoint_name="ckpt",
            init_fn=self._restore_the_chiefs,
        )
        self._handler: Any = self._watch_for_preemption(strategy)  # restores, too
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

    def _restore_the_chiefs(self) -> None:
        """Called by the manager of a task whose own folder is empty."""
        import tensorflow as tf

        found = tf.train.latest_checkpoint(str(self._here.checkpoint_dir))
        if found is not None:
            self._checkpoint.restore(found)

    @property
    def steps_done(self) -> int:
        return int(self.step.numpy())

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)`, one step or several; after a SIGTERM it saves and exits instead."""
        return self._handler.run(function, *args)

    def save(self) -> None:
        """Save now and say so."""
        path = self._write()
        if self._here.is_chief:
            reporting.saved(path, step=self.steps_done)

    def _write(self) -> str:
        return str(self._manager.save(checkpoint_number=self.steps_done))

    def close(self) -> None:
        """Nothing is left to save: SIGTERM ends the task again."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handler.__del__()  # ends its threads; they hold it, so nothing else would call it
        if not self._here.is_chief:
            shutil.rmtree(self._here.save_dir, ignore_errors=True)
