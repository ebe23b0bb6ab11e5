"""Which of several workers may write a path, and where the others write instead.

Every worker has to save (variables may be reduced between them in doing so), but only the chief's
files are wanted, whether the workers share a file system or not. TensorFlow's tutorials and Keras 2
(tf_keras/src/distribute/distributed_file_utils.py) have the others write into
`workertemp_<task>` and remove it; so does this.
"""

from __future__ import annotations

import functools
import os
import shutil
from typing import Any, Callable

Method = Callable[..., Any]


def has_peers(strategy: Any) -> bool:
    """Whether `strategy` (or None) makes two processes or more run this program together."""
    if strategy is None or not strategy.extended._in_multi_worker_mode():
        return False
    cluster = strategy.cluster_resolver.cluster_spec().as_dict()
    return len(cluster.get("chief", ())) + len(cluster.get("worker", ())) > 1


def may_write(strategy: Any) -> bool:
    """Whether what this process saves is what counts: the chief's, or that of a process alone."""
    return not has_peers(strategy) or bool(strategy.extended.should_checkpoint)


def temporary_name(strategy: Any) -> str:
    """`workertemp_worker_1`: nobody else's, and passed over by whoever gathers checkpoints."""
    resolver = strategy.cluster_resolver
    return f"workertemp_{resolver.task_type}_{resolver.task_id}"


def beside(path: str, strategy: Any) -> str:
    """Where to write instead of `path`: the same name, in a temporary folder of its folder."""
    folder, name = os.path.split(path.rstrip("/"))
    return os.path.join(folder, temporary_name(strategy), name)


def within(path: str, strategy: Any) -> str:
    """A temporary folder in the folder `path`."""
    return os.path.join(path, temporary_name(strategy))


def make_folder_of(path: str) -> None:
    """Keras looks for the folder, then makes it, and fails where a peer has made it meanwhile."""
    folder = os.path.dirname(path)
    if folder and "://" not in folder:
        os.makedirs(folder, exist_ok=True)


def remove(folder: str) -> None:
    """Remove a temporary folder with all that is in it, where there is one."""
    if "://" not in folder:
        shutil.rmtree(folder, ignore_errors=True)
        return
    import tensorflow as tf

    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)


def change(owner: Any, name: str, changed: Method) -> None:
    """Have `owner.name` do `changed(strategy, stock, self, …)` where several workers train.

    `stock` is the method as it was; it stays what is done in a process alone. Once.
    """
    stock = getattr(owner, name, None)
    if stock is None or hasattr(stock, "_tfcluster_stock"):
        return

    @functools.wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name == "set_model":
            model = args[0] if args else kwargs.get("model")
        else:  # Keras 2's WorkerTrainingState has `_model`; a hand-written loop may have none
            model = getattr(self, "model", None) or getattr(self, "_model", None)
        strategy = getattr(model, "distribute_strategy", None)
        if not has_peers(strategy):
            return stock(self, *args, **kwargs)
        return changed(strategy, stock, self, *args, **kwargs)

    method._tfcluster_stock = stock  # type: ignore[attr-defined]
    setattr(owner, name, method)


def begin_table(strategy: Any, stock: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """For `CSVLogger.on_train_begin` of any Keras: nothing is reduced there, so nothing is kept."""
    if may_write(strategy):
        return stock(self, *args, **kwargs)
    real, self.filename = self.filename, os.devnull
    try:
        return stock(self, *args, **kwargs)
    finally:
        self.filename = real
