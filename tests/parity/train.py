"""Trains one small model repeatedly in one process: SGD and Adam, full and partial batches.

`tfcluster run` starts it as 1, 2 or 3 workers. Every worker writes a line `parity {…}` for each
training: loss and metrics of every epoch, and the sum of |weights| at the end.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tfcluster_workers import context, keras_choice
from tfcluster_workers import strategy as strategies

EPOCHS = 3
GLOBAL_BATCH = 96
EXAMPLES = {"full": 5 * GLOBAL_BATCH, "partial": 4 * GLOBAL_BATCH + 36, "uneven": 421}
"""The sizes: full batches only; a last one of 36, which 2 and 3 divide; one of 37, which not."""
OPTIMIZERS = {"SGD": 0.1, "Adam": 0.003}


def examples(count: int) -> tuple[Any, Any]:
    """Return images of ten patterns with noise, and labels; they are the same on any machine."""
    random = np.random.RandomState(5)
    patterns = random.rand(10, 8, 8, 1)
    labels = random.randint(0, 10, count)
    images = patterns[labels] + 0.5 * random.randn(count, 8, 8, 1)
    return images.astype(np.float32), labels.astype(np.int64)


def batches(count: int) -> Any:
    """Return batches in a fixed order; every worker takes its share of each global batch."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices(examples(count))
    return data.batch(GLOBAL_BATCH).with_options(options)


def build(keras: Any, optimizer: str) -> Any:
    """Return a model: a convolution, a hidden layer, ten classes; fixed initial weights."""
    first = [keras.initializers.GlorotUniform(seed=seed) for seed in range(3)]
    model = keras.Sequential(
        [
            keras.layers.InputLayer((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu", kernel_initializer=first[0]),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="relu", kernel_initializer=first[1]),
            keras.layers.Dense(10, kernel_initializer=first[2]),
        ]
    )
    model.compile(
        optimizer=getattr(keras.optimizers, optimizer)(OPTIMIZERS[optimizer]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(3, name="top_3")],
    )
    return model


def main() -> None:
    """Run all trainings; print a line for each."""
    keras = keras_choice.load()
    import tensorflow as tf

    strategy = strategies.make()
    for optimizer in OPTIMIZERS:
        for size, count in EXAMPLES.items():
            with strategy.scope():
                model = build(keras, optimizer)
            # One iterator for all epochs: deleting one can stall for seconds.
            data, steps = batches(count).repeat(), -(-count // GLOBAL_BATCH)
            history = model.fit(data, epochs=EPOCHS, steps_per_epoch=steps, verbose=0).history
            found = {name: [float(v) for v in values] for name, values in history.items()}
            weights = sum(float(np.abs(w).sum()) for w in model.get_weights())
            row = {"optimizer": optimizer, "batches": size, **found, "weights": weights}
            row["workers"] = context.current().num_workers
            row["versions"] = f"{keras_choice.version_of(keras)} on TensorFlow {tf.__version__}"
            print(f"parity {json.dumps(row)}", flush=True)


if __name__ == "__main__":
    main()
