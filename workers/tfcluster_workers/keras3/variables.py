"""Metrics count for all workers, in every release, and say so where they cannot.

Since 3.10 a metric's variables are summed over the replicas when they are read. Before, they are
each worker's own (to 3.6) or summed with every update (3.7 to 3.9, which counts the past N times),
and the moving averages of BatchNormalization are each worker's own to 3.6.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from tfcluster_workers.keras3 import release


def patch() -> None:
    """Make such variables as 3.10 does, in releases that do not."""
    from keras.src.backend.tensorflow.core import Variable
    from keras.src.layers.layer import Layer
    from keras.src.metrics.metric import Metric

    if hasattr(Variable, "_map_synchronization"):
        return
    _make_with(Metric, "add_variable", _summed_on_read)
    if not hasattr(Variable, "_map_aggregation"):
        _make_with(Layer, "add_weight", _mean_of_replicas)
    _remember(Variable)


def _spans_workers() -> bool:
    import tensorflow as tf

    from tfcluster_workers.keras3 import release

    return release.spans_workers(tf.distribute.get_strategy())


def _summed_on_read(make: Any, **kwargs: Any) -> Any:
    import tensorflow as tf

    if not _spans_workers():
        return make(**kwargs)
    kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
    kwargs["aggregation"] = tf.VariableAggregation.SUM
    return make(**kwargs)


def _mean_of_replicas(make: Any, **kwargs: Any) -> Any:
    """Of what is not trained: the optimizer itself updates the rest alike everywhere."""
    import tensorflow as tf

    if kwargs.get("trainable") is False and _spans_workers():
        kwargs["aggregation"] = tf.VariableAggregation.MEAN
    return make(**kwargs)


def _make_with(owner: Any, name: str, creator: Any) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        with tf.variable_creator_scope(creator):
            variable = original(self, *args, **kwargs)
        vars(variable)["_creator"] = creator  # for one that is made later
        return variable

    setattr(owner, name, made)


def _remember(variable: Any) -> None:
    """A variable of a model that is yet to be built is made when it is."""
    original = variable._deferred_initialize

    @functools.wraps(original)
    def _deferred_initialize(self: Any) -> Any:
        import tensorflow as tf

        creator = vars(self).get("_creator")
        if creator is None:
            return original(self)
        with tf.variable_creator_scope(creator):
            return original(self)

    variable._deferred_initialize = _deferred_initialize


def require_shared_metrics(model: Any) -> None:
    """Refuse a metric whose variables are this worker's alone, as Keras 2 does."""
    import tensorflow as tf

    for metric in _single_metrics(model.metrics):
        values = [getattr(variable, "value", variable) for variable in metric.variables]
        if not all(isinstance(value, tf.distribute.DistributedValues) for value in values):
            raise release.Keras3Error(
                f"the metric `{metric.name}` was made outside strategy.scope(), so each worker"
                " would count its own share only: make it inside"
            )


def _single_metrics(metrics: Any) -> Iterator[Any]:
    """What `compile` was given is one metric of many to Keras."""
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        yield from [metric] if inner is None else _single_metrics(inner)
