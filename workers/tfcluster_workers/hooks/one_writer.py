"""Decides which of several workers may write a path, and where the others write instead.

Every worker must save, since saving may reduce variables across the workers, but only the chief's
files are needed, with or without a shared file system. As in TensorFlow's tutorials and in Keras 2
(tf_keras/src/distribute/distributed_file_utils.py), the others write into `workertemp_<task>` and
remove it.
"""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable

from tfcluster_workers import context
from tfcluster_workers.hooks import jax_cluster
from tfcluster_workers.hooks.replacing import replaces

Method = Callable[..., Any]
"""A method of a class to be patched, or its replacement."""


TEMPORARY = "workertemp_"
"""The start of the names of temporary folders, which are never gathered."""
JAX = "jax"
"""Stands in for a strategy where JAX has joined several processes."""


def strategy_of(model: Any) -> Any:
    """Return the strategy of a Keras model, `JAX`, or None."""
    if jax_cluster.keras_backend() == "jax":
        return JAX if jax_cluster.process_count() > 1 else None
    return getattr(model, "distribute_strategy", None)


def has_peers(strategy: Any) -> bool:
    """Return whether `strategy` (or None) runs this program in two or more processes."""
    if strategy is JAX:
        return True
    if strategy is None or not strategy.extended._in_multi_worker_mode():
        return False
    cluster = strategy.cluster_resolver.cluster_spec().as_dict()
    return len(cluster.get("chief", ())) + len(cluster.get("worker", ())) > 1


def has_coordinator(strategy: Any) -> bool:
    """Return whether `strategy` is a ParameterServerStrategy of TensorFlow 2."""
    return bool(getattr(strategy, "_should_use_with_coordinator", False))


def may_write(strategy: Any) -> bool:
    """Return whether this process's files are kept: it is the chief, or has no peers."""
    if strategy is JAX:
        return jax_cluster.process_index() == 0
    return not has_peers(strategy) or bool(strategy.extended.should_checkpoint)


def scope(strategy: Any) -> AbstractContextManager[Any]:
    """Return the scope in which variables are made; JAX needs none."""
    return nullcontext() if strategy is JAX else strategy.scope()


def temporary_name(strategy: Any) -> str:
    """Return this task's folder name, such as `workertemp_worker_1`, which is never gathered."""
    if strategy is JAX:
        return f"{TEMPORARY}{context.current().task.replace(':', '_')}"
    resolver = strategy.cluster_resolver
    return f"{TEMPORARY}{resolver.task_type}_{resolver.task_id}"


def temporary_path(path: str, strategy: Any) -> str:
    """Return the path to write to instead of `path`: the same name, in a temporary subfolder."""
    folder, name = os.path.split(path.rstrip("/"))
    return os.path.join(folder, temporary_name(strategy), name)


def make_parent_folder(path: str) -> None:
    """Make the folder of `path`: Keras would fail if a peer made it after Keras's own check."""
    folder = os.path.dirname(path)
    if folder and "://" not in folder:
        os.makedirs(folder, exist_ok=True)


def remove(folder: str) -> None:
    """Remove a temporary folder with its contents, if it exists."""
    if "://" not in folder:
        shutil.rmtree(folder, ignore_errors=True)
        return
    import tensorflow as tf

    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)


def replace_method(owner: Any, name: str, replacement: Method, alone: Method | None = None) -> None:
    """Replace `owner.name` by `replacement(strategy, stock, self, …)`, once.

    `stock` is the original method. It still runs unless several workers train, or else `alone`,
    which takes the same arguments.
    """
    if getattr(owner, name, None) is None:
        return

    @replaces(owner, name)
    def method(stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
        if name == "set_model":
            model = args[0] if args else kwargs.get("model")
        else:  # Keras 2's WorkerTrainingState has `_model`; a custom loop may have no model
            model = getattr(self, "model", None) or getattr(self, "_model", None)
        strategy = strategy_of(model)
        if not has_peers(strategy):
            if alone is None:
                return stock(self, *args, **kwargs)
            return alone(strategy, stock, self, *args, **kwargs)
        return replacement(strategy, stock, self, *args, **kwargs)


def begin_csv(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replace `CSVLogger.on_train_begin` of any Keras: workers that may not write write nowhere."""
    if may_write(strategy):
        return stock(self, *args, **kwargs)
    filename, self.filename = self.filename, os.devnull
    try:
        return stock(self, *args, **kwargs)
    finally:
        self.filename = filename
