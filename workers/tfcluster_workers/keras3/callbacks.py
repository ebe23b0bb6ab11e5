"""Has Keras 3's own callbacks write from one worker only, as Keras 2's do.

`ModelCheckpoint`, `BackupAndRestore`, `TensorBoard` and `CSVLogger` of Keras 3 know nothing of
`tf.distribute`: every worker writes the same files at the same time, and at the end of training
each removes the backup that another may still be writing. Here the chief writes, the others write
into a temporary folder of their own and remove it (variables may be reduced between the workers in
saving), and all read what the chief has written.

Changed are methods of the four classes, and only what they do under a strategy with several
workers; a script need not say anything.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from types import ModuleType
from typing import Any

from tfcluster_workers import reporting
from tfcluster_workers.hooks import keras_hooks, one_writer
from tfcluster_workers.hooks.one_writer import Method
from tfcluster_workers.keras3 import release


def patch(callbacks: ModuleType) -> None:
    """Change the four classes of `keras.src.callbacks`, once; not where Keras is left as it is."""
    if release.is_switched_off():
        return
    for owner, methods in _CHANGED.items():
        for name, changed in methods.items():
            one_writer.change(vars(callbacks).get(owner), name, changed)


# -- ModelCheckpoint: each save goes to a folder that is removed right after it -------------------


def _checkpoint_path(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> str:
    path = str(stock(self, *args, **kwargs))
    if one_writer.may_write(strategy):
        one_writer.make_folder_of(path)
        return path
    self._tfcluster_path = one_writer.beside(path, strategy)
    return str(self._tfcluster_path)


def _save_checkpoint(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    self._tfcluster_path = None
    try:
        return stock(self, *args, **kwargs)
    finally:
        if self._tfcluster_path is not None:
            one_writer.remove(os.path.dirname(self._tfcluster_path))


# -- BackupAndRestore: all restore the chief's, the chief alone removes it ------------------------

_finished: set[str] = set()
"""Backups whose `fit` this process has ended: the chief removes them, nobody resumes from them."""


def _restore(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    if not one_writer.may_write(strategy) and self.backup_dir in _finished:
        return None  # in the next `fit`: the chief may not have come to removing it
    result = stock(self, *args, **kwargs)
    # Keras forgets in which epoch it goes on, and would note 0 until that epoch has ended.
    self._current_epoch = self.model._initial_epoch or 0
    return result


def _back_up(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Keras writes two files, one after the other and in place: who dies meanwhile leaves half."""
    _finished.discard(self.backup_dir)
    real = str(self.backup_dir)
    is_real = one_writer.may_write(strategy)
    if is_real and "://" in real:
        return stock(self, *args, **kwargs)
    folder = one_writer.within(real, strategy) if is_real else one_writer.beside(real, strategy)
    _write_below(self, folder)
    try:
        result = stock(self, *args, **kwargs)
        if is_real:
            _put_in_place(folder, real, keep_former=getattr(self, "double_checkpoint", False))
    finally:
        _write_below(self, real)
        one_writer.remove(folder if is_real else os.path.dirname(folder))
    if is_real:
        reporting.saved(os.path.abspath(real), step=keras_hooks.steps_done(self.model))
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


def _put_in_place(folder: str, real: str, *, keep_former: bool) -> None:
    """The weights first: metadata older than the weights tell that it is not whole.

    An epoch is repeated then, never lost.
    """
    for name in ("latest.weights.h5", "training_metadata.json"):
        target = os.path.join(real, name)
        if keep_former and os.path.exists(target):
            shutil.copy2(target, f"{target}.bkp")
        os.replace(os.path.join(folder, name), target)


def _end_backup(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    if one_writer.may_write(strategy):
        return stock(self, *args, **kwargs)
    if self.delete_checkpoint:
        _finished.add(self.backup_dir)
    return None


# -- TensorBoard: the others' events go where nobody looks ----------------------------------------


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


_CHANGED: dict[str, dict[str, Method]] = {
    "ModelCheckpoint": {"_get_file_path": _checkpoint_path, "_save_model": _save_checkpoint},
    "BackupAndRestore": {
        "on_train_begin": _restore,
        "_save_model": _back_up,
        "on_train_end": _end_backup,
    },
    "TensorBoard": {"set_model": _begin_events, "on_train_end": _end_events},
    "CSVLogger": {"on_train_begin": one_writer.begin_table},
}
