"""Loads the digits model from a checkpoint, with the Keras that saved it and without a strategy."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from tfcluster_workers.errors import JobError
from tfcluster_workers.jobs import digits_cnn


class OtherModelError(JobError):
    """The checkpoint is of another model."""

    def __init__(self, checkpoint: str, problem: str) -> None:
        super().__init__(
            f"{checkpoint} is no checkpoint of digits_cnn, which this job builds: {problem}; "
            "where your own model was trained, build that one here, too"
        )


def load(checkpoint: str, *, shape: tuple[int, ...]) -> Any:
    """The model for images of `shape`, with the weights of the checkpoint of this prefix.

    Raises OtherModelError, and JobError where its Keras is not installed.
    """
    import tensorflow as tf

    names = [name for name, _ in tf.train.list_variables(checkpoint)]
    model = digits_cnn.build(_keras_of(checkpoint, names), shape=shape)
    try:
        status = tf.train.Checkpoint(model=model).restore(checkpoint)
        status.assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError) as error:
        raise OtherModelError(checkpoint, _first_line(error)) from error
    return model


def _keras_of(checkpoint: str, names: Sequence[str]) -> Any:
    """Keras 2 names a model's layers `layer_with_weights-0` in a checkpoint, Keras 3 does not."""
    import tensorflow as tf

    is_keras_2 = any("/layer_with_weights-" in name for name in names)
    if is_keras_2 and importlib.util.find_spec("tf_keras") is not None:
        return importlib.import_module("tf_keras")
    installed = importlib.import_module("keras").__version__
    if is_keras_2 is installed.startswith("2."):
        return tf.keras
    if is_keras_2:
        raise JobError(f"{checkpoint} was saved by Keras 2: install tf-keras to load it")
    raise JobError(f"{checkpoint} was saved by Keras 3, and Keras {installed} is installed")


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
