"""Trains on two workers and on one, which must give the same numbers."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import keras
from keras.src import backend
from keras.src import testing

MODULE = "keras.src.backend.tensorflow.multi_worker_test"
BATCH = 8
TIMEOUT_S = 300


def train(strategy):
    """Trains a small model; returns what must not depend on the workers."""
    random = np.random.RandomState(0)
    x = {"left": random.rand(40, 3), "right": random.rand(40, 2)}
    y = (x["left"].sum(axis=1) > x["right"].sum(axis=1)).astype("int32")
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = policy
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    data = data.with_options(options)
    with strategy.scope():
        keras.utils.set_random_seed(1)
        left, right = (
            keras.Input((3,), name="left"),
            keras.Input((2,), name="right"),
        )
        hidden = keras.layers.Dense(4, activation="relu")(
            keras.layers.Concatenate()([left, right])
        )
        outputs = keras.layers.Dense(2)(hidden)
        model = keras.Model({"left": left, "right": right}, outputs)
        model.compile(
            optimizer=keras.optimizers.Adam(0.01),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history
    return {
        "history": history,
        "evaluated": model.evaluate(data, verbose=0),
        "predicted": model.predict(data, verbose=0).tolist(),
        "weights": [value.tolist() for value in model.get_weights()],
    }


def start_worker(index, ports):
    """Starts this module as one of the workers that listen on `ports`."""
    workers = [f"localhost:{port}" for port in ports]
    task = {"type": "worker", "index": index}
    config = json.dumps({"cluster": {"worker": workers}, "task": task})
    environment = {
        **os.environ,
        "TF_CONFIG": config,
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", MODULE],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def run_workers(count):
    """Returns the numbers of each of `count` workers that train together."""
    ports = free_ports(count)
    workers = [start_worker(index, ports) for index in range(count)]
    try:
        ended = [worker.communicate(timeout=TIMEOUT_S) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (_, errors) in zip(workers, ended):
        assert worker.returncode == 0, errors[-4000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in ended]


@pytest.mark.skipif(
    backend.backend() != "tensorflow",
    reason="MultiWorkerMirroredStrategy needs the TensorFlow backend.",
)
class MultiWorkerTest(testing.TestCase):
    def test_two_workers_train_like_one(self):
        (alone,) = run_workers(1)
        for worker in run_workers(2):
            self.assertAllClose(
                worker["history"]["loss"], alone["history"]["loss"], rtol=1e-4
            )
            self.assertAllClose(
                worker["history"]["accuracy"], alone["history"]["accuracy"]
            )
            for name in ("evaluated", "predicted"):
                self.assertAllClose(worker[name], alone[name], rtol=1e-4)
            for mine, other in zip(worker["weights"], alone["weights"]):
                self.assertAllClose(mine, other, rtol=1e-4)


if __name__ == "__main__":
    print(json.dumps(train(tf.distribute.MultiWorkerMirroredStrategy())))
