"""Common features of Keras 3, each trained by all workers together, then by each worker alone.

    features.py [FEATURE…]

It is an ordinary script: it knows TF_CONFIG and nothing of tfcluster. It writes a line
`feature {…}` for each feature, with the numbers of the cluster and those of the same model without
a strategy.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

TASK = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
BATCH = 12


def batches(data: Any) -> Any:
    """Return global batches in a fixed order; each worker takes its share of each batch."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices(data).batch(BATCH).with_options(options)


def dense(size: int) -> Any:
    return keras.layers.Dense(size, kernel_initializer=keras.initializers.GlorotUniform(seed=size))


def compiled(model: Any, optimizer: Any, **options: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, **options)
    return model


def weights(model: Any) -> float:
    return sum(float(np.abs(value).sum()) for value in model.get_weights())


def dicts_weights_and_metrics(strategy: Any) -> dict[str, Any]:
    """Test dict inputs, sample weights, several metrics, half a last batch, order of predict."""
    count = 4 * BATCH + BATCH // 2
    random = np.random.RandomState(3)
    parts = {"left": random.rand(count, 4), "right": random.rand(count, 2)}
    labels = (parts["left"].sum(1) > parts["right"].sum(1) * 2).astype(np.int64)
    data = batches((parts, labels, 0.5 + random.rand(count)))
    with strategy.scope():
        given = {"left": keras.Input((4,), name="left"), "right": keras.Input((2,), name="right")}
        joined = keras.layers.Concatenate()([given["left"], given["right"]])
        model = keras.Model(given, dense(2)(dense(8)(joined)))
        entropy = keras.metrics.SparseCategoricalCrossentropy("entropy", from_logits=True)
        metrics = {"metrics": ["accuracy", entropy], "weighted_metrics": ["accuracy"]}
        compiled(model, keras.optimizers.Adam(0.01), **metrics)
    found = dict(model.fit(data, epochs=2, verbose=0).history)
    found["evaluated"] = model.evaluate(data, verbose=0, return_dict=True)
    found["predicted"] = model.predict(batches(parts), verbose=0).tolist()
    return found | {"weights": weights(model)}


class Interruption(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that ends training before its third epoch, like a fault."""

    class Happened(Exception):
        pass

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise self.Happened


def normalized(strategy: Any) -> Any:
    """Return a new model with batch normalization and always the same initial weights."""
    with strategy.scope():
        layers = [keras.Input((4,)), dense(8), keras.layers.BatchNormalization(), dense(2)]
        model = keras.Sequential(layers)
        return compiled(model, keras.optimizers.SGD(0.1), steps_per_execution=5)


def resumed_from_a_backup(strategy: Any) -> dict[str, Any]:
    """Test Keras callbacks on shared paths, batch normalization, 5 steps per execution.

    The two halves of each batch are equal, so each worker's statistics equal those of the batch.
    """
    half = np.random.RandomState(4).rand(10, 1, BATCH // 2, 4)
    images = np.repeat(half, 2, axis=1).reshape(-1, 4)
    data = batches((images, (images.sum(1) > 2).astype(np.int64)))
    shared = Path("shared" if strategy.num_replicas_in_sync > 1 else f"alone-{TASK}")
    stock = keras.callbacks

    def fit(*more: Any) -> tuple[Any, Any]:
        model = normalized(strategy)
        saved = stock.ModelCheckpoint(
            str(shared / "{epoch}.weights.h5"), save_weights_only=True, monitor="loss"
        )
        callbacks = [saved, stock.BackupAndRestore(str(shared / "backup")), *more]
        return model, model.fit(data, epochs=3, verbose=0, callbacks=callbacks).history

    try:
        fit(Interruption())
    except Interruption.Happened:
        model, history = fit()
    found = dict(history) | {"weights": weights(model)}
    if TASK == 0:
        fresh = normalized(tf.distribute.get_strategy())
        fresh.load_weights(shared / "3.weights.h5")
        found |= {"saved": weights(fresh)}
    return found


def dropout(strategy: Any) -> dict[str, Any]:
    """Test dropout: each worker draws its own masks, so only the workers agree with each other."""
    random = np.random.RandomState(5)
    data = batches((random.rand(4 * BATCH, 4), random.randint(0, 2, 4 * BATCH)))
    with strategy.scope():
        layers = [keras.Input((4,)), dense(8), keras.layers.Dropout(0.3, seed=1), dense(2)]
        model = compiled(keras.Sequential(layers), keras.optimizers.SGD(0.1))
    return dict(model.fit(data, epochs=2, verbose=0).history) | {"weights": weights(model)}


FEATURES = (dicts_weights_and_metrics, resumed_from_a_backup, dropout)


def main(names: list[str]) -> None:
    """Run every feature, or the named ones, under both strategies."""
    together = tf.distribute.MultiWorkerMirroredStrategy()
    alone = tf.distribute.get_strategy()
    for feature in FEATURES:
        if not names or feature.__name__ in names:
            found = {"together": feature(together), "alone": feature(alone)}
            row = {"feature": feature.__name__, "keras": keras.__version__, **found}
            print(f"feature {json.dumps(row)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
