"""Reports the checkpoints that a script saves with TensorFlow or Keras, each with its step.

The faults that `--chaos` injects while a checkpoint is being written are injected here.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Callable

from tfcluster_workers import chaos, context, reporting

_NAMES = ("global_step", "step", "train_step", "iterations")
"""How a loop calls the variable that it saves with its state (TensorFlow's guide "Training
checkpoints": `tf.train.Checkpoint(step=tf.Variable(1), optimizer=…)`)."""
_COUNT = re.compile(r"-(\d+)$")


def of_saver(saver: Any, path: str) -> int | None:
    """Of the objects behind a `tf.train.Checkpoint`, else the last step that was reported.

    An object's own step comes first: a coordinator's reports lag behind what its ps have counted.
    """
    view = saver._graph_view
    return _or_reported(_step_among(view.children(view.root)))


def of_graph_saver(saver: Any, path: str) -> int | None:
    """`tf.compat.v1.train.Saver` writes the global step into the name, where it is given one."""
    found = _COUNT.search(path)
    return int(found.group(1)) if found else None


def of_model(model: Any, path: str) -> int | None:
    """Of a Keras model: the steps of its optimizer, else the last step that was reported."""
    return _or_reported(iterations_of(_optimizer_of(model)))


def _step_among(parts: Mapping[str, Any]) -> int | None:
    """Of a variable that is called so; else the most steps of any optimizer."""
    named = _first(*(value_of(parts.get(name)) for name in _NAMES))
    if named is not None:
        return named
    owners = [part for each in parts.values() for part in (each, _optimizer_of(each))]
    counts = [count for owner in owners if (count := iterations_of(owner)) is not None]
    return max(counts, default=None)


def _optimizer_of(owner: Any) -> Any:
    """None where there is none, or where a script's own model fails to say."""
    try:
        return getattr(owner, "optimizer", None)
    except Exception:
        return None


def iterations_of(optimizer: Any) -> int | None:
    """Steps that an optimizer of any Keras has taken; None where it cannot tell."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    # `iterations` of the legacy optimizers would create the variable; the attribute does not.
    return value_of(getattr(optimizer, "_iterations", None))


def value_of(variable: Any) -> int | None:
    """What a variable of one number holds; None for anything else.

    One that is reduced between the workers when it is read is none: all of them would have to.
    """
    when = getattr(getattr(variable, "synchronization", None), "name", "")
    if variable is None or when == "ON_READ":
        return None
    try:
        return int(variable.numpy())
    except Exception:  # a graph, a table, a ps that is gone
        return None


def _or_reported(step: int | None) -> int | None:
    return reporting.meter.last_step if step is None else step


def _first(*steps: int | None) -> int | None:
    return next((step for step in steps if step is not None), None)


POLL_S = 0.0005

_saving = threading.local()
"""Keras's `save_weights` writes a `tf.train.Checkpoint`: one save, not two."""
StepOf = Callable[[Any, str], "int | None"]
"""From the object that saves, and the path, to the step."""


def watch_checkpoints(module: ModuleType) -> None:
    """tf.train.Checkpoint, CheckpointManager, Keras 2's weights and backups end up here."""
    _watch(vars(module)["TrackableSaver"], "save", of_saver)


def watch_graph_saver(module: ModuleType) -> None:
    """Estimator and other graphs of TensorFlow 1."""
    _watch(vars(module)["Saver"], "save", of_graph_saver, path=2)


def watch_models(module: ModuleType) -> None:
    """Keras's own files: .keras, .weights.h5, SavedModel."""
    for name in ("save", "save_weights"):
        _watch(vars(module)["Model"], name, of_model)


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
