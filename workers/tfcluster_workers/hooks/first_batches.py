"""Reports a fingerprint of the first two batches that a task trains on.

The launcher compares them: workers that read the same batches do the same work several times.
TensorFlow shards what `experimental_distribute_dataset` distributes, so those datasets are left
alone. The others are `distribute_datasets_from_function`, the policy `OFF`, and datasets that a
script iterates over itself. Of the first two kinds an iterator's batches are seen in a `map`, by an
iterator's first pass only.
"""

from __future__ import annotations

import hashlib
import threading
from types import ModuleType
from typing import Any

from tfcluster_workers import doubts, reporting
from tfcluster_workers.hooks import cluster_check, weights
from tfcluster_workers.hooks.replacing import replaces

BATCHES = 2
"""One could be equal everywhere by chance, as with generated data that never changes."""
MAX_BYTES = 65_536
"""The bytes of each tensor that are compared."""

_NAME = "_tfcluster_first_batches"
_state = threading.local()
"""`looks`: this thread makes the iterator of a dataset that TensorFlow does not shard."""
_latest: list[str] | None = None
"""The fingerprints of the newest iterator: `choose` assumes that it feeds the training."""
_chosen: list[str] | None = None
_is_over = False


def choose() -> None:
    """Report the batches of the newest iterator, as soon as there are two."""
    global _chosen
    _chosen = _latest
    _report()


def _report() -> None:
    global _is_over
    if _is_over or _chosen is None or len(_chosen) < BATCHES:
        return
    _is_over = True
    if len({*_chosen}) == BATCHES:
        reporting.first_batches(_chosen)


def _note(found: list[str], tensors: list[Any]) -> None:
    if len(found) < BATCHES:
        found.append(fingerprint(tensors))
        _report()


def fingerprint(tensors: list[Any]) -> str:
    """Return a digest of eager tensors: of types, shapes, and the first bytes of each."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        array = tensor.numpy()
        digest.update(f"{array.dtype} {array.shape}".encode())
        flat = array.reshape(-1)
        if array.dtype.kind == "O":  # strings
            digest.update(b"\0".join(bytes(each) for each in flat[:1024])[:MAX_BYTES])
        else:
            digest.update(flat[: MAX_BYTES // max(1, array.itemsize)].tobytes())
    return digest.hexdigest()


def watch_iterators(module: ModuleType) -> None:
    """Watch the iterators that a script advances itself (iterator_ops).

    To advance one is also a sign of life: an evaluation in a script's loop reports no step.
    """
    from tensorflow.python.framework import ops

    eager = ops.EagerTensor

    @replaces(vars(module)["OwnedIterator"], "__next__")
    def advance(stock: Any, self: Any) -> Any:
        global _latest
        element = _next_of(stock, self)
        if not _is_over:
            try:
                tensors = _comparable(element)
                if tensors and all(isinstance(tensor, eager) for tensor in tensors):
                    found = vars(self).setdefault(_NAME, [])
                    if _chosen is None:
                        _latest = found
                    _note(found, tensors)
            except Exception as error:
                _give_up(error)
        return element


def watch_distributed(module: ModuleType) -> None:
    """Watch the iterators of a strategy's datasets (input_lib)."""

    @replaces(vars(module)["DistributedIteratorBase"], "__next__")
    def advance(stock: Any, self: Any) -> Any:
        return _next_of(stock, self)

    _look_into(vars(module)["DistributedDatasetsFromFunction"], lambda dataset: True)
    _look_into(vars(module)["DistributedDataset"], _is_unsharded)

    @replaces(module, "_create_iterators_per_worker")
    def create(stock: Any, datasets: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_state, "looks", False) and not _is_over and cluster_check.has_joined():
            try:
                datasets = [_looked_into(dataset) for dataset in datasets]
            except Exception as error:
                _give_up(error)
        return stock(datasets, *args, **kwargs)


def _next_of(stock: Any, iterator: Any) -> Any:
    """Return the next element, and note that there is one, or that there never was one."""
    try:
        element = stock(iterator)
    except StopIteration:
        doubts.note_no_data()
        raise
    reporting.alive()
    reporting.note_work()
    doubts.note_data()
    weights.check_if_due()
    return element


def _look_into(distributed: Any, must_look: Any) -> None:
    @replaces(distributed, "__iter__")
    def iterate(stock: Any, self: Any) -> Any:
        global _latest
        try:
            _state.looks = must_look(self)
            if _chosen is None and not _state.looks:
                _latest = None  # what a script iterated over before, as in `adapt`, feeds no step
        except Exception as error:
            _give_up(error)
        try:
            return stock(self)
        finally:
            _state.looks = False


def _is_unsharded(distributed: Any) -> bool:
    original = getattr(distributed, "_original_dataset", None)
    if original is None:  # an argument of a `tf.function`
        return False
    options = original.options()
    return bool(options.experimental_distribute.auto_shard_policy.name == "OFF")


def _looked_into(dataset: Any) -> Any:
    """Return `dataset` with the same elements, the first of which are seen on their way."""
    global _latest
    import tensorflow as tf

    found: list[str] = []
    _latest = found if _chosen is None else _latest

    def see(*tensors: Any) -> None:
        try:
            _note(found, list(tensors))
        except Exception as error:
            _give_up(error)

    def look(index: Any, element: Any) -> Any:
        tensors = _comparable(element)
        if not tensors:
            return element

        def call() -> Any:
            with tf.control_dependencies([tf.py_function(see, tensors, ())]):
                return tf.constant(0)

        tf.cond(index < BATCHES, call, lambda: tf.constant(0))
        return element

    return dataset.enumerate().map(look)


def _comparable(element: Any) -> list[Any]:
    """Return the tensors of an element, without those that have no value, as of a dataset."""
    from tensorflow.python.util import nest

    tensors = nest.flatten(element, expand_composites=True)
    return [tensor for tensor in tensors if tensor.dtype.name not in ("variant", "resource")]


def _give_up(error: Exception) -> None:
    global _is_over
    if not _is_over:
        _is_over = True
        reporting.note(f"tfcluster cannot compare the first batches: {error!r}")
