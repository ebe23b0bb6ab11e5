"""Forks of one TensorFlow import train as fresh processes do, also after a crash.

Keras imports pandas where it is installed, and pandas Arrow, whose jemalloc starts a thread. Here a
module that imports the real Arrow stands in for pandas.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .jobs.lab import PYTHONS, Lab, a_lab

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

TRAIN = """
import os, random, sys, time
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("object", id(tf), "random", random.random(), np.random.rand())
tf.keras.utils.set_random_seed(7)
data = tf.data.Dataset.from_tensor_slices((np.random.rand(64, 8), np.random.rand(64, 1)))
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
losses = model.fit(data.batch(16).with_options(options), epochs=3, verbose=0).history["loss"]
print("losses", *losses, "with" if "pyarrow" in sys.modules else "without", "Arrow", flush=True)
if "crash" in sys.argv and os.environ["TFCLUSTER_ATTEMPT"] == "1":
    if os.environ["TFCLUSTER_TASK"] == "worker:0":
        open("trained", "w").close()
    else:
        while not os.path.exists("trained"):
            time.sleep(0.05)
        os.remove("trained")
        os.kill(os.getpid(), 9)
"""
PANDAS = """
import pyarrow
class Series: pass
class DataFrame: pass
"""
OPTIONS = ("-n", "2", "--set", "supervision.max_restarts=1", "--set", "supervision.backoff_s=0")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        made.line.script("train.py", TRAIN)
        (made.line.cwd / "lib").mkdir()
        made.line.script("lib/pandas.py", PANDAS)
        yield made


@pytest.mark.parametrize("tensorflow", list(PYTHONS))
def test_forks_train_to_the_same_losses_without_a_second_import(lab: Lab, tensorflow: str) -> None:
    start = ("run", *OPTIONS, f"--python={PYTHONS[tensorflow]}")
    env = {"PYTHONPATH": str(lab.line.cwd / "lib")}
    cold = lab.train(*start, "--set=runtime.preload=off", "train.py", env=env)
    forked = lab.train(*start, "train.py", "crash", env=env)
    assert (cold.code, forked.code) == (0, 0), cold.complaint() + forked.complaint()
    assert [e["attempt"] for e in forked.of("restarting")] == [2]

    def said(pattern: str) -> list[str]:
        return [f for task in ("worker:0", "worker:1") for f in forked.said(task, pattern)]

    assert len(set(said(r"^object (\d+)"))) == 1, "all are forks of one import"
    assert len(said(r"^object (\d+)")) == 4
    assert len(set(said(r"random (\S+)"))) == 4
    assert len(set(said(r"random \S+ (\S+)"))) == 4
    losses = [list(map(float, line.split())) for line in said(r"^losses (.*) with")]
    (expected,) = (list(map(float, x.split())) for x in cold.said("worker:0", r"^losses (.*) with"))
    has_arrow = tensorflow == "newest"  # this Arrow refuses the NumPy of 2.15
    assert len(said(r"with Arrow")) == (4 if has_arrow else 0)
    assert len(losses) == 4
    for found in losses:
        assert found == pytest.approx(expected, rel=1e-5)
    assert not [hint for hint in forked.of("hint") if "preloading" in hint["message"]]
