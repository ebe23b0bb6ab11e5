"""Keras callbacks for any Keras and any number of workers: save, resume, log.

No two workers write one path, whether they share a file system or not: the chief writes, the
others write into a temporary folder of their own and remove it.

They are built from the Keras module they shall work with, so that importing this file imports
neither TensorFlow nor a Keras.
"""

from __future__ import annotations

import shutil
import sys
from types import ModuleType
from typing import Any, Callable

from tfcluster_workers import context, reporting


class EpochCheckpoints:
    """Saves model, optimizer and epoch after each epoch, and puts the newest back.

    One set of files is checkpoint and backup at once, so a restart goes on where `evaluate` would
    look. Every task saves (variables may be reduced in doing so), the chief into the checkpoint
    directory, the others beside it into a folder that `close` removes.
    """

    def __init__(self, model: Any, *, strategy: Any, keep: int = 3) -> None:
        import tensorflow as tf

        self._here = context.current()
        with strategy.scope():
            self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.checkpoint = tf.train.Checkpoint(
            model=model, optimizer=model.optimizer, epoch=self._epoch
        )
        self._manager = tf.train.CheckpointManager(
            self.checkpoint, str(self._here.save_dir), max_to_keep=keep, checkpoint_name="ckpt"
        )

    def restore(self) -> int:
        """Put back the newest state of the checkpoint directory; the number of epochs done."""
        import tensorflow as tf

        found = tf.train.latest_checkpoint(str(self._here.checkpoint_dir))
        if found is None:
            return 0
        self.checkpoint.restore(found)
        return int(self._epoch.numpy())

    def restore_latest(self) -> str | None:
        """Put back what was saved last by this task, else what it started from.

        All tasks saved equal values, so all restore the same without sharing a file system.
        """
        import tensorflow as tf

        found = self._manager.latest_checkpoint or tf.train.latest_checkpoint(
            str(self._here.checkpoint_dir)
        )
        if found is not None:
            self.checkpoint.restore(found).expect_partial()
        return None if found is None else str(found)

    def save(self, epochs_done: int) -> None:
        """Save after `epochs_done` epochs and say so."""
        self._epoch.assign(epochs_done)
        path = self._manager.save(checkpoint_number=epochs_done)
        if self._here.is_chief:
            step = int(self.checkpoint.optimizer.iterations.numpy())
            reporting.saved(str(path), step=step)

    def callback(self, keras: Any) -> Any:
        """The callback that saves at the end of each epoch."""
        return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: self.save(epoch + 1))

    def close(self) -> None:
        """Remove what only this task needed."""
        if not self._here.is_chief:
            shutil.rmtree(self._here.save_dir, ignore_errors=True)


def learning_rate_schedule(keras: Any, *, scale: float = 1.0) -> Any:
    """1e-3 below epoch 3, 1e-4 below 7, then 1e-5, times `scale` (epochs count from 0)."""

    def rate(epoch: int) -> float:
        return scale * (1e-3 if epoch < 3 else 1e-4 if epoch < 7 else 1e-5)

    return keras.callbacks.LearningRateScheduler(rate)


def epoch_line(keras: Any, model: Any, *, write: Callable[[str], None]) -> Any:
    """One line an epoch for people and programs: `epoch 1 loss 0.123456 accuracy 0.9…`."""

    def on_epoch_end(epoch: int, logs: Any) -> None:
        found = sorted(dict(logs or {}).items(), key=lambda log: log[0] != "loss")
        values = " ".join(
            f"{name} {float(value):.6f}"
            for name, value in found
            if name not in {"lr", "learning_rate"}
        )
        rate = float(model.optimizer.learning_rate.numpy())
        write(f"epoch {epoch + 1} {values} learning rate {rate:g}")

    return keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)


def patch(module: ModuleType) -> None:
    """Have the classes of `keras.src.callbacks`, of any Keras, write from one worker only."""
    if "worker_training_state" in vars(module):
        from tfcluster_workers.hooks import keras2_callbacks

        keras2_callbacks.patch(module)
    else:
        from tfcluster_workers.keras3 import callbacks

        callbacks.patch(module)


def of(keras: Any) -> Any:
    """`keras.callbacks`, patched where the import hooks of `boot` are not there to do it."""
    patch(sys.modules[keras.callbacks.Callback.__module__.removesuffix(".callback")])
    return keras.callbacks


def tensorboard(keras: Any) -> list[Any]:
    """The TensorBoard callback, where there is a folder for it and TensorBoard is installed."""
    import importlib.util

    folder = context.current().tensorboard_dir
    if folder is None or importlib.util.find_spec("tensorboard") is None:
        return []  # TensorFlow 2.21 no longer brings it along
    return [of(keras).TensorBoard(str(folder), write_graph=False, update_freq="epoch")]


def checkpoint(keras: Any, name: str, *, monitor: str | None = None) -> Any:
    """`ModelCheckpoint` after each epoch: `name` (`{epoch:02d}.weights.h5`) in the task's folder.

    With `monitor` (`val_loss`) only when that is better than before.
    """
    return of(keras).ModelCheckpoint(
        checkpoint_path(name),
        monitor=monitor or "val_loss",
        save_best_only=monitor is not None,
        save_weights_only=name.endswith(".weights.h5"),
    )


def backup_and_restore(keras: Any, *, every: int | str = "epoch") -> Any:
    """`BackupAndRestore` each epoch, or `every` so many steps, where tfcluster brings it home."""
    return of(keras).BackupAndRestore(backup_dir(), save_freq=every)


def csv_log(keras: Any, filename: str) -> Any:
    """`CSVLogger` that a restart goes on with."""
    return of(keras).CSVLogger(filename, append=context.current().attempt > 1)


def backup_dir() -> str:
    """For `BackupAndRestore` of your own script: a folder of the checkpoint directory.

    The chief writes there, all restore from there.
    """
    return str(context.current().checkpoint_dir / "backup")


def checkpoint_path(pattern: str = "ckpt-{epoch:02d}") -> str:
    """For `ModelCheckpoint` of your own script, which lets only the chief write there."""
    return str(context.current().checkpoint_dir / pattern)
