"""The CNN that `custom_loop` trains: two convolutions, and an L2 penalty on its weights."""

from __future__ import annotations

from typing import Any


def build(keras: Any, *, shape: tuple[int, ...] = (28, 28, 1), seed: int = 0) -> Any:
    """Return Conv 32, pool, Conv 64, pool, dense 64, dense 10; `model.losses` is an L2 term."""

    def initializer(layer: int) -> Any:
        return keras.initializers.GlorotUniform(seed=seed * 10 + layer)

    layers = keras.layers
    return keras.Sequential(
        [
            layers.InputLayer(shape),
            layers.Conv2D(32, 3, activation="relu", kernel_initializer=initializer(1)),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu", kernel_initializer=initializer(2)),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(
                64,
                activation="relu",
                kernel_initializer=initializer(3),
                kernel_regularizer=keras.regularizers.L2(1e-4),
            ),
            # Logits stay float32 under mixed precision.
            layers.Dense(10, kernel_initializer=initializer(4), dtype="float32"),
        ]
    )
