"""Measuring the parts of a step leaves alone what a script does with its functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import PYTHONS, Boot

SAVES = """
import time
import tensorflow as tf
from tfcluster_workers import reporting

data = tf.data.Dataset.from_tensors(1.0).repeat()

class Trainer(tf.Module):
    def __init__(self):
        self.total = tf.Variable(1.0)

    @tf.function
    def train(self, iterator):
        self.total.assign_add(next(iterator))

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def first(self, values):
        return next(iter(tf.data.Dataset.from_tensor_slices(values)))

trainer = Trainer()
trainer.train(iter(data))
tf.saved_model.save(trainer, "saved")
assert tf.saved_model.load("saved").first([5.0, 6.0]).numpy() == 5.0

def pause(value):
    time.sleep(0.2)
    return value

slow = data.map(lambda value: tf.numpy_function(pause, [value], tf.float32))
fed = iter(tf.distribute.OneDeviceStrategy("CPU:0").experimental_distribute_dataset(slow))
tf.function(lambda: next(fed))()
assert reporting.parts.read_graphs().input_s >= 0.2
with tf.Graph().as_default():
    reporting.progress(1)
"""


@pytest.mark.tensorflow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("tensorflow", PYTHONS)
def test_a_function_that_reads_a_dataset_can_be_saved_and_a_graph_can_be_default(
    boot: Boot, tmp_path: Path, tensorflow: str
) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    ended = boot("script", "train.py", python=PYTHONS[tensorflow])
    assert ended.code == 0, ended.err
