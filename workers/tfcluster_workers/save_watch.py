"""Sees checkpoints being written, for the faults of `--chaos` that strike while one is.

Attached only in a task that has such a fault; other tasks' saves stay untouched.
"""

from __future__ import annotations

import functools
import os
import threading
from types import ModuleType
from typing import Any, Callable

from tfcluster_workers import chaos

POLL_S = 0.0005

_saving = threading.local()
"""Keras's `save_weights` writes a `tf.train.Checkpoint`: one save, not two."""


def watch_checkpoints(module: ModuleType) -> None:
    """tf.train.Checkpoint, CheckpointManager, Keras 2's weights and backups end up here."""
    _watch(vars(module)["TrackableSaver"], "save")


def watch_graph_saver(module: ModuleType) -> None:
    """Estimator and other graphs of TensorFlow 1."""
    _watch(vars(module)["Saver"], "save", path=2)


def watch_models(module: ModuleType) -> None:
    """Keras's own files: .keras, .weights.h5, SavedModel."""
    for name in ("save", "save_weights"):
        _watch(vars(module)["Model"], name)


def _watch(owner: Any, name: str, *, path: int = 1) -> None:
    save = getattr(owner, name)

    @functools.wraps(save)
    def save_or_suffer(*args: Any, **kwargs: Any) -> Any:
        if getattr(_saving, "depth", 0):
            return save(*args, **kwargs)
        names = ("file_prefix", "filepath", "save_path")
        given = [*args[path : path + 1], *(kwargs[key] for key in names if key in kwargs)]
        _saving.depth = 1
        try:
            return _suffer(lambda: save(*args, **kwargs), str(given[0]) if given else "")
        finally:
            _saving.depth = 0

    setattr(owner, name, save_or_suffer)
    chaos.see_saves()


def _suffer(save: Callable[[], Any], target: str) -> Any:
    """Save; a fault that is due strikes once something of the checkpoint lies on the disk.

    Where that cannot be seen, or the save is too quick to be caught, it strikes right after it.
    """
    fault = chaos.begin_save()
    if fault is None:
        return save()
    if not chaos.is_of_process(fault):
        chaos.inject(fault)
    watch = _Watch(target, lambda: chaos.inject(fault))
    watch.start()
    try:
        return save()
    finally:
        watch.strike()
        watch.join()


class _Watch(threading.Thread):
    """Strikes once: when the files of a checkpoint change, or when told to."""

    def __init__(self, target: str, strike: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._folder, self._stem = os.path.split(os.path.abspath(target))
        self._before = self._look()
        self._do = strike
        self._lock = threading.Lock()
        self._struck = False

    def run(self) -> None:
        pause = threading.Event()
        while not self._struck and self._look() <= self._before:
            pause.wait(POLL_S)
        self.strike()

    def strike(self) -> None:
        with self._lock:
            if not self._struck:
                self._struck = True
                self._do()

    def _look(self) -> set[tuple[str, int]]:
        """Files of this checkpoint with their sizes; TensorFlow begins in a `_temp` folder."""
        try:
            with os.scandir(self._folder) as entries:
                return {
                    (entry.name, entry.stat().st_mtime_ns)
                    for entry in entries
                    if entry.name.startswith(self._stem)
                }
        except OSError:
            return set()
