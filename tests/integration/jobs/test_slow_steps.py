"""A slow step is explained while it trains: constructed jobs whose cause is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.documentation import unprinted
from tests.integration.commandline import wait_for
from tests.integration.live import Live

from .lab import PYTHONS, Lab, a_lab

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(900)]

SLEEP_S = 0.6
"""Much longer than what a busy machine adds to a step."""
COMPUTE_S = 0.3
"""The other task's forward pass in `FIT`, with which an all-reduce of Keras 3's overlaps."""
MODEL = f"""
import time
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
is_slow = strategy.cluster_resolver.task_id == 1
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.01)

def pause(*batch):
    if is_slow:
        time.sleep({SLEEP_S})
    return 0.0

data = tf.data.Dataset.from_tensors((tf.ones(4), tf.ones(1))).repeat().batch(8)
"""
FIT = f"""
def compute(x):
    if not is_slow:
        time.sleep({COMPUTE_S})
    return x

class Computing(tf.keras.layers.Layer):
    def call(self, x):
        computed = tf.numpy_function(compute, [x], tf.float32)
        return x + tf.stop_gradient(tf.reshape(computed, tf.shape(x)) - x)

def slowly(x, y):
    with tf.control_dependencies([tf.numpy_function(pause, [], tf.float64)]):
        return tf.identity(x), y

fed = strategy.distribute_datasets_from_function(lambda context: data.map(slowly))
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), Computing(), tf.keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
model.fit(fed, steps_per_epoch=1000, epochs=5, verbose=0)
"""
LOOP = """
from tfcluster_workers import reporting

fed = iter(strategy.distribute_datasets_from_function(lambda context: data))

@tf.function
def train():
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    strategy.run(step, args=next(fed))

for number in range(1, 5000):
    train()
    pause()
    reporting.progress(number)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        made.line.is_doubtful = True  # both workers train on the same batches
        yield made


def has_verdict(state: dict[str, Any]) -> bool:
    return bool((state.get("step_verdict") or {}).get("causes"))


@pytest.mark.parametrize(
    ("job", "tensorflow", "bound", "part", "computing_s"),
    [(FIT, "newest", "input", "input", COMPUTE_S), (LOOP, "tf215", "python", "other", 0.0)],
    ids=["input of fit", "Python of a loop"],
)
def test_the_task_and_the_part_that_all_wait_for_are_named(
    lab: Lab, job: str, tensorflow: str, bound: str, part: str, computing_s: float
) -> None:
    line = lab.line
    line.script("train.py", MODEL + job)
    options = ("-n", "2", f"--python={PYTHONS[tensorflow]}", "train.py")
    run = Live(line, "run", *options, name=bound)
    try:
        (state,) = wait_for(
            lambda: [*filter(has_verdict, [run.state()])],
            timeout=300,
            what=f"the verdict; {run.said()}",
        )
        verdict = state["step_verdict"]
        assert not [warning for warning in state["warnings"] if "cannot measure" in warning]
        assert (verdict["bound"], verdict["causes"]) == (bound, ["worker:1"])
        status = " ".join(line.run("status", run.run_id).out.decode().split())
        if bound == "input":
            assert unprinted("guides/slow-steps.md", "input-bound", status) == []
        fast, slow = (task["step_parts"] for task in state["tasks"])
        step_s = sum(slow.values())
        assert slow[part] / step_s == pytest.approx(SLEEP_S / step_s, abs=0.1)
        # The other one waits when it has computed, and both agree on the transfer.
        assert fast["compute"] / step_s == pytest.approx(computing_s / step_s, abs=0.15)
        waiting_s = SLEEP_S - computing_s
        assert fast["waiting"] / step_s == pytest.approx(waiting_s / step_s, abs=0.15)
        assert fast["transfer"] == pytest.approx(slow["transfer"])
    finally:
        assert line.run("down", run.run_id).code == 0
        run.process.wait(120)
