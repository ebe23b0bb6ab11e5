"""Reports what the training of a task rests on: whom it meets, what it restored, what it trains.

Each fact is fine by itself. The launcher compares those of all tasks (supervision.alerts): workers
that never meet train alone, and workers that restored different checkpoints diverge.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
from types import ModuleType
from typing import Any

from tfcluster_workers import context, doubts, reporting
from tfcluster_workers.hooks import cluster_check, first_batches, jax_cluster
from tfcluster_workers.hooks.replacing import replaces

_restored: list[str] = []
_has_begun = False
_way = ""
"""The way this task trains, if that knows no other tasks: see `reporting.trains`."""


def note_gradient() -> None:
    """Report what this task has restored, and that it trains: it has computed a gradient.

    At the first one all restores are over. Cheap enough to call for each.
    """
    global _has_begun
    reporting.note_work()
    if _has_begun:
        return
    _has_begun = True
    doubts.watch()
    if not context.is_evaluator():
        reporting.restored(_restored)
        reporting.trains(_way)
        reporting.doubt_over("data")  # it may read its data inside of a tf.function
        first_batches.choose()


def note_fit(model: Any) -> None:
    """Note, before Keras's `fit`, whether its model is known to a strategy that joined others."""
    global _way
    if cluster_check.is_outside_scope(model):
        _way = "outside_scope"
    elif jax_cluster.is_outside_distribution():
        _way = "outside_distribution"


def watch_mirrored_strategy(module: ModuleType) -> None:
    """Watch MirroredStrategy, which spans the devices of one machine."""

    @replaces(vars(module)["MirroredStrategy"], "__init__")
    def construct(stock: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        global _way
        _way = _way or "mirrored"
        stock(self, *args, **kwargs)


def watch_resolver(module: ModuleType) -> None:
    """Watch TFConfigClusterResolver: a script that makes one knows that there are other tasks."""

    @replaces(vars(module)["TFConfigClusterResolver"], "__init__")
    def construct(stock: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        caller = sys._getframe(2).f_globals.get("__name__", "")  # above `replaced`
        if not caller.startswith("tensorflow."):
            reporting.meets_peers()


def watch_collectives(module: ModuleType) -> None:
    """Watch the launcher of collectives: what goes through it is summed over all workers."""
    launcher = vars(module)["CollectiveReplicaLauncher"]
    for name in ("all_reduce", "batch_all_reduce", "all_reduce_indexed_slices", "all_gather"):
        _watch_collective(launcher, name)


def _watch_collective(launcher: Any, name: str) -> None:
    @replaces(launcher, name)
    def reduce(stock: Any, *args: Any, **kwargs: Any) -> Any:
        reporting.reduces()
        return stock(*args, **kwargs)


def watch_graph_gradients(module: ModuleType) -> None:
    """Watch `tf.gradients`, by which Estimator and TensorFlow 1 train."""

    @replaces(module, "_GradientsHelper")
    def gradients(stock: Any, *args: Any, **kwargs: Any) -> Any:
        found = stock(*args, **kwargs)
        note_gradient()
        return found


# -- JAX and Horovod ------------------------------------------------------------------------


def watch_jax(module: ModuleType) -> None:
    """Watch `jax.grad` and `jax.value_and_grad`: a script makes such a function to train."""
    for name in ("grad", "value_and_grad"):
        _watch_jax_gradient(module, name)


def _watch_jax_gradient(module: ModuleType, name: str) -> None:
    @replaces(module, name)
    def make(stock: Any, *args: Any, **kwargs: Any) -> Any:
        global _way
        caller = sys._getframe(2).f_globals.get("__name__", "")  # above `replaced`
        if not caller.startswith("jax."):
            _way = _way or "jax"
            note_gradient()
        return stock(*args, **kwargs)


def watch_horovod(module: ModuleType) -> None:
    """Watch `hvd.init`: a process that `horovodrun` has not started knows no other."""

    @replaces(vars(module)["HorovodBasics"], "init")
    def init(stock: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        global _way
        result = stock(self, *args, **kwargs)
        if self.size() > 1:
            reporting.meets_peers()
        else:
            _way = "horovod"
        return result


# -- restores -------------------------------------------------------------------------------


def watch_checkpoints(module: ModuleType) -> None:
    """Watch `tf.train.Checkpoint`, and what else restores such a checkpoint."""

    @replaces(vars(module)["TrackableSaver"], "restore")
    def restore(stock: Any, self: Any, save_path: Any, *args: Any, **kwargs: Any) -> Any:
        status = stock(self, save_path, *args, **kwargs)
        _note_restored(save_path)
        return status


def watch_graph_saver(module: ModuleType) -> None:
    """Watch TensorFlow 1's `Saver`, by which Estimator restores its `model_dir`."""

    @replaces(vars(module)["Saver"], "restore")
    def restore(stock: Any, self: Any, sess: Any, save_path: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(self, sess, save_path, *args, **kwargs)
        _note_restored(save_path)
        return result


def watch_models(module: ModuleType) -> None:
    """Watch `Model.load_weights` of any Keras."""

    @replaces(vars(module)["Model"], "load_weights")
    def load_weights(stock: Any, self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(self, filepath, *args, **kwargs)
        _note_restored(filepath)
        return result


def watch_saved_models(module: ModuleType) -> None:
    """Watch `keras.models.load_model` of any Keras."""

    @replaces(module, "load_model")
    def load_model(stock: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        model = stock(filepath, *args, **kwargs)
        _note_restored(filepath)
        return model


def _note_restored(path: Any) -> None:
    if _has_begun or not path or context.is_evaluator():
        return
    try:
        name = _name_of(os.fsdecode(path))
    except Exception as error:  # a path of another kind
        return reporting.note(f"tfcluster cannot name what was restored: {error!r}")
    if not _restored:
        atexit.register(_report_untrained)
    if name not in _restored:
        _restored.append(name)


def _report_untrained() -> None:
    """Report the restores of a task that had nothing left to train."""
    if not _has_begun:
        reporting.restored(_restored)


def _name_of(path: str) -> str:
    """Return a name that tasks with the same state agree on, wherever each keeps it.

    That is the last part of the path; BackupAndRestore of Keras 3 always uses the same name, and
    keeps the epoch beside it.
    """
    folder, name = os.path.split(path.rstrip("/"))
    if name == "variables":  # of a SavedModel
        return os.path.basename(os.path.dirname(folder))
    notes = os.path.join(folder, "training_metadata.json")
    if name == "latest.weights.h5" and os.path.exists(notes):
        with open(notes, encoding="utf-8") as file:
            noted = json.load(file)
        return f"backup-{int(noted['epoch'])}.{int(noted.get('batch') or 0)}"
    return re.sub(r"[\x00-\x1f]", "?", name)
