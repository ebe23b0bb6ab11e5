"""Patches the callbacks of Keras 3 so that only one worker writes their files, as in Keras 2.

`ModelCheckpoint`, `BackupAndRestore`, `TensorBoard` and `CSVLogger` of Keras 3 ignore
`tf.distribute`: every worker writes the same files at the same time, and at the end of training
each removes the backup that another may still be writing. Here the chief writes, and the others
write into temporary folders and remove them (they must save too, since saving may reduce variables
across the workers). All workers read the chief's files.

Methods of the four classes are replaced; they act differently only under a strategy with several
workers. A script needs no change.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from types import ModuleType
from typing import Any

from tfcluster_workers.hooks import fit_position, keras_hooks, one_writer, save_hooks
from tfcluster_workers.hooks.one_writer import Method
from tfcluster_workers.keras3 import release
from tfcluster_workers.keras3.patches import require_function


def patch(callbacks: ModuleType) -> None:
    """Patch the four classes of `keras.src.callbacks` once, unless patching is switched off."""
    if release.is_switched_off():
        return
    for owner, methods in _REPLACEMENTS.items():
        for name, replacement in methods.items():
            alone = _ALONE.get((owner, name))
            one_writer.replace_method(vars(callbacks).get(owner), name, replacement, alone)


# -- ModelCheckpoint: other workers save into a folder that is removed after each save ------------


def _checkpoint_path(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> str:
    path = str(stock(self, *args, **kwargs))
    if one_writer.may_write(strategy):
        one_writer.make_parent_folder(path)
        return path
    self._tfcluster_path = one_writer.temporary_path(path, strategy)
    return str(self._tfcluster_path)


def _save_checkpoint(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    self._tfcluster_path = None
    try:
        return stock(self, *args, **kwargs)
    finally:
        if self._tfcluster_path is not None:
            one_writer.remove(os.path.dirname(self._tfcluster_path))


# -- BackupAndRestore: all restore the chief's backup, only the chief removes it ------------------

_POSITION = "tfcluster_position"
"""The key of the position in Keras's file of metadata."""
_finished: set[str] = set()
"""Backups of a `fit` that has ended in this process: the chief removes them, none is restored."""


def _restore(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    if not one_writer.may_write(strategy) and self.backup_dir in _finished:
        return None  # in the next `fit`: the chief may not have removed it yet
    # Before 3.5 Keras makes the optimizer's variables here, outside of the scope.
    with one_writer.scope(strategy):
        return _restore_position(strategy, stock, self, *args, **kwargs)


def _restore_position(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    result = stock(self, *args, **kwargs)
    if _exists(self._training_metadata_path):
        with _open(self._training_metadata_path) as file:
            saved = json.load(file).get(_POSITION)
        resumed = fit_position.resume(self.model, saved)
        if resumed is not None:
            self.model._initial_epoch = resumed[0]
    # Keras does not keep the epoch it resumes in, and would save 0 until that epoch has ended.
    self._current_epoch = self.model._initial_epoch or 0
    return result


def _save_position(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Save a backup with the position in its epoch, which Keras saves but never reads."""
    position = fit_position.save(self.model)
    result = stock(self, *args, **kwargs)
    if position is not None:
        with _open(self._training_metadata_path) as file:
            saved = json.load(file)
        with _open(self._training_metadata_path, "w") as file:
            file.write(json.dumps({**saved, _POSITION: position}))
    return result


def _exists(path: str) -> bool:
    if "://" not in path:
        return os.path.exists(path)
    import tensorflow as tf

    return bool(tf.io.gfile.exists(path))


def _open(path: str, mode: str = "r") -> Any:
    if "://" not in path:
        return open(path, mode)
    import tensorflow as tf

    return tf.io.gfile.GFile(path, mode)


def _back_up_alone(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    result = _save_position(strategy, stock, self, *args, **kwargs)
    save_hooks.report_backup(str(self.backup_dir), keras_hooks.steps_done(self.model))
    return result


def _back_up(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Save a backup atomically: Keras writes two files in place, and a crash leaves half of it."""
    _finished.discard(self.backup_dir)
    real = str(self.backup_dir)
    is_real = one_writer.may_write(strategy)
    if is_real and "://" in real:
        return _save_position(strategy, stock, self, *args, **kwargs)
    folder = one_writer.temporary_path(real, strategy)
    if is_real:
        folder = os.path.join(real, one_writer.temporary_name(strategy))
    _write_below(self, folder)
    try:
        result = _save_position(strategy, stock, self, *args, **kwargs)
        if is_real:
            _put_in_place(folder, real, keep_previous=getattr(self, "double_checkpoint", False))
    finally:
        _write_below(self, real)
        one_writer.remove(folder if is_real else os.path.dirname(folder))
    if is_real:
        save_hooks.report_backup(real, keras_hooks.steps_done(self.model))
    return result


_FILES = {
    "_weights_path": "latest.weights.h5",
    "_training_metadata_path": "training_metadata.json",
    "_prev_weights_path": "latest.weights.h5.bkp",
    "_prev_training_metadata_path": "training_metadata.json.bkp",
}


def _write_below(callback: Any, folder: str) -> None:
    callback.backup_dir = folder
    for attribute, name in _FILES.items():
        if hasattr(callback, attribute):
            setattr(callback, attribute, os.path.join(folder, name))


def _put_in_place(folder: str, real: str, *, keep_previous: bool) -> None:
    """Move the weights, then the metadata: metadata older than the weights mean an incomplete move.

    In that case an epoch is repeated, never lost.
    """
    for name in ("latest.weights.h5", "training_metadata.json"):
        target = os.path.join(real, name)
        if keep_previous and os.path.exists(target):
            shutil.copy2(target, f"{target}.bkp")
        os.replace(os.path.join(folder, name), target)


def _end_backup(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    if one_writer.may_write(strategy):
        return stock(self, *args, **kwargs)
    if self.delete_checkpoint:
        _finished.add(self.backup_dir)
    return None


# -- TensorBoard: other workers write events into a temporary folder ------------------------------


def _begin_events(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    if not one_writer.may_write(strategy) and getattr(self, "_tfcluster_real", None) is None:
        self._tfcluster_real = self.log_dir
        self.log_dir = tempfile.mkdtemp(prefix="workertemp_")
        atexit.register(one_writer.remove, self.log_dir)
    return stock(self, *args, **kwargs)


def _end_events(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    result = stock(self, *args, **kwargs)
    if getattr(self, "_tfcluster_real", None) is not None:
        one_writer.remove(self.log_dir)
        self.log_dir, self._tfcluster_real = self._tfcluster_real, None
    return result


_REPLACEMENTS: dict[str, dict[str, Method]] = {
    "ModelCheckpoint": {"_get_file_path": _checkpoint_path, "_save_model": _save_checkpoint},
    "BackupAndRestore": {
        "on_train_begin": _restore,
        "_save_model": _back_up,
        "on_train_end": _end_backup,
    },
    "TensorBoard": {"set_model": _begin_events, "on_train_end": _end_events},
    "CSVLogger": {"on_train_begin": one_writer.begin_csv},
}
_ALONE: dict[tuple[str, str], Method] = {
    ("BackupAndRestore", "on_train_begin"): _restore_position,
    ("BackupAndRestore", "_save_model"): _back_up_alone,
}
"""The replacements that also act where one worker trains."""


def require_methods(callbacks: Any) -> None:
    """Raise OtherKerasError for a class of `keras.callbacks` that lacks a method to replace."""
    for owner, methods in _REPLACEMENTS.items():
        for name in methods:
            require_function(getattr(callbacks, owner), name)
