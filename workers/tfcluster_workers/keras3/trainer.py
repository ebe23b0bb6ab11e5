"""Replaces the functions of Keras 3's TensorFlow trainer that fail on several workers.

`reduce_per_replica` takes the mean of scalar logs over axis 0 (keras#20585, tensorflow#72388).
`_maybe_symbolic_build` passes a PerReplica batch, or a dict of them (keras#20329), to
`Strategy.reduce`, which accepts neither. `steps_per_execution` puts a step into `tf.cond` as a
function of its own, where collectives find no instance key (cross_device_utils.py captures it from
the outer function, which an inner function cannot reach).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from tfcluster_workers.hooks.replacing import replaces
from tfcluster_workers.keras3 import batches, variables
from tfcluster_workers.keras3.release import spans_workers


def find_unknown_function(trainer: Any) -> str:
    """Return the first function to replace that is not as expected; empty if all are."""
    known: dict[str, tuple[Any, tuple[str, ...], set[str]]] = {
        "reduce_per_replica": (
            getattr(trainer, "reduce_per_replica", None),
            ("values", "strategy", "reduction"),
            {"MEAN", "reduce", "_collective_all_reduce_multi_worker"},
        ),
        "TensorFlowTrainer._maybe_symbolic_build": (
            # Keras 3.3 has none: it builds a model in its first step
            getattr(trainer.TensorFlowTrainer, "_maybe_symbolic_build", _absent),
            ("self", "iterator", "data_batch"),
            {"MEAN", "DistributedValues", "_symbolic_build"},
        ),
    }
    for name, (function, parameters, names_used) in known.items():
        if function is _absent:
            continue
        if function is None or tuple(inspect.signature(function).parameters) != parameters:
            return name
        if not names_used <= set(_names_used(inspect.unwrap(function).__code__)):
            return name
    return ""


def _absent() -> None:
    """Stand for a function that a release does not have."""


def _names_used(code: CodeType) -> Iterator[str]:
    """Yield the names and strings in a function's byte code, including its inner functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_used(constant)
        elif isinstance(constant, str):
            yield constant


def patch(trainer: Any) -> None:
    """Replace the functions in the module `trainer`."""
    _patch_reduction(trainer)
    if hasattr(trainer.TensorFlowTrainer, "_make_function"):  # Keras 3.7 and newer
        _patch_executions(trainer.TensorFlowTrainer)
    if hasattr(trainer.TensorFlowTrainer, "_maybe_symbolic_build"):
        _patch_build(trainer)


def _patch_reduction(trainer: Any) -> None:
    @replaces(trainer, "reduce_per_replica")
    def reduce_per_replica(original: Any, values: Any, strategy: Any, reduction: str) -> Any:
        if reduction not in {"auto", "mean"} or not spans_workers(strategy):
            return original(values, strategy, reduction)
        flat = _mean_over_replicas(strategy, trainer.tree.flatten(values))
        return trainer.tree.pack_sequence_as(values, flat)


def _mean_over_replicas(strategy: Any, values: list[Any]) -> list[Any]:
    """Return the mean of each value; float32 scalars are reduced together in one collective."""
    import tensorflow as tf

    def is_scalar(value: Any) -> bool:
        return isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype == tf.float32

    means = list(values)
    scalars = [index for index, value in enumerate(values) if is_scalar(value)]
    if scalars:
        stacked = tf.stack([values[index] for index in scalars])
        reduced = tf.unstack(strategy.reduce("MEAN", stacked, axis=None), num=len(scalars))
        for index, mean in zip(scalars, reduced):
            means[index] = mean
    for index in set(range(len(values))) - set(scalars):
        means[index] = strategy.reduce("MEAN", values[index], axis=None)
    return means


def _patch_build(trainer: Any) -> None:
    @replaces(trainer.TensorFlowTrainer, "_maybe_symbolic_build")
    def _maybe_symbolic_build(
        original: Any, self: Any, iterator: Any = None, data_batch: Any = None
    ) -> Any:
        if not spans_workers(self._distribute_strategy):
            return original(self, iterator=iterator, data_batch=data_batch)
        if iterator is not None:
            data_batch = _first_batch(trainer.tree, iterator, self._distribute_strategy)
        with self._distribute_strategy.scope():
            return self._symbolic_build(data_batch=data_batch)


def _first_batch(tree: Any, iterator: Any, strategy: Any) -> Any:
    """Return a batch of this task's first replica, or only its specs; all replicas' shapes agree.

    Specs are preferred, because reading a batch drops an iterator, with side effects: a generator
    loses the batch, so that the workers, each with its own copy, are no longer in step, and a
    `cache` may be cut short (data/pipeline.py).
    """
    specs = tree.map_structure(
        lambda spec: getattr(spec, "_value_specs", (spec,))[0],
        iterator._distributed_dataset.element_spec,
    )
    of_generator = type(iterator.data_adapter).__name__ == "GeneratorDataAdapter"
    if of_generator or all(map(_has_static_shape, tree.flatten(specs))):
        return specs
    epoch = iterator.enumerate_epoch() if hasattr(iterator, "enumerate_epoch") else iterator
    for entry in epoch:
        batch = next(entry[-1])
        return tree.map_structure(lambda v: strategy.experimental_local_results(v)[0], batch)
    return None


def _has_static_shape(spec: Any) -> bool:
    """Return whether everything in `spec` but the batch size is known."""
    import tensorflow as tf

    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        return False
    return bool(spec.shape[1:].is_fully_defined())


def _patch_executions(owner: Any) -> None:
    @replaces(owner, "_make_function")
    def _make_function(original: Any, self: Any, step_function: Any) -> Any:
        one_step = original(self, step_function)
        if not spans_workers(self.distribute_strategy) or self.steps_per_execution == 1:
            return one_step
        return functools.partial(_execute, self, one_step, self.steps_per_execution)


def _execute(model: Any, one_step: Any, steps: int, iterator: Any) -> Any:
    """Run one execution step by step; callbacks and logs come once, as in Keras's own."""
    import tensorflow as tf

    if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
        return one_step(iterator)
    model.steps_per_execution = 1  # `one_step` reads it
    try:
        outputs = one_step(iterator)
        for _ in range(steps - 1):
            try:
                outputs = one_step(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                break  # the next execution reaches the end of the data, too
    finally:
        model.steps_per_execution = steps
    return outputs


def check_before_use(trainer: Any, require_patched: Callable[[], None]) -> None:
    """Have the module `trainer` refuse, before the first step, what fails on several workers.

    `require_patched` raises Keras3Error for a Keras that could not be patched.
    """
    owner = trainer.TensorFlowTrainer
    steps = {"make_train_function": "train_step", "make_test_function": "test_step"}
    for name in (*steps, "make_predict_function", "_maybe_symbolic_build"):
        if hasattr(owner, name):
            _check(owner, name, steps.get(name), require_patched)


def _check(owner: Any, name: str, step: str | None, require_patched: Callable[[], None]) -> None:
    @replaces(owner, name)
    def checked(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if spans_workers(self.distribute_strategy):
            require_patched()
            if step is not None:
                variables.require_shared_metrics(self)
                batches.weight_shares(self, step)
        return original(self, *args, **kwargs)
