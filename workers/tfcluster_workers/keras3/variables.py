"""Patches the variables of Keras 3 so that metrics and moving averages cover all workers.

Since 3.10 a metric's variables are summed over the replicas when they are read. Before, each worker
has its own (to 3.6), or they are summed with every update (3.7 to 3.9), which counts earlier values
N times. To 3.6 each worker also has its own moving averages of BatchNormalization.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfcluster_workers.keras3 import release
from tfcluster_workers.keras3.patches import Patches, defining_class


def add_to(patches: Patches, keras: Any) -> None:
    """Have older releases make the variables that 3.10 makes."""
    if hasattr(keras.Variable, "_map_synchronization"):
        return
    _make_with(patches, keras.metrics.Metric, "add_variable", _summed_on_read)
    if not hasattr(keras.Variable, "_map_aggregation"):
        _make_with(patches, keras.layers.Layer, "add_weight", _mean_of_replicas)
    _use_creator_when_built(patches, defining_class(keras.Variable, "_deferred_initialize"))


def _spans_workers() -> bool:
    import tensorflow as tf

    return release.spans_workers(tf.distribute.get_strategy())


def _summed_on_read(make: Any, **kwargs: Any) -> Any:
    import tensorflow as tf

    if not _spans_workers():
        return make(**kwargs)
    kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
    kwargs["aggregation"] = tf.VariableAggregation.SUM
    return make(**kwargs)


def _mean_of_replicas(make: Any, **kwargs: Any) -> Any:
    """Make a variable with the replicas' mean; the optimizer keeps trained variables equal."""
    import tensorflow as tf

    if kwargs.get("trainable") is False and _spans_workers():
        kwargs["aggregation"] = tf.VariableAggregation.MEAN
    return make(**kwargs)


def _make_with(patches: Patches, owner: Any, name: str, creator: Any) -> None:
    @patches.replaces(owner, name)
    def made(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        with tf.variable_creator_scope(creator):
            variable = original(self, *args, **kwargs)
        vars(variable)["_creator"] = creator  # for a variable whose value is made later
        return variable


def _use_creator_when_built(patches: Patches, variable: Any) -> None:
    """Have a variable of a model that is not built yet use its creator when it is built."""

    @patches.replaces(variable, "_deferred_initialize", takes=["self"])
    def _deferred_initialize(original: Any, self: Any) -> Any:
        import tensorflow as tf

        creator = vars(self).get("_creator")
        if creator is None:
            return original(self)
        with tf.variable_creator_scope(creator):
            return original(self)


def require_shared_metrics(model: Any) -> None:
    """Raise Keras3Error for a metric whose variables are this worker's own, as Keras 2 does."""
    import tensorflow as tf

    for metric in _single_metrics(model.metrics):
        values = [getattr(variable, "value", variable) for variable in metric.variables]
        if not all(isinstance(value, tf.distribute.DistributedValues) for value in values):
            raise release.Keras3Error(
                f"the metric `{metric.name}` was made outside strategy.scope(), so each worker"
                " would count only its own share: make it inside the scope"
            )


def _single_metrics(metrics: Any) -> Iterator[Any]:
    """Yield all metrics: Keras holds those passed to `compile` in one metric."""
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        yield from [metric] if inner is None else _single_metrics(inner)
