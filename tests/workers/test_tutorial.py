"""Scripts that do not use tfcluster report progress under real TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .conftest import PYTHONS, Gang, run_plain

# Several TensorFlow processes on two busy cores.
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]


SETUP = """
import numpy as np
import tensorflow as tf


def mnist_dataset(batch_size):
    rng = np.random.RandomState(0)
    x, y = rng.rand(600, 8, 8).astype(np.float32), rng.randint(0, 10, 600).astype(np.int64)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(600).repeat().batch(batch_size)


def build_and_compile_model():
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Flatten(input_shape=(8, 8)), layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=tf.keras.optimizers.SGD(0.01), metrics=["accuracy"])
    return model
"""
MAIN = """
import json
import os

import tensorflow as tf
import mnist_setup

tf_config = json.loads(os.environ['TF_CONFIG'])
num_workers = len(tf_config['cluster']['worker'])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
dataset = mnist_setup.mnist_dataset(64 * num_workers)
with strategy.scope():
    model = mnist_setup.build_and_compile_model()
model.fit(dataset, epochs=2, steps_per_epoch=20, verbose=2)
open(f"done-{tf_config['task']['index']}", 'w').close()
"""


@pytest.mark.parametrize(("tensorflow", "workers"), [("newest", 2), ("tf215", 1)])
def test_an_unmodified_tutorial_script_shows_progress(
    gang: Gang, tmp_path: Path, tensorflow: str, workers: int
) -> None:
    (tmp_path / "mnist_setup.py").write_text(SETUP)
    (tmp_path / "main.py").write_text(MAIN)
    ended = gang(
        PYTHONS[tensorflow],
        [f"worker:{number}" for number in range(workers)],
        ["script", str(tmp_path / "main.py")],
        cwd=tmp_path,
        env=lambda task: {},
    )
    for task in ended.values():
        assert task.code == 0, task.text[-4000:]
        assert "slow compared to the batch time" not in task.text
        kinds = [event["type"] for event in task.events]
        start = [
            kind for kind in kinds if kind in ("task_phase", "waiting_for_peers", "task_ready")
        ]
        assert start[:4] == ["task_phase", "task_phase", "waiting_for_peers", "task_ready"]
        last = [event for event in task.events if event["type"] == "progress"][-1]
        assert (last["step"], last["epoch"]) == (40, 2)
        assert 1.5 < last["metrics"]["loss"] < 4, "one replica's mean, not the sum of all"
        assert last["mean_examples_per_second"] > last["mean_steps_per_second"] * 63
    assert sorted(path.name for path in tmp_path.glob("done-*")) == [
        f"done-{number}" for number in range(workers)
    ]


def test_the_package_imports_without_tensorflow() -> None:
    code = (
        "import sys\nsys.modules['tensorflow'] = None\n"
        "from tfcluster_workers import boot, callbacks, context, keras_choice, reporting, strategy"
    )
    run_plain(sys.executable, "-c", code).check_returncode()
