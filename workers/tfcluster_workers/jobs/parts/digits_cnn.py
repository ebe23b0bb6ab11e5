"""The small CNN that `keras_mnist` and `parameter_server` train and `evaluate` loads."""

from __future__ import annotations

from typing import Any


def build(keras: Any, *, shape: tuple[int, ...] = (28, 28, 1), seed: int = 0) -> Any:
    """Return Conv 32×3, max-pool, dense 64, dense 10; a `seed` gives the same initial weights."""

    def initializer(layer: int) -> Any:
        return keras.initializers.GlorotUniform(seed=seed * 10 + layer)

    layers = keras.layers
    return keras.Sequential(
        [
            layers.InputLayer(shape),
            layers.Conv2D(32, 3, activation="relu", kernel_initializer=initializer(1)),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu", kernel_initializer=initializer(2)),
            # Logits stay float32 under mixed precision.
            layers.Dense(10, kernel_initializer=initializer(3), dtype="float32"),
        ]
    )


def compile_for_training(keras: Any, model: Any, *, steps_per_execution: int = 1) -> None:
    """Compile with Adam, cross-entropy over logits, and accuracy."""
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
