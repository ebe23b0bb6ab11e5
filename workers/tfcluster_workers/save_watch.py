"""Reports the checkpoints that TensorFlow and Keras write, each with its step, as any script saves.

The faults of `--chaos` that strike while a checkpoint is being written strike here.
"""

from __future__ import annotations

import functools
import os
import threading
from types import ModuleType
from typing import Any, Callable

from tfcluster_workers import chaos, context, reporting, saved_step

POLL_S = 0.0005

_saving = threading.local()
"""Keras's `save_weights` writes a `tf.train.Checkpoint`: one save, not two."""
StepOf = Callable[[Any, str], "int | None"]
"""From the object that saves, and the path, to the step."""


def watch_checkpoints(module: ModuleType) -> None:
    """tf.train.Checkpoint, CheckpointManager, Keras 2's weights and backups end up here."""
    _watch(vars(module)["TrackableSaver"], "save", saved_step.of_saver)


def watch_graph_saver(module: ModuleType) -> None:
    """Estimator and other graphs of TensorFlow 1."""
    _watch(vars(module)["Saver"], "save", saved_step.of_graph_saver, path=2)


def watch_models(module: ModuleType) -> None:
    """Keras's own files: .keras, .weights.h5, SavedModel."""
    for name in ("save", "save_weights"):
        _watch(vars(module)["Model"], name, saved_step.of_model)


def _watch(owner: Any, name: str, step_of: StepOf, *, path: int = 1) -> None:
    save = getattr(owner, name)
    if chaos.awaits_saves():
        chaos.see_saves()

    @functools.wraps(save)
    def save_and_report(*args: Any, **kwargs: Any) -> Any:
        if getattr(_saving, "depth", 0):
            return save(*args, **kwargs)
        names = ("file_prefix", "filepath", "save_path")
        given = [*args[path : path + 1], *(kwargs[key] for key in names if key in kwargs)]
        target = str(given[0]) if given else ""
        _saving.depth = 1
        try:
            result = _suffer(lambda: save(*args, **kwargs), target)
        finally:
            _saving.depth = 0
        # A graph's Saver adds the step to the name, and says which name that is.
        _report(args[0], result if path == 2 else target, step_of)
        return result

    setattr(owner, name, save_and_report)


def _report(saver: Any, path: Any, step_of: StepOf) -> None:
    """Say what the chief has saved; the others write into folders that are removed."""
    try:
        here = context.current()
        if not (isinstance(path, str) and path and here.is_chief) or context.is_evaluator():
            return
        step, whole = _step(step_of, saver, path), whole_path(path)
        # Not `context`'s: a Path would spoil a URL.
        if _is_within(whole, os.environ.get("TFCLUSTER_CHECKPOINT_DIR", "")):
            reporting.saw_saved(whole, step)
        else:
            reporting.saved_elsewhere(step)
    except Exception as error:  # nothing of ours may break a save
        reporting.note(f"a save went unreported: {error!r}")


def whole_path(path: str) -> str:
    """As it is reported."""
    return path if "://" in path else os.path.abspath(path)


def _step(step_of: StepOf, saver: Any, path: str) -> int | None:
    """A save is reported also where its step cannot be told."""
    try:
        return step_of(saver, path)
    except Exception:  # of an object of the script's own
        return None


def _is_within(path: str, folder: str) -> bool:
    if not folder or "://" in folder:
        return bool(folder) and path.startswith(folder.rstrip("/") + "/")
    places = os.path.abspath(folder), os.path.realpath(folder)
    return any(path.startswith(os.path.join(place, "")) for place in places)


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
