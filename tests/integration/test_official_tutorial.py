"""A script that sets TF_CONFIG itself, as TensorFlow's tutorials tell to, fails with the fix.

The script has the tutorial's structure: a module with data and model beside it, a first training
in one process, `tf_config = {…}` with an index per worker, the strategy, `fit`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .jobs.lab import PYTHONS, Lab, Trained, a_lab

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

MNIST_SETUP = """
import numpy as np
import tensorflow as tf


def mnist_dataset(batch_size):
    random = np.random.default_rng(0)
    x_train, y_train = random.random((256, 28, 28), dtype=np.float32), random.integers(0, 10, 256)
    return tf.data.Dataset.from_tensor_slices((x_train, y_train)).repeat().batch(batch_size)


def build_and_compile_cnn_model():
    model = tf.keras.Sequential([
        tf.keras.layers.InputLayer(input_shape=(28, 28)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10)
    ])
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
        metrics=['accuracy'])
    return model
"""
ALONE_FIRST = """
os.environ.pop('TF_CONFIG', None)
import tensorflow as tf
import mnist_setup
mnist_setup.build_and_compile_cnn_model().fit(
    mnist_setup.mnist_dataset(64), epochs=1, steps_per_epoch=5)
"""
CONFIG = """
tf_config = {
    'cluster': {'worker': ['localhost:12345', 'localhost:23456']},
    'task': {'type': 'worker', 'index': INDEX}
}
os.environ['TF_CONFIG'] = json.dumps(tf_config)
"""
OWN_INDEX = """
tf_config = json.loads(os.environ['TF_CONFIG'])
tf_config['task'] = {'type': 'worker', 'index': INDEX}
os.environ['TF_CONFIG'] = json.dumps(tf_config)
"""
TRAIN = """
import tensorflow as tf
import mnist_setup

per_worker_batch_size = 64
num_workers = 2
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    multi_worker_model = mnist_setup.build_and_compile_cnn_model()
multi_worker_model.fit(
    mnist_setup.mnist_dataset(per_worker_batch_size * num_workers), epochs=2, steps_per_epoch=5)
"""
OF_THE_TASK = "int(os.environ['TFCLUSTER_TASK'][-1])"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        made.line.script("mnist_setup.py", MNIST_SETUP)
        made.line.is_doubtful = True  # its first part trains each worker alone
        yield made


def train(lab: Lab, *parts: str, tensorflow: str = "newest") -> Trained:
    lab.line.script("main.py", "import json\nimport os\nimport sys\n" + "".join(parts) + TRAIN)
    return lab.train("run", "-n", "2", f"--python={PYTHONS[tensorflow]}", "main.py", "0")


def line_of(parts: str, text: str) -> int:
    """Return the line of the script at which `text` stands."""
    return 3 + parts[: parts.index(text)].count("\n") + 1


def check_refusal(trained: Trained, line: int) -> None:
    assert trained.code == 1, trained.complaint()
    cause = trained.of("diagnosis")[-1]["root_cause"]
    assert f"main.py:{line} sets TF_CONFIG" in cause["reason"]
    assert "delete the lines that " in cause["hint"]
    assert not trained.of("restarting")


def test_the_tutorial_as_it_is_fails_with_the_line_that_sets_tf_config(lab: Lab) -> None:
    """It trains alone first, then says in all tasks that they are worker 0."""
    script = ALONE_FIRST + CONFIG.replace("INDEX", "0")
    trained = train(lab, script, tensorflow="tf215")
    check_refusal(trained, line_of(script, "os.environ['TF_CONFIG']"))


def test_two_tasks_that_both_say_that_they_are_worker_0_are_refused(lab: Lab) -> None:
    script = OWN_INDEX.replace("INDEX", "0")
    trained = train(lab, script)
    check_refusal(trained, line_of(script, "os.environ['TF_CONFIG'] ="))
    assert trained.of("diagnosis")[-1]["root_cause"]["task"] == "worker:1"


def test_the_value_that_tfcluster_has_set_may_be_set_again(lab: Lab) -> None:
    trained = train(lab, OWN_INDEX.replace("INDEX", OF_THE_TASK))
    assert trained.code == 0, trained.complaint()
    for task in ("worker:0", "worker:1"):
        assert trained.of("progress", task)[-1]["step"] == 10
