"""The errors of the installed Keras 3 for Keras 2 scripts are known, and Keras 2 runs them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tfcluster.supervision import failure

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("TFCLUSTER_TEST_PYTHON_NEWEST", str(ROOT / ".venv/bin/python"))

KERAS_2 = r"""
keras.Input(shape=(1))
keras.metrics.Mean().reset_states()
keras.optimizers.SGD(lr=0.1)
keras.optimizers.Adam(0.1).lr
model().optimizer.lr.assign(0.1)
keras.optimizers.Adam(0.1).learning_rate.read_value()
keras.optimizers.legacy.SGD(learning_rate=0.1)
keras.optimizers.experimental.Adam(0.1)
keras.optimizers.Adam(0.1).apply_gradients(pairs, experimental_aggregate_gradients=False)
keras.experimental.CosineDecay(0.1, 10)
keras.layers.experimental.preprocessing.Rescaling(1.0 / 255)
keras.callbacks.experimental.BackupAndRestore("backup")
keras.backend.set_learning_phase(1)
keras.utils.experimental.DatasetCreator(lambda context: None)
from tensorflow.keras.layers.experimental import preprocessing
from tensorflow.keras import experimental
from tensorflow.keras.layers import LocallyConnected1D
keras.losses.SparseCategoricalCrossentropy(reduction="auto")
model().fit_generator(iter([(x, y)]), steps_per_epoch=1)
model().fit(x, y, workers=2, use_multiprocessing=True, verbose=0)
model().evaluate(x, y, workers=2, verbose=0)
model().compile("sgd", "mse", experimental_run_tf_function=False)
model().compile(tf.compat.v1.train.GradientDescentOptimizer(0.1), "mse")
model().save("saved")
model().save("saved", save_format="tf")
model().save_weights("weights")
model().save_weights("weights", save_format="tf")
keras.callbacks.ModelCheckpoint("at-{epoch}")
keras.callbacks.ModelCheckpoint("at-{epoch}.ckpt", save_weights_only=True)
keras.callbacks.ModelCheckpoint("at.keras", period=5)
keras.callbacks.TensorBoard("board", write_grads=True)
model().layers[0].output_shape
model().reset_states()
model().trainable_variables[0].value().numpy()
model().add_loss(lambda: 0.0)
keras.layers.Layer().add_weight("kernel", shape=(2, 2), initializer="zeros")
keras.layers.BatchNormalization(fused=True)
keras.layers.LSTM(4, batch_input_shape=(2, 3, 4))
tf.nn.relu(keras.Input((4,)))
keras.Input((4,)).get_shape()
keras.__internal__.models
tf.compat.v1.layers.dense(tf.ones((2, 2)), 3)
tf.compat.v1.layers.BatchNormalization()
tf.compat.v1.nn.rnn_cell.BasicLSTMCell(4)
"""
OLD = r"""
keras.mixed_precision.experimental.set_policy("mixed_float16")
keras.wrappers.scikit_learn.KerasClassifier(model)
keras.utils.multi_gpu_model(model(), 2)
from keras.utils import np_utils
from keras.utils.np_utils import to_categorical
from keras.layers.convolutional import Conv2D
from keras.engine.topology import Layer
from keras.optimizers import adam_v2
from tensorflow.keras.backend import set_session
model().predict_classes(x)
model().fit(x, y, nb_epoch=2)
"""
TRY = """
import json, sys
import numpy as np
import tensorflow as tf
keras, x, y = tf.keras, np.zeros((8, 4), "float32"), np.zeros((8,), "int32")
pairs = [(tf.constant(1.0), tf.Variable(1.0))]
def model():
    made = keras.Sequential([keras.layers.Dense(3, input_shape=(4,))])
    made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made
said = {}
for line in json.loads(sys.argv[1]):
    try:
        exec(line, dict(globals()))
    except Exception as error:
        module = type(error).__module__.replace("builtins", "")
        said[line] = f"{module}.{type(error).__qualname__}".lstrip(".") + f": {error}"
print(json.dumps(said))
"""

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def errors_of(lines: str, folder: Path, **env: str) -> dict[str, str]:
    """Run each of `lines`; return the errors of those that fail."""
    listed = json.dumps(lines.strip().splitlines())
    done = subprocess.run(
        [PYTHON, "-c", TRY, listed],
        cwd=folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", **env},
        capture_output=True,
        text=True,
        check=True,
    )
    errors: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return errors


def test_lines_of_keras_2_fail_in_keras_3_with_known_errors(tmp_path: Path) -> None:
    errors = errors_of(KERAS_2 + OLD.lstrip(), tmp_path)
    found = {line: failure.find(error) for line, error in errors.items()}
    anchors = {line: known and known.anchor for line, known in found.items()}
    assert anchors == {
        **dict.fromkeys(KERAS_2.strip().splitlines(), "keras-2-script"),
        **dict.fromkeys(OLD.strip().splitlines(), "old-keras"),
    }


def test_keras_2_runs_the_lines_for_which_the_hint_names_it(tmp_path: Path) -> None:
    errors = errors_of(KERAS_2 + OLD.lstrip(), tmp_path, TF_USE_LEGACY_KERAS="1")
    assert set(errors) == set(OLD.strip().splitlines())
