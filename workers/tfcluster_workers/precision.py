"""Mixed precision as set in the spec (`keras.precision`), for `fit` and custom training loops.

Layers compute with 16 bits and keep float32 weights. The range of float16 is so narrow that small
gradients become 0, so the loss is scaled up before the backward pass and the gradients are scaled
down after it (Micikevicius et al. 2018, "Mixed Precision Training"). `compile` does that by itself;
a custom training loop calls `optimizer_for`, `scale_loss` and `apply_gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfcluster_workers import context, reporting

SLOW = (
    "mixed_float16 works on a CPU, but is slower than float32, since CPUs emulate float16. It is "
    "faster on GPUs from compute capability 7.0; mixed_bfloat16 is on TPUs and CPUs with AMX."
)


def apply(keras: Any) -> None:
    """Set the spec's `keras.precision` for the layers made from now on.

    mixed_float16 without a GPU gets a note for the user.
    """
    policy = context.setting("precision")
    if not policy:
        return
    keras.mixed_precision.set_global_policy(policy)
    if policy == "mixed_float16" and not _has_gpu():
        reporting.note(SLOW)


def _has_gpu() -> bool:
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def describe(model: Any) -> str:
    """Return what the layers of `model` do: `computes in float16, keeps float32 variables`."""
    layers = [layer for layer in model.layers if layer.trainable_variables]
    return (
        f"computes in {_names(layers, 'compute_dtype')}, "
        f"keeps {_names(layers, 'variable_dtype')} variables"
    )


def _names(layers: Sequence[Any], attribute: str) -> str:
    return "/".join(dict.fromkeys(str(getattr(layer, attribute)) for layer in layers))


def optimizer_for(keras: Any, optimizer: Any) -> Any:
    """Return `optimizer`, wrapped in a LossScaleOptimizer if layers compute in float16."""
    if keras.mixed_precision.global_policy().compute_dtype != "float16":
        return optimizer
    return keras.mixed_precision.LossScaleOptimizer(optimizer)


def scale_loss(optimizer: Any, loss: Any) -> Any:
    """Return the scaled `loss` for the backward pass; Keras 2 and 3 name the method differently."""
    for name in ("get_scaled_loss", "scale_loss"):
        if hasattr(optimizer, name):
            return getattr(optimizer, name)(loss)
    return loss


def apply_gradients(optimizer: Any, gradients: Any, variables: Any) -> None:
    """Apply the gradients of a scaled loss; Keras 3's optimizers scale them back themselves."""
    if hasattr(optimizer, "get_unscaled_gradients"):
        gradients = optimizer.get_unscaled_gradients(gradients)
    optimizer.apply_gradients(zip(gradients, variables))


def build(optimizer: Any, model: Any) -> None:
    """Create the optimizer's variables now, so that a checkpoint can restore them."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for each in dict.fromkeys((inner, optimizer)):
        if hasattr(each, "build"):
            each.build(model.trainable_variables)
