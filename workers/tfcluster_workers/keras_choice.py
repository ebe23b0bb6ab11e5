"""Chooses the Keras a job uses: Keras 2 while Keras 3's `fit` fails on two workers and more.

Keras 3 reduces scalar logs over axis 0 under MultiWorkerMirroredStrategy (TensorFlow issue 72388,
Keras issue 20585; every release to 3.15). A job alone uses Keras 2 as well, for equal numbers.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from tfcluster_workers import context, reporting
from tfcluster_workers.errors import JobError


class KerasChoiceError(JobError):
    """The Keras that is needed is not there; the message says how to get it."""


def load() -> Any:
    """The Keras module: Keras 2 where the spec leaves it open. Call before importing TensorFlow."""
    version = str(context.setting("keras_version", "auto"))
    if version == "3":
        return _keras_3()
    if "tensorflow" not in sys.modules:
        # Read by TensorFlow 2.16 and later when `tf.keras` is first used.
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    if importlib.util.find_spec("tf_keras") is not None:
        return importlib.import_module("tf_keras")
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    return _keras_of_tensorflow(must_be_2=version == "2")


def _keras_3() -> Any:
    keras = importlib.import_module("keras")
    if not keras.__version__.startswith("3."):
        raise KerasChoiceError(f"keras.version is 3, but Keras {keras.__version__} is installed")
    if context.current().num_workers > 1:
        reporting.note("Keras 3 cannot `fit` on several workers; set keras.version to auto or 2")
    return keras


def _keras_of_tensorflow(*, must_be_2: bool) -> Any:
    import tensorflow as tf

    keras = tf.keras
    several = context.current().num_workers > 1
    if version_of(keras).startswith("3.") and (must_be_2 or several):
        wanted = ".".join(tf.__version__.split(".")[:2])
        raise KerasChoiceError(
            f"Keras {version_of(keras)} cannot `fit` on several workers and tf_keras is missing: "
            f"pip install 'tf-keras~={wanted}.0'"
        )
    return keras


def version_of(keras: Any) -> str:
    """The version of a Keras module; TensorFlow 2.15's `tf.keras` does not say it itself."""
    return str(getattr(keras, "__version__", None) or importlib.import_module("keras").__version__)


def apply_precision(keras: Any) -> None:
    """Set the spec's `keras.precision` for the layers made from now on."""
    precision = context.setting("precision")
    if precision:
        keras.mixed_precision.set_global_policy(precision)


def steps_per_execution() -> int:
    """How many steps one call of the compiled function does (`keras.steps_per_execution`)."""
    return int(context.setting("steps_per_execution", 1))
