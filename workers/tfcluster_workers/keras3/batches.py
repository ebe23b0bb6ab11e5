"""Uneven shares of a batch count by their size, as they do for one worker.

Keras 3 divides each replica's mean loss by the number of replicas (losses/loss.py), so that of a
last batch of 5 the single example of one worker weighs as much as the 4 of another; a worker whose
share is empty turns the moving averages of BatchNormalization into NaN. Here the loss of a replica
is scaled by its share of the examples of the whole batch, which is one in N where shares are even.
Releases to 3.7 do not scale at all: there the gradients are scaled.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MEANS = {"sum_over_batch_size", "mean", "mean_with_sample_weight"}
_here = threading.local()
"""`share`, a scalar tensor, inside a replica's step; `of_gradients`: they are yet to be scaled."""


def share() -> Any:
    """This replica's share of the whole batch, from 0 to 1; None outside a step of Keras."""
    return getattr(_here, "share", None)


def share_of_gradients() -> Any:
    """What gradients are still to be multiplied by; None where the loss was scaled."""
    return share() if getattr(_here, "of_gradients", False) else None


def patch(trainer: Any) -> None:
    """Mend the scaling of losses and the moments of an empty share."""
    from keras.src.layers import BatchNormalization
    from keras.src.losses import loss
    from keras.src.trainers.compile_utils import CompileLoss

    trainer.scales_losses = hasattr(loss, "scale_loss_for_distribution")
    if trainer.scales_losses:
        _patch_scaling(loss)
    _patch_reduction(loss, scales=trainer.scales_losses)
    _patch_moments(BatchNormalization)
    _patch_losses_of_outputs(CompileLoss)


def weight_shares(model: Any, name: str) -> None:
    """Have the model's `train_step` or `test_step` know this replica's share of the batch."""
    step = getattr(model, name)
    if hasattr(step, "_knows_its_share"):
        return
    own = _is_keras_own(model, name)

    @functools.wraps(step)
    def step_of_a_share(data: Any) -> Any:
        with _known(_share_of(data), of_gradients=own and not _scales_losses()):
            return step(data)

    vars(step_of_a_share)["_knows_its_share"] = True
    vars(model)[name] = step_of_a_share  # past Keras's tracking of attributes


def _is_keras_own(model: Any, name: str) -> bool:
    return str(getattr(type(model), name).__module__).startswith("keras.src.")


def _scales_losses() -> bool:
    from keras.src.backend.tensorflow import trainer

    return bool(trainer.scales_losses)


@contextmanager
def _known(share: Any, *, of_gradients: bool) -> Iterator[None]:
    before = getattr(_here, "share", None), getattr(_here, "of_gradients", False)
    _here.share, _here.of_gradients = share, of_gradients
    try:
        yield
    finally:
        _here.share, _here.of_gradients = before  # those of a step around this one


def _share_of(data: Any) -> Any:
    """One small collective, which runs beside the forward pass; None in no replica's step."""
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    first = next((part for part in _flat(data) if part is not None), None)
    if replica is None or first is None:
        return None
    count = tf.cast(_count(first), tf.float32)
    return tf.math.divide_no_nan(count, replica.all_reduce(tf.distribute.ReduceOp.SUM, count))


def _flat(data: Any) -> list[Any]:
    from keras.src import tree

    return list(tree.flatten(data))


def _count(part: Any) -> Any:
    """Examples in a tensor, be it dense, sparse or ragged."""
    import tensorflow as tf

    if isinstance(part, tf.SparseTensor):
        return part.dense_shape[0]
    return part.nrows() if isinstance(part, tf.RaggedTensor) else tf.shape(part)[0]


def _patch_scaling(loss: Any) -> None:
    scale, unscale = loss.scale_loss_for_distribution, loss.unscale_loss_for_distribution

    @functools.wraps(scale)
    def scale_loss_for_distribution(value: Any) -> Any:
        import tensorflow as tf

        known = share()
        if known is None:
            return scale(value)
        # A mean over no example is NaN, and counts nothing.
        return tf.math.multiply_no_nan(value, tf.cast(known, value.dtype))

    @functools.wraps(unscale)
    def unscale_loss_for_distribution(value: Any) -> Any:
        import tensorflow as tf

        known = share()
        if known is None:
            return unscale(value)
        return tf.math.divide_no_nan(value, tf.cast(known, value.dtype))

    loss.scale_loss_for_distribution = scale_loss_for_distribution
    loss.unscale_loss_for_distribution = unscale_loss_for_distribution


def _patch_reduction(loss: Any, *, scales: bool) -> None:
    """A loss function may return the mean itself, which Keras hands on as it is, unscaled.

    Where gradients are scaled, it is only that of an empty share that must not be NaN.
    """
    original = loss.reduce_values
    signature = inspect.signature(original)

    @functools.wraps(original)
    def reduce_values(*args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        reduced, known = original(*args, **kwargs), share()
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        if known is None or given.arguments["reduction"] not in _MEANS:
            return reduced
        if not scales:
            return tf.math.multiply_no_nan(reduced, tf.cast(known > 0, reduced.dtype))
        is_scalar = tuple(given.arguments["values"].shape) == ()
        return loss.scale_loss_for_distribution(reduced) if is_scalar else reduced

    loss.reduce_values = reduce_values


def _patch_moments(layer: Any) -> None:
    original = layer._moments

    @functools.wraps(original)
    def _moments(self: Any, inputs: Any, mask: Any) -> Any:
        import tensorflow as tf

        mean, variance = original(self, inputs, mask)
        if share() is None or inputs.shape[0] is not None:
            return mean, variance
        is_empty = tf.equal(tf.shape(inputs)[0], 0)
        return (
            tf.where(is_empty, tf.cast(self.moving_mean, mean.dtype), mean),
            tf.where(is_empty, tf.cast(self.moving_variance, variance.dtype), variance),
        )

    layer._moments = _moments


def _patch_losses_of_outputs(compile_loss: Any) -> None:
    """The loss of each output: Keras lets a batch of unknown size count as 1, however shared."""
    original = compile_loss.call

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if share() is not None:
            for metric in getattr(self, "metrics", ()):
                _weigh_by_share(metric)
        return original(self, *args, **kwargs)

    compile_loss.call = call


def _weigh_by_share(metric: Any) -> None:
    update = metric.update_state
    if hasattr(update, "_knows_its_share"):
        return

    @functools.wraps(update)
    def update_state(values: Any, sample_weight: Any = None) -> Any:
        return update(values, share() if sample_weight is None else sample_weight)

    vars(update_state)["_knows_its_share"] = True
    vars(metric)["update_state"] = update_state
