"""Replaces the functions of Keras 3's TensorFlow trainer that fail on several workers.

`reduce_per_replica` takes the mean of scalar logs over axis 0 (keras#20585, tensorflow#72388).
`_maybe_symbolic_build` passes a PerReplica batch, or a dict of them (keras#20329), to
`Strategy.reduce`, which accepts neither. `steps_per_execution` puts a step into `tf.cond` as a
function of its own, where collectives find no instance key (cross_device_utils.py captures it from
the outer function, which an inner function cannot reach).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from tfcluster_workers.hooks import fit_position
from tfcluster_workers.keras3 import batches, release, variables
from tfcluster_workers.keras3.patches import (
    OtherKerasError,
    Patches,
    defining_class,
    find_function,
    require_function,
)
from tfcluster_workers.keras3.release import spans_workers

_STEPS = {"make_train_function": "train_step", "make_test_function": "test_step"}
_TAKES_REDUCTION = ("values", "strategy", "reduction")
_TAKES_BATCH = ("self", "iterator", "data_batch")


def add_to(patches: Patches, keras: Any) -> None:
    """Replace the functions of the class that trains, and of its module."""
    trainer = defining_class(keras.Model, "make_train_function")
    module = sys.modules[trainer.__module__]
    # Not known by its fault: a release that fixes it is replaced all the same.
    reduction = find_function(module, takes=_TAKES_REDUCTION, uses=["experimental_local_results"])
    if reduction is None:
        raise OtherKerasError(
            f"no function of {module.__name__} takes ({', '.join(_TAKES_REDUCTION)}) and uses"
            " experimental_local_results"
        )
    _patch_reduction(patches, module, reduction)
    _patch_epochs(patches, trainer, module)
    for name, step in _STEPS.items():
        _patch_step(patches, trainer, name, step)
    # Since 3.7 one method makes the functions for training and for testing.
    maker = find_function(trainer, takes=["self", "step_function"], uses=[reduction])
    if maker is not None:
        _patch_executions(patches, trainer, maker)
    else:
        require_function(trainer, "make_train_function", uses=[reduction])
    builder = find_function(trainer, takes=_TAKES_BATCH, uses=["_symbolic_build"])
    if builder is not None:
        _patch_build(patches, trainer, builder)
    elif release.numbers(str(keras.__version__)) >= (3, 5):  # before, the first step builds a model
        raise OtherKerasError(
            f"no method of {module.__name__}.{trainer.__name__} takes"
            f" ({', '.join(_TAKES_BATCH)}) and builds the model"
        )


def _patch_epochs(patches: Patches, trainer: Any, module: Any) -> None:
    """Have `fit` go on in the middle of an epoch; require what `_first_batch` reads, too."""
    read = ("_distributed_dataset", "data_adapter")
    classes = (value for value in vars(module).values() if isinstance(value, type))
    iterator = next((each for each in classes if find_function(each, uses=read)), None)
    if iterator is None:
        raise OtherKerasError(f"no iterator of {module.__name__} has {' and '.join(read)}")
    names = ("_enumerate_iterator", "enumerate_epoch")  # the first one since 3.5
    name = next((each for each in names if hasattr(iterator, each)), names[0])
    patches.replaces(iterator, name, takes=["self"])(fit_position.enumerate_steps)
    owner = defining_class(trainer, "_get_metrics_result_or_logs")
    logs = patches.replaces(owner, "_get_metrics_result_or_logs", takes=["self", "logs"])
    logs(fit_position.keras_3_logs)


def _patch_reduction(patches: Patches, module: Any, name: str) -> None:
    @patches.replaces(module, name)
    def reduce_per_replica(original: Any, values: Any, strategy: Any, reduction: str) -> Any:
        from keras.src import tree

        if reduction not in {"auto", "mean"} or not spans_workers(strategy):
            return original(values, strategy, reduction)
        flat = _mean_over_replicas(strategy, tree.flatten(values))
        return tree.pack_sequence_as(values, flat)


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


def _patch_build(patches: Patches, trainer: Any, name: str) -> None:
    @patches.replaces(trainer, name)
    def _maybe_symbolic_build(
        original: Any, self: Any, iterator: Any = None, data_batch: Any = None
    ) -> Any:
        from keras.src import tree

        if not spans_workers(self._distribute_strategy):
            return original(self, iterator=iterator, data_batch=data_batch)
        if iterator is not None:
            data_batch = _first_batch(tree, iterator, self._distribute_strategy)
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


def _patch_executions(patches: Patches, trainer: Any, name: str) -> None:
    @patches.replaces(trainer, name, uses=["steps_per_execution"])
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


def _patch_step(patches: Patches, trainer: Any, name: str, step: str) -> None:
    """Have the function that makes a step check the metrics, and weigh the workers' shares."""

    @patches.replaces(trainer, name, takes=["self"], uses=[step])
    def made(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if spans_workers(self.distribute_strategy):
            variables.require_shared_metrics(self)
            batches.weight_shares(self, step)
        return original(self, *args, **kwargs)
