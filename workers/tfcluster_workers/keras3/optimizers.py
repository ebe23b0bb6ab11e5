"""Patches Keras 3 so that gradients are summed over the workers before they are used.

Keras 3 sums them last (backend/tensorflow/optimizer.py): each worker clips its own gradients, and
in LossScaleOptimizer each worker checks its own for overflows, so one worker may skip the step in
which the others wait for it forever. Keras 2 summed first, too.
"""

from __future__ import annotations

from typing import Any

from tfcluster_workers.keras3 import batches, release
from tfcluster_workers.keras3.patches import Patches, defining_class


def add_to(patches: Patches, keras: Any) -> None:
    """Patch every optimizer of Keras to sum first."""
    optimizers = keras.optimizers
    for optimizer in (optimizers.Optimizer, optimizers.LossScaleOptimizer):
        _sum_first(patches, defining_class(optimizer, "apply"))
    _skip_second_sum(patches, defining_class(optimizers.Optimizer, _SUM))


def _is_replica_of_many() -> bool:
    import tensorflow as tf

    if tf.distribute.get_replica_context() is None:
        return False
    return release.spans_workers(tf.distribute.get_strategy())


_SUM = "_all_reduce_sum_gradients"


def _sum_first(patches: Patches, owner: Any) -> None:
    @patches.replaces(owner, "apply", takes=["self", "grads", "trainable_variables"])
    def apply(original: Any, self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if not _is_replica_of_many() or hasattr(self, "_gets_sums"):
            return original(self, grads, trainable_variables)
        _refuse_conditions(self)
        inner = getattr(self, "inner_optimizer", None)
        if inner is not None:
            _refuse_conditions(inner)
            vars(inner)["_gets_sums"] = True
        grads = list(grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        return original(self, _summed(grads, variables or [None] * len(grads)), variables)


def _summed(grads: list[Any], variables: list[Any]) -> list[Any]:
    """Sum gradients over all replicas, but not None nor those that replace a variable (fp8)."""
    import tensorflow as tf

    indices = [
        index
        for index, (grad, variable) in enumerate(zip(grads, variables))
        if grad is not None and not getattr(variable, "overwrite_with_gradient", False)
    ]
    if not indices:
        return grads
    shares = [_scaled(grads[index]) for index in indices]
    replica = tf.distribute.get_replica_context()
    for index, total in zip(indices, replica.all_reduce(tf.distribute.ReduceOp.SUM, shares)):
        grads[index] = total
    return grads


def _scaled(grad: Any) -> Any:
    import tensorflow as tf

    share = batches.share_of_gradients()
    if share is None:
        return grad
    if isinstance(grad, tf.IndexedSlices):
        values = grad.values * tf.cast(share, grad.dtype)
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return grad * tf.cast(share, grad.dtype)


def _refuse_conditions(optimizer: Any) -> None:
    """Raise Keras3Error for options that update mirrored variables in a `cond`, which fails."""
    for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
        if getattr(optimizer, name, None):
            raise release.Keras3Error(
                f"{name} of Keras 3 does not work under a tf.distribute strategy: leave it out,"
                " or set keras.version to 2"
            )


def _skip_second_sum(patches: Patches, owner: Any) -> None:
    @patches.replaces(owner, _SUM, takes=["self", "grads_and_vars"], uses=["all_reduce"])
    def _all_reduce_sum_gradients(original: Any, self: Any, grads_and_vars: Any) -> Any:
        if _is_replica_of_many():
            return list(grads_and_vars)  # `apply` has summed them
        return original(self, grads_and_vars)
