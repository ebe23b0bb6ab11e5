"""Has what is left to be done in Keras 2's callbacks done: its `CSVLogger` writes from all workers.

Its `ModelCheckpoint`, `TensorBoard` and `BackupAndRestore` let only the chief write by themselves.
A backup is reported with its step, and a later `fit` of the same process does not resume from the
backup of one that has ended: the chief removes it, and the others have been given copies.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from tfcluster_workers import reporting
from tfcluster_workers.hooks import keras_hooks, one_writer
from tfcluster_workers.hooks.one_writer import Method


def patch(callbacks: ModuleType) -> None:
    """Change the classes of `tf_keras.src.callbacks`, or `keras.src.callbacks` of 2.15, once."""
    state = vars(callbacks)["worker_training_state"].WorkerTrainingState
    one_writer.change(callbacks.CSVLogger, "on_train_begin", one_writer.begin_table)
    for name, changed in _CHANGED.items():
        one_writer.change(state, name, changed)


_finished: set[str] = set()


def _restore(strategy: Any, stock: Method, self: Any) -> Any:
    return None if _folder(self) in _finished else stock(self)


def _back_up(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    _finished.discard(_folder(self))
    result = stock(self, *args, **kwargs)
    if one_writer.may_write(strategy):
        folder = os.path.dirname(os.path.abspath(_folder(self)))
        reporting.saved(folder, step=keras_hooks.steps_done(self._model))
    return result


def _delete(strategy: Any, stock: Method, self: Any) -> Any:
    _finished.add(_folder(self))
    return stock(self)


def _folder(state: Any) -> str:
    """`<backup_dir>/chief`, of which all restore."""
    return str(state.read_checkpoint_manager.directory)


_CHANGED = {"back_up": _back_up, "restore": _restore, "delete_backup": _delete}
