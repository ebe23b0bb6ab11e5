"""A real training that takes a second: Keras 2 `fit` under MultiWorkerMirroredStrategy.

Steps, batches and weights are the same in every run and after every resume at the end of an epoch,
so the numbers of the last epoch show whether each step was done exactly once.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import inject  # type: ignore[import-not-found]

EPOCHS, STEPS, BATCH = 6, 5, 12
FAULT_STEP = 12
FAULTY_SAVE = 2
"""The epoch during whose save a fault of the phase `saving` is injected."""


def examples(tf: Any) -> Any:
    """Return a data set of STEPS batches in a fixed order."""
    import numpy as np

    rng = np.random.RandomState(1)
    x = rng.rand(STEPS * BATCH, 4).astype("float32")
    y = (x.sum(axis=1) > 2).astype("int64")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.with_options(options)


def build(keras: Any) -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
    return model


def fail_while_saving() -> None:
    """Inject the fault after the parts are written and before TensorFlow's saver merges them."""
    from tensorflow.python.ops import gen_io_ops

    merge, saves = gen_io_ops.merge_v2_checkpoints, []

    def merge_or_fail(*args: Any, **kwargs: Any) -> Any:
        saves.append(1)
        if len(saves) == FAULTY_SAVE:
            inject.at("saving")
        return merge(*args, **kwargs)

    gen_io_ops.merge_v2_checkpoints = merge_or_fail


class EachStep:
    """A batch callback that slows training for an observer and injects the fault at its step."""

    def __init__(self, model: Any, steps_done: int) -> None:
        self._model, self._steps = model, steps_done

    def __call__(self, batch: int, logs: Any) -> None:
        self._steps += 1
        if self._steps == FAULT_STEP:
            inject.at("training")
        time.sleep(0.03)


def main() -> None:
    import tensorflow as tf

    from tfcluster_workers import callbacks, keras_choice

    keras = keras_choice.load()
    inject.at("before-join")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    data = examples(tf)
    with strategy.scope():
        model = build(keras)
    saving = callbacks.EpochCheckpoints(model, strategy=strategy)
    done = saving.restore()
    print(f"starting at step {done * STEPS}", flush=True)
    fail_while_saving()

    def save(epoch: int, logs: Any) -> None:
        saving.save(epoch + 1)
        print(f"saved step {(epoch + 1) * STEPS}", flush=True)

    each_step = EachStep(model, done * STEPS)
    watching = keras.callbacks.LambdaCallback(on_batch_end=each_step, on_epoch_end=save)
    history = model.fit(
        data.repeat(),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        initial_epoch=done,
        callbacks=[watching],
        verbose=0,
    )
    saving.close()
    loss, accuracy = (history.history[name][-1] for name in ("loss", "accuracy"))
    print(f"trained: loss {loss:.5f} accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
