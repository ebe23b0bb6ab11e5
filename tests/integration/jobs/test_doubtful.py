"""Runs that end with 0 although their result is doubtful: an alert says so, with the fix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .lab import PYTHONS, Lab, Trained, a_lab

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

BEGIN = """
import os
import numpy as np
import tensorflow as tf

strategy = tf.distribute.STRATEGY()
x = np.arange(256, dtype="float32").reshape(64, 4)
batches = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8).repeat()

def make_model():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(1e-6), "mse")
    return model
"""
ALONE = f"""{BEGIN.replace("STRATEGY", "MirroredStrategy")}
with strategy.scope():
    model = make_model()
model.fit(batches, steps_per_epoch=4, epochs=2, verbose=0)
"""
APART = f"""{BEGIN.replace("STRATEGY", "MultiWorkerMirroredStrategy")}
with strategy.scope():
    model = make_model()
folder = os.path.join("saved", os.environ["TFCLUSTER_TASK"].replace(":", "-"))
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), folder, 3)
manager.restore_or_initialize()
same = strategy.distribute_datasets_from_function(lambda context: batches)
model.fit(same, steps_per_epoch=4, epochs=2, verbose=0)
manager.save()
"""
TWICE = f"""{BEGIN.replace("STRATEGY", "MultiWorkerMirroredStrategy")}
index = strategy.cluster_resolver.task_id
with strategy.scope():
    model = make_model()
    optimizer = tf.keras.optimizers.SGD(1e30)
    optimizer.build(model.trainable_variables)

@tf.function
def train(batch):
    def step(inputs, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(inputs) - labels) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    strategy.run(step, args=batch)

def main():
    for batch in strategy.experimental_distribute_dataset(batches.shard(2, index).take(8)):
        train(batch)
    model.save_weights(f"{{index}}.weights.h5")

main()
with open(f"mine-{{index}}", "w") as file:
    file.write("1")
os.replace(f"mine-{{index}}", "moved.csv")
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        made.line.is_doubtful = True
        yield made


def alerts(run: Trained) -> dict[str, str]:
    assert run.code == 0, run.complaint()
    assert {event["kind"]: event["message"] for event in run.of("alert")} == run.state["alerts"]
    shown = " ".join(run.err.split())
    for message in run.state["alerts"].values():
        assert f"alert: {message}" in shown, "the summary shows it"
    return dict(run.state["alerts"])


def test_workers_that_train_alone_are_told_to_use_a_multi_worker_strategy(lab: Lab) -> None:
    lab.line.script("alone.py", ALONE)
    options = ("run", "-n", "2", f"--python={PYTHONS['tf215']}", "alone.py")
    found = alerts(lab.train(*options))
    assert [*found] == ["trains_alone"]
    assert found["trains_alone"].startswith(
        "MirroredStrategy spans one machine: each of the 2 workers trains alone. Fix:"
    )


def test_workers_with_the_same_data_or_different_states_are_named(lab: Lab) -> None:
    lab.line.script("apart.py", APART)
    options = ("run", "-n", "2", f"--python={PYTHONS['newest']}", "apart.py")
    assert [*alerts(lab.train(*options))] == ["same_data"]
    for left in (lab.line.cwd / "saved/worker-1").iterdir():
        left.unlink()
    found = alerts(lab.train(*options))
    assert found["same_data"].startswith("worker:0, worker:1 train on the same batches")
    assert "worker:0 restored ckpt-1, worker:1 nothing" in found["states_differ"]


def test_a_loop_that_reports_nothing_is_told_of_bad_weights_and_of_data_that_it_shards_twice(
    lab: Lab,
) -> None:
    lab.line.script("twice.py", TWICE)
    run = lab.train("run", "-n", "2", f"--python={PYTHONS['newest']}", "twice.py")
    found = alerts(run)
    assert {*found} == {"diverged", "sharded_twice"}
    assert found["diverged"].startswith("the weights are NaN")
    assert found["sharded_twice"].startswith("the dataset is sharded twice: by the script's `shard")
    assert "moved.csv (worker:0, worker:1)" in " ".join(run.err.split())


LEAVES = f"""{BEGIN.replace("strategy = tf.distribute.STRATEGY()", "")}
import atexit, sys, threading
index = int(os.environ["TFCLUSTER_TASK"][-1])

class Leaves(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            sys.exit() if index == 0 else os._exit(0) if index == 1 else [][batch]

def train():
    make_model().fit(batches, steps_per_epoch=4, epochs=2, verbose=0, callbacks=[Leaves()])

if index == 3:
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    atexit.register(lambda: open("no/such/file"))
else:
    try:
        train()
    except IndexError:
        print("caught")
"""


def test_tasks_whose_training_failed_silently_are_named(lab: Lab) -> None:
    lab.line.script("leaves.py", LEAVES)
    options = ("-n", "4", "--set", "job.kind=plain", f"--python={PYTHONS['tf215']}")
    run = lab.train("run", *options, "leaves.py")
    assert run.code == 0, run.complaint()
    said = [event["message"] for event in run.of("warned") if "although" in event["message"]]
    index = "IndexError: list index out of range (leaves.py:21)"
    words = {
        0: ["the script left `fit` with sys.exit at step 2 of 8 (leaves.py:21)"],
        1: ["`fit` had not returned (step 2 of 8)"],
        2: [f"`fit` ended at step 2 of 8 with {index}"],
        3: [
            f"`fit` ended at step 2 of 8 with {index}",
            "a function of `atexit` failed: FileNotFoundError",
        ],
    }
    for number, each in words.items():
        begin = f"worker:{number}: it ended with exit code 0, although "
        mine = [one.removeprefix(begin) for one in said if one.startswith(begin)]
        assert [one[: len(word)] for one, word in zip(mine, each, strict=True)] == each
