"""A small image classifier under MultiWorkerMirroredStrategy that records times.

    train.py first      train a few steps
    train.py crash      the same, but in the first attempt worker 1 kills itself after its first
    train.py hold       stop after the first step, to be measured
    train.py tax N      N steps of one `fit`
    train.py fits N     N times `fit` and `evaluate`

It is a script as a user writes it: it knows TF_CONFIG and no launcher, and runs on Python 3.9.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

CPU_IMPORTED = time.process_time()
BATCH = 64
STEPS_A_FIT = 50
FAULTY = 1


def write(name: str, *numbers: float) -> None:
    """Write a file atomically, in $STAMPS or here: readers never see a part of it."""
    path = os.path.join(os.environ.get("STAMPS", ""), name)
    with open(path + ".new", "w") as file:
        file.write(" ".join(map(str, numbers)))
    os.rename(path + ".new", path)


def wait_for(*names: str) -> None:
    while not all(map(os.path.exists, names)):
        time.sleep(0.01)


class Steps(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Record when each step ended; after the first, do what the mode says."""

    def __init__(self, mode: str, task: int, tasks: int) -> None:
        super().__init__()
        env = os.environ
        again = env.get("TFCLUSTER_ATTEMPT", "1") != "1" or env.get("ATTEMPT", "0") != "0"
        self.attempt, self.mode, self.task, self.tasks = int(again), mode, task, tasks
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.monotonic())
        if len(self.ends) == 1:
            cpu = time.process_time()
            stamp = f"step-{self.attempt}-{self.task}"
            write(stamp, os.getpid(), self.ends[0], cpu, cpu - CPU_IMPORTED)
            if self.mode == "hold":
                wait_for("release")
            if self.mode == "crash" and self.task == FAULTY and not self.attempt:
                wait_for(*(f"step-0-{task}" for task in range(self.tasks)))
                write("crashed", time.monotonic())
                os.kill(os.getpid(), signal.SIGKILL)


def dataset(batch: int) -> Any:
    """Return random pixels: the content does not change the speed, and needs no download."""
    dice = np.random.default_rng(0)
    images = dice.integers(0, 255, (8192, 28, 28, 1), dtype=np.uint8)
    labels = dice.integers(0, 10, 8192)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return (
        tf.data.Dataset.from_tensor_slices((images, labels))
        .shuffle(8192)
        .repeat()
        .map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y), num_parallel_calls=tf.data.AUTOTUNE)
        .batch(batch)
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )


def build() -> Any:
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Conv2D(32, 3, activation="relu", input_shape=(28, 28, 1)),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss, metrics=["accuracy"])
    return model


def several_fits(
    model: Any, data: Any, steps: Steps, times: int, batch: int
) -> tuple[float, list[float]]:
    """Return the examples per second, and the seconds from each `fit`'s last step to its return.

    The rate is that from the first step to the last `evaluate`.
    """
    waits, seen = [], -batch
    for _ in range(times):
        model.fit(data, epochs=1, steps_per_epoch=STEPS_A_FIT, verbose=2, callbacks=[steps])
        waits.append(time.monotonic() - steps.ends[-1])
        model.evaluate(data, steps=STEPS_A_FIT // 5, verbose=2)
        seen += batch * (STEPS_A_FIT + STEPS_A_FIT // 5)
    return seen / (time.monotonic() - steps.ends[0]), waits


def main(mode: str, count: int) -> None:
    config = json.loads(os.environ["TF_CONFIG"])
    task, tasks = config["task"]["index"], len(config["cluster"]["worker"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    batch = BATCH * tasks
    data = dataset(batch)
    with strategy.scope():
        model = build()
    steps = Steps(mode, task, tasks)
    if mode == "fits":
        rate, waits = several_fits(model, data, steps, count, batch)
        write(f"rate-{task}", rate, *waits)
        return
    model.fit(data, steps_per_epoch=count or 3, verbose=2, callbacks=[steps])
    if mode == "tax":
        warm = len(steps.ends) // 5
        done = batch * (len(steps.ends) - 1 - warm)
        write(f"rate-{task}", done / (steps.ends[-1] - steps.ends[warm]))


if __name__ == "__main__":
    main(sys.argv[1], int([*sys.argv, "0"][2]))
