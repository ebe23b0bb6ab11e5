"""A script for a Python with TensorFlow: save in every way, or load and check what was gathered.

``save FOLDER`` writes; ``load FOLDER STORE`` reads JSON lines {"kind", "path"} on stdin, loads
each without any strategy and fails unless every value is the one that was saved.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

KERAS = tf.keras


def build(seed: int) -> Any:
    KERAS.utils.set_random_seed(seed)
    model = KERAS.Sequential([KERAS.layers.Input((3,)), KERAS.layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def save(folder: str) -> None:
    model = build(1)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), folder + "/tf", 2)
    for _ in range(3):
        manager.save()
    model.save_weights(folder + "/weights/cp-0007.ckpt")
    model.save_weights(folder + "/weights.03.weights.h5")
    model.save(folder + "/model.keras")
    model.save(folder + "/whole.h5")
    model.save(folder + "/exported", save_format="tf")
    tf.saved_model.save(model, folder + "/plain/1")
    backup = KERAS.callbacks.BackupAndRestore(folder + "/backup", delete_checkpoint=False)
    other = build(2)
    other.fit(np.ones((4, 3)), np.ones((4, 2)), epochs=2, verbose=0, callbacks=[backup])
    with open(folder + "/expected.json", "w") as file:
        json.dump(predict(model), file)


def predict(model: Any) -> list[list[float]]:
    output: list[list[float]] = np.asarray(model(tf.ones((1, 3)))).tolist()
    return output


def load(folder: str, store: str) -> None:
    with open(folder + "/expected.json") as file:
        expected = json.load(file)
    for line in sys.stdin:
        row = json.loads(line)
        got = LOADERS[row["kind"]](row["path"])
        assert np.allclose(got, expected), (row, got, expected)
    latest = tf.train.latest_checkpoint(store)
    assert latest is not None
    assert latest.startswith(store), latest
    assert tf.train.list_variables(latest)


def load_tf(path: str) -> list[list[float]]:
    model = build(9)
    if "weights" in path:
        model.load_weights(path).assert_consumed()
    else:
        tf.train.Checkpoint(model=model).restore(path).expect_partial()
    return predict(model)


def load_weights(path: str) -> list[list[float]]:
    model = build(9)
    model.load_weights(path)
    return predict(model)


LOADERS: dict[str, Callable[[str], list[list[float]]]] = {
    "tf_checkpoint": load_tf,
    "keras": lambda path: predict(KERAS.models.load_model(path)),
    "weights": load_weights,
    "saved_model": lambda path: predict(tf.saved_model.load(path)),
}

if __name__ == "__main__":
    if sys.argv[1] == "save":
        save(sys.argv[2])
    else:
        load(sys.argv[2], sys.argv[3])
