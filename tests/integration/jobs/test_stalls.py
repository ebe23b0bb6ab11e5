"""A training that hangs names the task that the others wait for, and the line of its script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.documentation import unprinted
from tests.integration.commandline import wait_for
from tests.integration.live import Live

from .lab import PYTHONS, Lab, a_lab

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(900)]

TRAIN = """
import time
import tensorflow as tf

def pause(task, at):
    if kind == task and task_id == at:
        time.sleep(1000)

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task_id, kind = strategy.cluster_resolver.task_id, "KIND"

def batches():
    while True:
        for _ in range(20):
            yield tf.ones((8, 4)), tf.ones((8, 1))
        pause("input", 0)

class Callback(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 20:
            pause("callback", 1)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    total = tf.Variable(1.0)
signature = tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1))
data = tf.data.Dataset.from_generator(batches, output_signature=signature)
fed = strategy.distribute_datasets_from_function(lambda context: data)
model.fit(fed, steps_per_epoch=1000, epochs=5, verbose=0, callbacks=[Callback()])
"""
LINES = {
    "callback": "worker:1 is in train.py:7 `time.sleep`; worker:0 waits for it in an all-reduce",
    "input": "worker:0 waits for its input in train.py:7 `time.sleep`; worker:1 waits for it in an"
    " all-reduce",
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        made.line.is_doubtful = True
        yield made


@pytest.mark.parametrize(("kind", "tensorflow"), [*zip(LINES, PYTHONS, strict=True)])
def test_a_training_that_hangs_names_the_line_that_all_wait_for(
    lab: Lab, kind: str, tensorflow: str
) -> None:
    line = lab.line
    line.script("train.py", TRAIN.replace("KIND", kind))
    options = ("-n", "2", f"--python={PYTHONS[tensorflow]}", "train.py")
    run = Live(line, "run", *options, name=kind)
    try:
        wait_for(lambda: "no step for" in run.said(), timeout=300, what=f"the stall; {run.said()}")
        said = " ".join(run.said().split())
        assert LINES[kind] in said, said
        stall = run.state()["stall"]
        assert stall["causes"] == [LINES[kind].split()[0]]
        assert stall["what"] == LINES[kind]
        if kind == "callback":
            assert unprinted("guides/supervision.md", "no step for 31 s", said) == []
    finally:
        assert line.run("down", run.run_id).code == 0
        run.process.wait(120)
