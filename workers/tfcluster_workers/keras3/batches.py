"""Patches Keras 3 so that each replica's share of a batch counts by its number of examples.

Keras 3 divides each replica's mean loss by the number of replicas (losses/loss.py). So in a last
batch of 5 the single example of one worker counts as much as the 4 of another, and a worker with an
empty share turns the moving averages of BatchNormalization into NaN. Here a replica's loss is
scaled by its share of the examples of the global batch, which is 1/N if the shares are even.
Releases to 3.7 do not scale the loss at all: there the gradients are scaled.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tfcluster_workers.hooks import step_clocks
from tfcluster_workers.keras3.patches import Patches

_MEANS = {"sum_over_batch_size", "mean", "mean_with_sample_weight"}
_replica = threading.local()
"""The state of a replica's step: `share` (scalar tensor), `of_gradients` (scale gradients?)."""


def share() -> Any:
    """Return this replica's share of the global batch, from 0 to 1; None outside a step."""
    return getattr(_replica, "share", None)


def share_of_gradients() -> Any:
    """Return the factor that gradients must be multiplied by; None if the loss was scaled."""
    return share() if getattr(_replica, "of_gradients", False) else None


def add_to(patches: Patches, keras: Any) -> None:
    """Patch the scaling of losses and the moments of an empty share."""
    from keras.src.losses import loss
    from keras.src.trainers.compile_utils import CompileLoss

    if _scales_losses():
        _patch_scaling(patches, loss)
    _patch_reduction(patches, loss)
    _patch_moments(patches, keras.layers.BatchNormalization)
    _patch_losses_of_outputs(patches, CompileLoss)


def weight_shares(model: Any, name: str) -> None:
    """Have the model's `train_step` or `test_step` run with this replica's share of the batch."""
    step = getattr(model, name)
    if hasattr(step, "_uses_share"):
        return
    is_keras_own = str(getattr(type(model), name).__module__).startswith("keras.src.")

    @functools.wraps(step)
    def step_with_share(data: Any) -> Any:
        with _with_share(_share_of(data), of_gradients=is_keras_own and not _scales_losses()):
            return step(data)

    vars(step_with_share)["_uses_share"] = True
    vars(model)[name] = step_with_share  # bypasses Keras's tracking of attributes


def _scales_losses() -> bool:
    from keras.src.losses import loss

    return hasattr(loss, "scale_loss_for_distribution")


@contextmanager
def _with_share(share: Any, *, of_gradients: bool) -> Iterator[None]:
    before = getattr(_replica, "share", None), getattr(_replica, "of_gradients", False)
    _replica.share, _replica.of_gradients = share, of_gradients
    try:
        yield
    finally:
        _replica.share, _replica.of_gradients = before  # steps may be nested


def _share_of(data: Any) -> Any:
    """Return the share of `data`, with one small collective that runs during the forward pass.

    None outside a replica's step.
    """
    import tensorflow as tf
    from keras.src import tree

    replica = tf.distribute.get_replica_context()
    first = next((part for part in tree.flatten(data) if part is not None), None)
    if replica is None or first is None:
        return None
    count = tf.cast(_count(first), tf.float32)
    return tf.math.divide_no_nan(count, replica.all_reduce(tf.distribute.ReduceOp.SUM, count))


def _count(part: Any) -> Any:
    """Return the number of examples in a dense, sparse or ragged tensor."""
    import tensorflow as tf

    if isinstance(part, tf.SparseTensor):
        return part.dense_shape[0]
    return part.nrows() if isinstance(part, tf.RaggedTensor) else tf.shape(part)[0]


def _patch_scaling(patches: Patches, loss: Any) -> None:
    uses = ["num_replicas_in_sync"]

    @patches.replaces(loss, "scale_loss_for_distribution", takes=["value"], uses=uses)
    def scale_loss_for_distribution(scale: Any, value: Any) -> Any:
        import tensorflow as tf

        known = share()
        if known is None:
            return scale(value)
        step_clocks.count_wait(value, known)
        # The mean over no examples is NaN; its weight is 0.
        return tf.math.multiply_no_nan(value, tf.cast(known, value.dtype))

    @patches.replaces(loss, "unscale_loss_for_distribution", takes=["value"], uses=uses)
    def unscale_loss_for_distribution(unscale: Any, value: Any) -> Any:
        import tensorflow as tf

        known = share()
        if known is None:
            return unscale(value)
        return tf.math.divide_no_nan(value, tf.cast(known, value.dtype))


def _patch_reduction(patches: Patches, loss: Any) -> None:
    """Scale the mean that a loss function returns itself, which Keras passes on unscaled.

    If gradients are scaled instead, only the mean of an empty share is replaced: it is NaN.
    """
    signature, scales = inspect.signature(loss.reduce_values), _scales_losses()
    uses = ["scale_loss_for_distribution"] if scales else []

    @patches.replaces(loss, "reduce_values", takes=["values", "reduction"], uses=uses)
    def reduce_values(original: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        reduced, known = original(*args, **kwargs), share()
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if known is None or bound.arguments["reduction"] not in _MEANS:
            return reduced
        if not scales:
            return tf.math.multiply_no_nan(reduced, tf.cast(known > 0, reduced.dtype))
        is_scalar = tuple(bound.arguments["values"].shape) == ()
        return loss.scale_loss_for_distribution(reduced) if is_scalar else reduced


def _patch_moments(patches: Patches, layer: Any) -> None:
    @patches.replaces(layer, "_moments", takes=["self", "inputs", "mask"])
    def _moments(original: Any, self: Any, inputs: Any, mask: Any) -> Any:
        import tensorflow as tf

        mean, variance = original(self, inputs, mask)
        if share() is None or inputs.shape[0] is not None:
            return mean, variance
        is_empty = tf.equal(tf.shape(inputs)[0], 0)
        return (
            tf.where(is_empty, tf.cast(self.moving_mean, mean.dtype), mean),
            tf.where(is_empty, tf.cast(self.moving_variance, variance.dtype), variance),
        )


def _patch_losses_of_outputs(patches: Patches, compile_loss: Any) -> None:
    """Weigh the loss of each output by share: Keras counts batches of unknown size as 1."""

    @patches.replaces(compile_loss, "call")
    def call(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if share() is not None:
            for metric in getattr(self, "metrics", ()):
                _weigh_by_share(metric)
        return original(self, *args, **kwargs)


def _weigh_by_share(metric: Any) -> None:
    update = metric.update_state
    if hasattr(update, "_uses_share"):
        return

    @functools.wraps(update)
    def update_state(values: Any, sample_weight: Any = None) -> Any:
        return update(values, share() if sample_weight is None else sample_weight)

    vars(update_state)["_uses_share"] = True
    vars(metric)["update_state"] = update_state
