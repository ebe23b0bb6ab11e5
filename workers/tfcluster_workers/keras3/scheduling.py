"""Has `fit` of Keras 3 schedule its steps on the ClusterCoordinator of a ParameterServerStrategy.

Keras 3's trainer iterates over a distributed dataset in the chief, which TensorFlow refuses under
this strategy. Here the workers read the data and execute the steps of `fit`; the chief executes
`evaluate`, `predict` and the `…_on_batch` methods itself, on all the data that they are given.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from tfcluster_workers.hooks.one_writer import has_coordinator
from tfcluster_workers.keras3.patches import (
    OtherKerasError,
    Patches,
    defining_class,
    find_function,
    uses_name,
)
from tfcluster_workers.keras3.release import Keras3Error

_DATA = "_distributed_dataset"


def add_to(patches: Patches, keras: Any) -> None:
    """Patch the trainer and its iterator. Raises OtherKerasError."""
    trainer = defining_class(keras.Model, "make_train_function")
    module = sys.modules[trainer.__module__]
    classes = (value for value in vars(module).values() if isinstance(value, type))
    readers = (each for each in classes if "_get_iterator" in vars(each))
    iterator = next((e for e in readers if uses_name(vars(e)["_get_iterator"], _DATA)), None)
    if iterator is None:
        raise OtherKerasError(f"no _get_iterator of {module.__name__} uses {_DATA}")
    _patch_iterator(patches, iterator)
    _patch_build(patches, trainer)
    reduction = find_function(module, takes=("values", "strategy", "reduction"))
    if reduction is None:
        raise OtherKerasError(f"no function of {module.__name__} reduces values")
    _patch_function(patches, trainer, "train", getattr(module, reduction))
    _patch_function(patches, trainer, "test", None)
    owner = defining_class(keras.Model, "_get_metrics_result_or_logs")

    @patches.replaces(owner, "_get_metrics_result_or_logs", takes=["self", "logs"])
    def _get_metrics_result_or_logs(original: Any, self: Any, logs: Any) -> Any:
        return original(self, logs.fetch() if isinstance(logs, RemoteLogs) else logs)


class RemoteLogs(dict[str, Any]):
    """The logs of a scheduled step: empty for callbacks of a batch, which must not wait for it."""

    def __init__(self, coordinator: Any, remote: Any) -> None:
        super().__init__()
        self._coordinator, self._remote = coordinator, remote

    def fetch(self) -> Any:
        """Wait for all scheduled steps; return the logs of this one."""
        self._coordinator.join()
        return self._remote.fetch()


class _Batches:
    """The batches of an epoch iterator of Keras, for the workers or for the chief."""

    def __init__(self, epochs: Any) -> None:
        self._epochs = epochs

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        return next(self.on_chief)

    @functools.cached_property
    def on_chief(self) -> Any:
        return iter(self._epochs.data_adapter.get_tf_dataset())

    def on_workers(self) -> Any:
        """Return an iterator over each worker's own copy of the data, the same for all epochs.

        The copy repeats: which worker executes how many steps of an epoch is not known.
        """
        import tensorflow as tf

        epochs = self._epochs
        if not hasattr(epochs, "_on_workers"):
            if epochs.num_batches is None:
                raise Keras3Error(
                    "fit under ParameterServerStrategy needs steps_per_epoch, because the size of"
                    " the data is not known"
                )
            data, strategy = epochs.data_adapter.get_tf_dataset(), epochs._distribute_strategy
            if not isinstance(data, tf.distribute.DistributedDataset):
                data = strategy.experimental_distribute_dataset(data.repeat())
            coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
            epochs._on_workers = iter(coordinator.create_per_worker_dataset(data))
        return epochs._on_workers


def _patch_iterator(patches: Patches, iterator: Any) -> None:
    @patches.replaces(iterator, "_get_iterator", takes=["self"])
    def _get_iterator(original: Any, self: Any) -> Any:
        return _Batches(self) if has_coordinator(self._distribute_strategy) else original(self)


def _patch_build(patches: Patches, trainer: Any) -> None:
    """Build the model from the specs of the data, which the chief need not be able to read."""
    takes = ["self", "iterator", "data_batch"]

    @patches.replaces(trainer, "_maybe_symbolic_build", takes=takes)
    def build(original: Any, self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        if iterator is None or not has_coordinator(self.distribute_strategy):
            return original(self, iterator=iterator, data_batch=data_batch)
        return original(self, data_batch=iterator.data_adapter.get_tf_dataset().element_spec)


def _patch_function(patches: Patches, trainer: Any, kind: str, reduce: Any) -> None:
    """Have the function for training schedule its steps, and that for testing run in the chief."""

    @patches.replaces(trainer, f"make_{kind}_function", takes=["self", "force"])
    def make_function(original: Any, self: Any, force: bool = False) -> Any:
        made = original(self, force)
        run = getattr(self, f"{kind}_function")
        if not has_coordinator(self.distribute_strategy) or hasattr(run, "_takes_batches"):
            return made
        schedule = _scheduler(self, reduce) if kind == "train" else None

        def function(batches: Any) -> Any:
            if not isinstance(batches, _Batches):
                return run(batches)
            return schedule(batches) if schedule else run(batches.on_chief)

        vars(function)["_takes_batches"] = True
        setattr(self, f"{kind}_function", function)
        return made if made is None else function


def _scheduler(model: Any, reduce: Any) -> Any:
    """Return a function that schedules one call of `train_step`, or `steps_per_execution`."""
    import tensorflow as tf
    from tensorflow.python.distribute.sharded_variable import ShardedVariable

    strategy, step = model.distribute_strategy, model.train_step
    if model.run_eagerly:
        raise Keras3Error("run_eagerly does not work under ParameterServerStrategy: leave it out")
    if any(isinstance(getattr(v, "_value", v), ShardedVariable) for v in model.variables):
        raise Keras3Error(
            "Keras 3 cannot train the variables that a variable_partitioner has split: leave it"
            " out, or set keras.version to 2 (tf_keras)"
        )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def steps(iterator: Any) -> Any:
        for _ in range(model.steps_per_execution):
            logs = strategy.run(step, args=(next(iterator),))
        return reduce(logs, strategy, "auto")

    traced = tf.function(steps, reduce_retracing=True, autograph=False)
    return lambda batches: RemoteLogs(
        coordinator, coordinator.schedule(traced, args=(batches.on_workers(),))
    )
