"""Patches the callbacks of Keras 2: `CSVLogger` writes on one worker, and backups are reported.

`ModelCheckpoint`, `TensorBoard` and `BackupAndRestore` of Keras 2 already write in the chief only.
Here each backup is reported with its step and holds the position in the epoch, and a later `fit` of
the same process does not resume from the backup of a finished one: the chief removes it, but the
other workers were given copies.
"""

from __future__ import annotations

import functools
import json
import os
from types import ModuleType
from typing import Any

from tfcluster_workers.hooks import fit_position, keras_hooks, one_writer, save_hooks
from tfcluster_workers.hooks.one_writer import Method
from tfcluster_workers.hooks.replacing import replaces


def patch(callbacks: ModuleType) -> None:
    """Patch the classes of `tf_keras.src.callbacks`, or of `keras.src.callbacks` 2.15, once."""
    state = vars(callbacks)["worker_training_state"].WorkerTrainingState
    one_writer.replace_method(callbacks.CSVLogger, "on_train_begin", one_writer.begin_csv)
    for name, replacement in _REPLACEMENTS.items():
        alone = replacement if name == "back_up" else None
        one_writer.replace_method(state, name, replacement, alone)
    _keep_position(state)


def _keep_position(state: Any) -> None:
    """Have a backup hold the position in `fit`, and `fit` go on from there."""

    @replaces(state, "__init__")
    def construct(stock: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        self.tfcluster_position = _position_class()(self._model)
        self.read_checkpoint_manager.checkpoint.tfcluster_position = self.tfcluster_position

    @replaces(state, "maybe_load_initial_counters_from_ckpt")
    def first_epoch_and_batch(
        stock: Any, self: Any, steps_per_epoch: Any, initial_epoch: Any, mode: Any
    ) -> Any:
        resumed = fit_position.resume(self._model, self.tfcluster_position.restored)
        return resumed or stock(self, steps_per_epoch, initial_epoch, mode)


@functools.cache
def _position_class() -> Any:
    import tensorflow as tf

    class SavedPosition(tf.train.experimental.PythonState):  # type: ignore[misc]
        """The position of a model's `fit`, as a part of a checkpoint."""

        def __init__(self, model: Any) -> None:
            self._model = model
            self.restored: Any = None

        def serialize(self) -> str:
            return json.dumps(fit_position.save(self._model))

        def deserialize(self, string_value: Any) -> None:
            self.restored = json.loads(string_value)

    return SavedPosition


_finished: set[str] = set()
"""Backup folders of a `fit` that has ended in this process."""


def _restore(strategy: Any, stock: Method, self: Any) -> Any:
    return None if _folder(self) in _finished else stock(self)


def _back_up(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    _finished.discard(_folder(self))
    result = stock(self, *args, **kwargs)
    if one_writer.may_write(strategy):
        folder = os.path.dirname(_folder(self))
        save_hooks.report_backup(folder, keras_hooks.steps_done(self._model))
    return result


def _delete(strategy: Any, stock: Method, self: Any) -> Any:
    _finished.add(_folder(self))
    return stock(self)


def _folder(state: Any) -> str:
    """Return `<backup_dir>/chief`, which all workers restore from."""
    return str(state.read_checkpoint_manager.directory)


_REPLACEMENTS = {"back_up": _back_up, "restore": _restore, "delete_backup": _delete}
