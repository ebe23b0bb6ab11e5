"""Mixed precision as the spec asks for it (`keras.precision`), for `fit` and loops of one's own.

Layers compute in half the bits and keep float32 weights. float16 has so narrow a range that small
gradients become 0: the loss is scaled up before, the gradients down again after the backward pass
(Micikevicius et al. 2018, "Mixed Precision Training"). `compile` does that by itself; a loop of
one's own calls `optimizer_for`, `scale_loss` and `apply_gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfcluster_workers import context, reporting

SLOW = (
    "mixed_float16 on a CPU works, but is slower than float32: CPUs compute float16 step by step. "
    "It pays on GPUs from compute capability 7.0; mixed_bfloat16 on TPUs and CPUs with AMX."
)


def apply(keras: Any) -> None:
    """Set the spec's `keras.precision` for the layers made from now on.

    mixed_float16 without a GPU gets a note for the user.
    """
    asked = context.setting("precision")
    if not asked:
        return
    keras.mixed_precision.set_global_policy(asked)
    if asked == "mixed_float16" and not _has_gpu():
        reporting.note(SLOW)


def _has_gpu() -> bool:
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def describe(model: Any) -> str:
    """What the layers of `model` really do: `computes in float16, keeps float32 variables`."""
    layers = [layer for layer in model.layers if layer.trainable_variables]
    return (
        f"computes in {_names(layers, 'compute_dtype')}, "
        f"keeps {_names(layers, 'variable_dtype')} variables"
    )


def _names(layers: Sequence[Any], attribute: str) -> str:
    return "/".join(dict.fromkeys(str(getattr(layer, attribute)) for layer in layers))


def optimizer_for(keras: Any, optimizer: Any) -> Any:
    """`optimizer`, in a LossScaleOptimizer where layers compute in float16."""
    if keras.mixed_precision.global_policy().compute_dtype != "float16":
        return optimizer
    return keras.mixed_precision.LossScaleOptimizer(optimizer)


def scale_loss(optimizer: Any, loss: Any) -> Any:
    """`loss` for the backward pass; Keras 2 and 3 have different names for it."""
    for name in ("get_scaled_loss", "scale_loss"):
        if hasattr(optimizer, name):
            return getattr(optimizer, name)(loss)
    return loss


def apply_gradients(optimizer: Any, gradients: Any, variables: Any) -> None:
    """Apply gradients of a `scale_loss`ed loss. Keras 3's optimizers scale them back themselves."""
    if hasattr(optimizer, "get_unscaled_gradients"):
        gradients = optimizer.get_unscaled_gradients(gradients)
    optimizer.apply_gradients(zip(gradients, variables))


def build(optimizer: Any, model: Any) -> None:
    """Make the optimizer's variables now, so that a checkpoint finds them to put its values in."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for one in dict.fromkeys((inner, optimizer)):
        if hasattr(one, "build"):
            one.build(model.trainable_variables)
