"""Keras callbacks for any Keras and any number of workers: save, resume, log.

No two workers write to the same path, with or without a shared file system: the chief writes, each
other worker writes into a temporary folder and removes it.

Each function takes the Keras module to build the callback from, so that importing this file imports
neither TensorFlow nor Keras.
"""

from __future__ import annotations

import shutil
import sys
from types import ModuleType
from typing import Any, Callable

from tfcluster_workers import context, reporting


class EpochCheckpoints:
    """Checkpoints of model, optimizer and epoch: saved after each epoch, restored on a restart.

    The same files serve as checkpoint and backup, so a restart continues from what `evaluate`
    loads. Every task must save, since saving may reduce variables across the workers: the chief
    saves into the checkpoint directory, the others into folders that `close` removes.
    """

    def __init__(self, model: Any, *, strategy: Any, keep: int = 3) -> None:
        import tensorflow as tf

        self._context = context.current()
        with strategy.scope():
            self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.checkpoint = tf.train.Checkpoint(
            model=model, optimizer=model.optimizer, epoch=self._epoch
        )
        self._manager = tf.train.CheckpointManager(
            self.checkpoint, str(self._context.save_dir), max_to_keep=keep, checkpoint_name="ckpt"
        )

    def restore(self) -> int:
        """Restore the newest checkpoint of the checkpoint directory; return the epochs done."""
        import tensorflow as tf

        latest = tf.train.latest_checkpoint(str(self._context.checkpoint_dir))
        if latest is None:
            return 0
        self.checkpoint.restore(latest)
        return int(self._epoch.numpy())

    def restore_latest(self) -> str | None:
        """Restore what this task saved last, else what it started from; return its path or None.

        All tasks save equal values, so all restore the same state without a shared file system.
        """
        import tensorflow as tf

        latest = self._manager.latest_checkpoint or tf.train.latest_checkpoint(
            str(self._context.checkpoint_dir)
        )
        if latest is not None:
            self.checkpoint.restore(latest).expect_partial()
        return None if latest is None else str(latest)

    def save(self, epochs_done: int) -> None:
        """Save the state after `epochs_done` epochs; the chief reports it."""
        self._epoch.assign(epochs_done)
        path = self._manager.save(checkpoint_number=epochs_done)
        if self._context.is_chief:
            step = int(self.checkpoint.optimizer.iterations.numpy())
            reporting.saved(str(path), step=step)

    def callback(self, keras: Any) -> Any:
        """Return the Keras callback that saves at the end of each epoch."""
        return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: self.save(epoch + 1))

    def close(self) -> None:
        """Remove this task's temporary folder."""
        if not self._context.is_chief:
            shutil.rmtree(self._context.save_dir, ignore_errors=True)


def learning_rate_schedule(keras: Any, *, scale: float = 1.0) -> Any:
    """Return a scheduler: 1e-3 before epoch 3, 1e-4 before 7, then 1e-5 (from 0), times `scale`."""

    def rate(epoch: int) -> float:
        return scale * (1e-3 if epoch < 3 else 1e-4 if epoch < 7 else 1e-5)

    return keras.callbacks.LearningRateScheduler(rate)


def epoch_line(keras: Any, model: Any, *, write: Callable[[str], None]) -> Any:
    """Return a callback that writes a line per epoch: `epoch 1 loss 0.123456 accuracy 0.9…`."""

    def on_epoch_end(epoch: int, logs: Any) -> None:
        loss_first = sorted(dict(logs or {}).items(), key=lambda log: log[0] != "loss")
        values = " ".join(
            f"{name} {float(value):.6f}"
            for name, value in loss_first
            if name not in {"lr", "learning_rate"}
        )
        rate = float(model.optimizer.learning_rate.numpy())
        write(f"epoch {epoch + 1} {values} learning rate {rate:g}")

    return keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)


def patch(module: ModuleType) -> None:
    """Patch the classes of a `keras.src.callbacks` module so that only one worker writes files."""
    if "worker_training_state" in vars(module):
        from tfcluster_workers.hooks import keras2_callbacks

        keras2_callbacks.patch(module)
    else:
        from tfcluster_workers.keras3 import callbacks

        callbacks.patch(module)


def of(keras: Any) -> Any:
    """Return `keras.callbacks`, patched even where `boot` has attached no import hooks."""
    patch(sys.modules[keras.callbacks.Callback.__module__.removesuffix(".callback")])
    return keras.callbacks


def tensorboard(keras: Any) -> list[Any]:
    """Return the TensorBoard callback, or nothing without a log folder or without TensorBoard."""
    import importlib.util

    folder = context.current().tensorboard_dir
    if folder is None or importlib.util.find_spec("tensorboard") is None:
        return []  # TensorFlow 2.21 no longer installs it
    return [of(keras).TensorBoard(str(folder), write_graph=False, update_freq="epoch")]


def checkpoint(keras: Any, name: str, *, monitor: str | None = None) -> Any:
    """Return a `ModelCheckpoint` that saves `name` in the checkpoint directory after each epoch.

    `name` is a pattern such as `{epoch:02d}.weights.h5`. With `monitor` (`val_loss`) it saves only
    when that metric has improved.
    """
    return of(keras).ModelCheckpoint(
        checkpoint_path(name),
        monitor=monitor or "val_loss",
        save_best_only=monitor is not None,
        save_weights_only=name.endswith(".weights.h5"),
    )


def backup_and_restore(keras: Any, *, every: int | str = "epoch") -> Any:
    """Return a `BackupAndRestore` (each epoch or `every` N steps) in the gathered folder."""
    return of(keras).BackupAndRestore(backup_dir(), save_freq=every)


def csv_log(keras: Any, filename: str) -> Any:
    """Return a `CSVLogger` that a restart appends to."""
    return of(keras).CSVLogger(filename, append=context.current().attempt > 1)


def backup_dir() -> str:
    """Return the folder for a script's own `BackupAndRestore`, inside the checkpoint directory.

    The chief writes there, and all workers restore from there.
    """
    return str(context.current().checkpoint_dir / "backup")


def checkpoint_path(pattern: str = "ckpt-{epoch:02d}") -> str:
    """Return the path for a script's own `ModelCheckpoint`; only the chief writes there."""
    return str(context.current().checkpoint_dir / pattern)
