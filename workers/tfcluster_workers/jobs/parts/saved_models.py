"""Loads the jobs' models from checkpoints, with the Keras that saved them, without a strategy."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from tfcluster_workers.errors import JobError
from tfcluster_workers.jobs.parts import digits_cnn, fashion_cnn

MODELS = {"digits_cnn": digits_cnn.build, "fashion_cnn": fashion_cnn.build}
"""Of `keras_mnist` and `parameter_server`, and of `custom_loop`."""


class OtherModelError(JobError):
    """The checkpoint is of another model."""

    def __init__(self, checkpoint: str, model: str, problem: object) -> None:
        others = ", ".join(name for name in MODELS if name != model)
        super().__init__(
            f"{checkpoint} is no checkpoint of {model} ({' '.join(str(problem).split())[:200]}); "
            f"--model names another ({others}), --dataset images of another size"
        )


def load(checkpoint: str, *, model: str, shape: tuple[int, ...]) -> Any:
    """The model of this name for images of `shape`, with the weights of a checkpoint's prefix.

    Raises OtherModelError, and JobError where its Keras is not installed.
    """
    import tensorflow as tf

    built = MODELS[model](keras_of(checkpoint), shape=shape)
    try:
        status = tf.train.Checkpoint(model=built).restore(checkpoint).expect_partial()
        status.assert_existing_objects_matched()
    except (AssertionError, ValueError) as error:
        tf.get_logger().setLevel("ERROR")  # else every value that found no place is told, at exit
        raise OtherModelError(checkpoint, model, error) from error
    return built


@functools.cache
def keras_of(checkpoint: str) -> Any:
    """The Keras that saved it: Keras 2 names layers `layer_with_weights-0`, Keras 3 does not.

    Raises JobError where that one is not installed.
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
    raise JobError(f"{checkpoint} was saved by Keras 3, and this is {installed.__version__}")
