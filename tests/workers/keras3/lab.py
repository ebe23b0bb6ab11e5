"""The common parts of the cases: the strategy (made first), small data, network, training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH = 8
strategy = tf.distribute.MultiWorkerMirroredStrategy()
CASES: dict[str, Callable[[], dict[str, Any]]] = {}
Case = Callable[[], dict[str, Any]]


REFUSED: dict[str, Callable[[], None]] = {}
"""The cases that are refused on several workers."""


def refusal(function: Callable[[], None]) -> Callable[[], None]:
    REFUSED[function.__name__] = function
    return function


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def arrays(count: int = 40, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.RandomState(seed).rand(count, 6).astype("float32")
    return x, (x.sum(1) > 3).astype("int32")


def batches(count: int = 40, *, with_weights: bool = False) -> tf.data.Dataset:
    x, y = arrays(count)
    parts = (x, y, x[:, 0] * 2) if with_weights else (x, y)
    return tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)


def cross_entropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network(*hidden: Any) -> Any:
    dense = keras.layers.Dense(8, activation="tanh")
    return keras.Sequential([keras.Input((6,)), dense, *hidden, keras.layers.Dense(2)])


def compiled(model: Any, optimizer: Any = None, **options: Any) -> Any:
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    options = {"loss": cross_entropy(), "metrics": ["accuracy"]} | options
    model.compile(optimizer, **options)
    return model


def weight(model: Any) -> float:
    return sum(float(np.abs(value).sum()) for value in model.get_weights())


def trained(model: Any, *data: Any, **options: Any) -> dict[str, Any]:
    options = {"epochs": 2, "verbose": 0, "shuffle": False} | options
    history = model.fit(*data, **options).history
    return {**history, "weights": weight(model)}
