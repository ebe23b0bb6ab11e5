"""An evaluator evaluates the checkpoints of Keras 3 while the workers train, and marks the best."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.documentation import unprinted

from .lab import PYTHONS, SPECS, Lab, a_lab

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

SCRIPT = """
import os, time
import keras
import numpy as np
from tfcluster_workers import callbacks, context, evaluator

model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1, use_bias=False)])
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
x = np.eye(4, dtype="float32")
y = x.sum(axis=1, keepdims=True)
if context.is_evaluator():
    report = evaluator.report
    def noting(*results_and_step):
        report(*results_and_step)
        open(f"evaluated-{results_and_step[-1]}", "w").close()
    evaluator.report = noting
    evaluator.evaluate_checkpoints(model, x, y=y)

class Spoil(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:  # the last epoch makes the weights worse
            wait_for_evaluation()
            self.model.optimizer.learning_rate = 10.0

def wait_for_evaluation():
    while not os.path.exists("evaluated-2"):
        time.sleep(0.1)

saves = callbacks.checkpoint(keras, "{epoch:02d}.weights.h5")
model.fit(x, y, epochs=3, verbose=0, callbacks=[saves, Spoil()])
"""
"""A script with the weight files of `ModelCheckpoint`; its last epoch makes them worse.

It waits before that epoch until the evaluator has evaluated the checkpoint of epoch 2.
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        yield made


def test_the_example_evaluates_to_what_the_workers_do_even_if_it_is_killed(lab: Lab) -> None:
    sets = ("--set=supervision.backoff_s=0", "--set=supervision.finish_grace_s=300")
    options = (f"--python={PYTHONS['newest']}", *sets)
    kill = "--chaos=kill evaluator:0 at step 10"
    job = ("--epochs=3", "--examples=960")
    spec = str(SPECS / "keras-2w-evaluator.json")
    trained = lab.train("up", spec, *options, kill, "--", *job)
    assert trained.code == 0, trained.complaint()
    assert [e["task"] for e in trained.of("restarting")] == ["evaluator:0"]
    (last,) = trained.said("worker:0", r"^test accuracy (\S+)")
    evaluated = trained.said("evaluator:0", r"^evaluated step 30 accuracy (\S+)")
    assert float(evaluated[-1]) == pytest.approx(float(last), abs=1e-4)
    assert trained.of("task_exited", "evaluator:0")[-1]["ended_by"] == "tfcluster"
    assert [c["step"] for c in trained.state["checkpoints"] if c.get("is_best")] == [30]
    assert unprinted("guides/evaluator.md", "evaluated step", trained.out, trained.err) == []
    assert not trained.of("warned"), "it is stopped as soon as it is done"


def test_the_best_weights_are_kept_and_can_be_copied(lab: Lab) -> None:
    lab.line.script("train.py", SCRIPT)
    spec = {"version": 1, "cluster": {"worker": 1, "evaluator": 1}, "job": {"script": "train.py"}}
    lab.line.script("best.json", json.dumps(spec))
    options = (f"--python={PYTHONS['newest']}", "--set=checkpoints.keep=1")
    trained = lab.train("up", "best.json", *options)
    assert trained.code == 0, trained.complaint()
    kept = [(c["path"].rpartition("/")[2], c.get("is_best")) for c in trained.state["checkpoints"]]
    assert kept == [("02.weights.h5", True), ("03.weights.h5", None)]
    path = lab.line.run("checkpoints", "--best", "--path").out.decode()
    assert path.strip().endswith("02.weights.h5")
