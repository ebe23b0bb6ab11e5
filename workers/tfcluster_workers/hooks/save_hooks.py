"""Reports the checkpoints that a script saves with TensorFlow or Keras, each with its step.

The faults that `--chaos` injects while a checkpoint is being written are injected here.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Callable, TypeVar

from tfcluster_workers import chaos, context, reporting
from tfcluster_workers.hooks import one_writer, weights
from tfcluster_workers.hooks.replacing import replaces

T = TypeVar("T")

_NAMES = ("global_step", "step", "train_step", "iterations")
"""Usual names of the step variable that a training loop saves (TensorFlow's guide "Training
checkpoints": `tf.train.Checkpoint(step=tf.Variable(1), optimizer=…)`)."""
_COUNT = re.compile(r"-(\d+)$")


def step_of_saver(saver: Any, path: str) -> int | None:
    """Return the step of the objects in a `tf.train.Checkpoint`, else the last reported step.

    The objects' step comes first: a coordinator's reports lag behind its ps tasks' counter.
    """
    view = saver._graph_view
    return _or_reported(_step_among(view.children(view.root)))


def step_of_graph_saver(saver: Any, path: str) -> int | None:
    """Return the global step that `tf.compat.v1.train.Saver` puts into the file name, or None."""
    match = _COUNT.search(path)
    return int(match.group(1)) if match else None


def step_of_model(model: Any, path: str) -> int | None:
    """Return the steps of a Keras model's optimizer, else the last reported step."""
    return _or_reported(iterations_of(_optimizer_of(model)))


def load_of_saver(saver: Any) -> str | None:
    """Return Python that restores a `tf.train.Checkpoint` into variables with the saved names.

    With other names than those of the save, TensorFlow restores nothing, in silence.
    """
    view = saver._graph_view
    names = [name for name in view.children(view.root) if name != "save_counter"]
    if isinstance(view.root, _checkpoint_classes()):
        saved = ", ".join(f"{name}={name}" for name in names)
    else:
        saved, names = "model", []  # `Checkpoint(model)`
    if not all(map(str.isidentifier, names)):
        return None
    return f"tf.train.Checkpoint({saved}).restore({{path}}).expect_partial()"


def _checkpoint_classes() -> tuple[type, ...]:
    from tensorflow.python.checkpoint import checkpoint

    return checkpoint.Checkpoint, checkpoint.CheckpointV1


def load_of_model(model: Any) -> str:
    """Return Python that loads what `Model.save` has saved, with the Keras of the model."""
    modules = [base.__module__.partition(".")[0] for base in type(model).__mro__]
    keras = "tf_keras" if "tf_keras" in modules else "keras"
    return f"{keras}.models.load_model({{path}})"


def load_of_weights(model: Any) -> str:
    """Return Python that loads what `Model.save_weights` has saved."""
    return "model.load_weights({path})"


def _step_among(parts: Mapping[str, Any]) -> int | None:
    """Return the value of a variable with a usual name, else the most steps of any optimizer."""
    named = [value for name in _NAMES if (value := value_of(parts.get(name))) is not None]
    if named:
        return named[0]
    owners = [part for each in parts.values() for part in (each, _optimizer_of(each))]
    counts = [count for owner in owners if (count := iterations_of(owner)) is not None]
    return max(counts, default=None)


def _optimizer_of(owner: Any) -> Any:
    try:
        return getattr(owner, "optimizer", None)
    except Exception:  # a property of the script's own model
        return None


def iterations_of(optimizer: Any) -> int | None:
    """Return the steps that an optimizer of any Keras has taken; None if unknown."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # for a LossScaleOptimizer
    # `iterations` of the legacy optimizers would create the variable; an attribute does not. Before
    # 3.5 that of Keras 3 has no underscore.
    attribute = getattr(optimizer, "__dict__", {}).get("iterations")
    return value_of(getattr(optimizer, "_iterations", attribute))


def value_of(variable: Any) -> int | None:
    """Return the value of a scalar variable; None for anything else.

    A variable that is reduced across the workers on read gives None: all workers would have to
    read it.
    """
    synchronization = getattr(getattr(variable, "synchronization", None), "name", "")
    if variable is None or synchronization == "ON_READ":
        return None
    try:
        return int(variable.numpy())
    except Exception:  # a graph, a table, a ps that is gone
        return None


def _or_reported(step: int | None) -> int | None:
    return reporting.meter.last_step if step is None else step


POLL_S = 0.0005
"""Seconds between two checks for the files of a checkpoint."""

_saving = threading.local()
"""`depth`: whether this thread is saving. Keras's `save_weights` writes a `tf.train.Checkpoint`,
and that must count as one save."""
StepOf = Callable[[Any, str], "int | None"]
"""A function from the object that saves, and the path, to the step."""
LoadOf = Callable[[Any], "str | None"]
"""A function from the object that saves to Python that loads the file (`reporting.saw_saved`)."""


def watch_checkpoints(module: ModuleType) -> None:
    """Watch the saves of tf.train.Checkpoint, CheckpointManager, Keras 2's weights and backups."""
    _watch(vars(module)["TrackableSaver"], "save", step_of_saver, load_of_saver)


def watch_graph_saver(module: ModuleType) -> None:
    """Watch the saves of Estimator and other TensorFlow 1 graphs."""
    _watch(vars(module)["Saver"], "save", step_of_graph_saver, lambda saver: None, path=2)


def watch_models(module: ModuleType) -> None:
    """Watch the saves in Keras's own formats: .keras, .weights.h5, SavedModel."""
    _watch(vars(module)["Model"], "save", step_of_model, load_of_model, is_model=True)
    _watch(vars(module)["Model"], "save_weights", step_of_model, load_of_weights)


def watch_saved_models(module: ModuleType) -> None:
    """Watch `tf.saved_model.save` and the exports of Keras, to know whether they stay."""

    @replaces(module, "save_and_return_nodes")
    def save_and_return_nodes(
        stock: Callable[..., Any], obj: Any, export_dir: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = stock(obj, export_dir, *args, **kwargs)
        _note_model(export_dir)
        return result


_TEMPORARY = re.compile(r"tmp\w{8}|workertemp_.*")
"""Names of folders that the module tempfile, TensorFlow's guide and `saving.temporary` choose."""
_model: str | None = None
"""The newest model that this task, the chief, has saved outside its checkpoint directory."""


def _note_model(path: Any) -> None:
    global _model
    try:
        found = absolute_path(os.fspath(path))
        is_temporary = any(map(_TEMPORARY.fullmatch, found.split("/")))
        if "://" in found or is_temporary or _is_checkpoint(found):
            return
        if context.current().is_chief and not context.is_evaluator():
            if _model is None:
                atexit.register(_report_model)
            _model = found
    except Exception as error:  # reporting must never break a save
        reporting.note(f"tfcluster could not note a saved model: {error!r}")


def _report_model() -> None:
    """Report the newest model as the script ends; one that it has moved or removed is left out."""
    if _model is not None and os.path.exists(_model):
        reporting.saved_model(_model)


def _watch(
    owner: Any,
    name: str,
    step_of: StepOf,
    load_of: LoadOf,
    *,
    path: int = 1,
    is_model: bool = False,
) -> None:
    if chaos.has_save_faults():
        chaos.watch_saves()

    @replaces(owner, name)
    def save(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if getattr(_saving, "depth", 0):
            return stock(*args, **kwargs)
        names = ("file_prefix", "filepath", "save_path")
        paths = [*args[path : path + 1], *(kwargs[key] for key in names if key in kwargs)]
        target = str(paths[0]) if paths else ""
        _saving.depth = 1
        try:
            result = _save_with_fault(lambda: stock(*args, **kwargs), target)
        finally:
            _saving.depth = 0
        # A graph's Saver adds the step to the name and returns that name.
        _report(args[0], result if path == 2 else target, step_of, load_of)
        if is_model:
            _note_model(target)
        weights.check_saved()
        return result


def _report(saver: Any, path: Any, step_of: StepOf, load_of: LoadOf) -> None:
    """Report what the chief has saved; the other workers' folders are removed."""
    try:
        this_task = context.current()
        if not (isinstance(path, str) and path and this_task.is_chief) or context.is_evaluator():
            return
        step, absolute = _ask(lambda: step_of(saver, path)), absolute_path(path)
        if _is_checkpoint(absolute):
            reporting.saw_saved(absolute, step, _ask(lambda: load_of(saver)))
        else:
            reporting.saved_elsewhere(step)
    except Exception as error:  # reporting must never break a save
        reporting.note(f"tfcluster could not report a save: {error!r}")


def report_backup(folder: str, step: int | None) -> None:
    """Report that a backup of Keras is complete in `folder`.

    Of one outside the checkpoint directory `_report` has already reported the weights.
    """
    absolute = absolute_path(folder)
    if _is_checkpoint(os.path.join(absolute, "")):  # or it is that directory
        reporting.saved(absolute, step=step)


def absolute_path(path: str) -> str:
    """Return `path` as it is reported: absolute, or a URL as it is."""
    return path if "://" in path else os.path.abspath(path)


def _ask(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception:  # an object of the script's own; the save is reported without the fact
        return None


def _is_checkpoint(path: str) -> bool:
    # The variable, not `context`: a Path would break a URL.
    return _is_within(path, os.environ.get("TFCLUSTER_CHECKPOINT_DIR", ""))


def _is_within(path: str, folder: str) -> bool:
    if not folder or "://" in folder:
        return bool(folder) and path.startswith(folder.rstrip("/") + "/")
    places = os.path.abspath(folder), os.path.realpath(folder)
    return any(path.startswith(os.path.join(place, "")) for place in places)


def _save_with_fault(save: Callable[[], Any], target: str) -> Any:
    """Save; inject a due fault as soon as a part of the checkpoint is on the disk.

    If that cannot be seen, or the save is too fast, the fault is injected right after the save.
    """
    fault = chaos.begin_save()
    if fault is None:
        return save()
    if not chaos.works_in_any_thread(fault):
        chaos.inject(fault)
    watch = _FaultTrigger(target, lambda: chaos.inject(fault))
    watch.start()
    try:
        return save()
    finally:
        watch.fire()
        watch.join()


class _FaultTrigger(threading.Thread):
    """A thread that fires once: when the files of a checkpoint change, or when `fire` is called."""

    def __init__(self, target: str, fire: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._folder, self._stem = os.path.split(os.path.abspath(target))
        self._before = self._list_files()
        self._fire = fire
        self._lock = threading.Lock()
        self._has_fired = False

    def run(self) -> None:
        pause = threading.Event()
        while not self._has_fired and self._list_files() <= self._before:
            pause.wait(POLL_S)
        self.fire()

    def fire(self) -> None:
        with self._lock:
            if not self._has_fired:
                self._has_fired = True
                self._fire()

    def _list_files(self) -> set[tuple[str, int]]:
        """Return paths and times of this checkpoint's files.

        TensorFlow starts in `_temp`, `saving.whole_files` in a temporary folder beside the target.
        """
        folders, found = [self._folder], set()
        while folders:
            with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith(self._stem):
                        found.add((entry.path, entry.stat().st_mtime_ns))
                    elif entry.name.startswith(one_writer.TEMPORARY) and entry.is_dir():
                        folders.append(entry.path)
        return found
