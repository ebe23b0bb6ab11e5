"""Loads the jobs' models from checkpoints with the Keras that saved them, without a strategy."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from tfcluster_workers.errors import JobError
from tfcluster_workers.jobs.parts import digits_cnn, fashion_cnn

MODELS = {"digits_cnn": digits_cnn.build, "fashion_cnn": fashion_cnn.build}
"""Name of a model → its `build` function; `fashion_cnn` is the one of `custom_loop`."""


class OtherModelError(JobError):
    """A checkpoint of another model."""

    def __init__(self, checkpoint: str, model: str, problem: object) -> None:
        others = ", ".join(name for name in MODELS if name != model)
        super().__init__(
            f"{checkpoint} is not a checkpoint of {model} "
            f"({' '.join(str(problem).split())[:200]}); try another --model ({others}), or the "
            "--dataset that the model was trained on"
        )


def load(checkpoint: str, *, model: str, shape: tuple[int, ...]) -> Any:
    """Return the named model for images of `shape`, with the weights of a checkpoint prefix.

    Raises OtherModelError, and JobError if the Keras that saved it is not installed.
    """
    import tensorflow as tf

    built = MODELS[model](keras_of(checkpoint), shape=shape)
    try:
        status = tf.train.Checkpoint(model=built).restore(checkpoint).expect_partial()
        status.assert_existing_objects_matched()
    except (AssertionError, ValueError) as error:
        tf.get_logger().setLevel("ERROR")  # else TensorFlow logs every unused value at exit
        raise OtherModelError(checkpoint, model, error) from error
    return built


@functools.cache
def keras_of(checkpoint: str) -> Any:
    """Return the Keras that saved `checkpoint`; raise JobError if it is not installed.

    Keras 2 names layers `layer_with_weights-0`, Keras 3 does not.
    """
    import tensorflow as tf

    names = [name for name, _ in tf.train.list_variables(checkpoint)]
    is_keras_2 = any("/layer_with_weights-" in name for name in names)
    if is_keras_2 and importlib.util.find_spec("tf_keras") is not None:
        return importlib.import_module("tf_keras")
    installed = importlib.import_module("keras")
    if is_keras_2 is installed.__version__.startswith("2."):
        return tf.keras if is_keras_2 else installed
    if is_keras_2:
        raise JobError(f"{checkpoint} was saved by Keras 2: install tf-keras to load it")
    raise JobError(
        f"{checkpoint} was saved by Keras 3, but Keras {installed.__version__} is installed"
    )
