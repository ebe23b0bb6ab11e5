"""A user script with every Keras callback that writes files, with relative paths, unmodified.

The tasks first share a working directory; then each changes to its own. For each of the two, a line
of output lists the files at the real paths that the task saw while it trained. The other tasks
write there at the same time, and their temporary folders appear and disappear.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras: Any = tf.keras if sys.argv[1] == "tf.keras" else importlib.import_module(sys.argv[1])


def written() -> list[str]:
    """Return every file below the working directory that is in no temporary folder.

    Unlike Path.rglob, os.walk skips a folder that is removed before it is read.
    """
    files = (os.path.join(folder, name) for folder, _, names in os.walk(".") for name in names)
    return sorted(os.path.relpath(path) for path in files if "workertemp_" not in path)


class Witness(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.update(written())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.update(written())


def build() -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((4,)), layers.Dense(8), layers.BatchNormalization(), layers.Dense(1)]
    )
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse", metrics=["mae"])
    return model


def fit(name: str, epochs: int) -> None:
    witness, callbacks = Witness(), keras.callbacks
    history = model.fit(
        batches,
        epochs=epochs,
        steps_per_epoch=4,
        verbose=0,
        callbacks=[
            callbacks.ModelCheckpoint("out/{epoch}.weights.h5", save_weights_only=True),
            callbacks.ModelCheckpoint("best.keras", monitor="loss", save_best_only=True),
            callbacks.BackupAndRestore("backup"),
            callbacks.TensorBoard("logs", histogram_freq=1),
            callbacks.CSVLogger("log.csv"),
            witness,
        ],
    )
    facts = {"epochs": len(history.history["loss"]), "seen": sorted(witness.seen)}
    print(name, json.dumps(facts), flush=True)


random = np.random.default_rng(0)
x = random.normal(size=(48, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(12).repeat()
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
batches = data.with_options(options)

keras.utils.set_random_seed(3)
with strategy.scope():
    model = build()
fit("shared", 2)
os.mkdir(os.environ["OWN"])
os.chdir(os.environ["OWN"])
fit("own", 2)
total = sum(float(np.abs(np.asarray(weight)).sum()) for weight in model.trainable_variables)
print("weights", total, flush=True)
