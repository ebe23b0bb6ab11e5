"""Chooses the Keras a job uses: Keras 3 where it can train on several workers, else Keras 2.

Keras 3's own `fit` fails on two workers and more (keras#20585); `keras3` patches the releases it
was tested with. A job alone chooses in the same way, for equal numbers.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from typing import Any

from tfcluster_workers import callbacks, context, reporting
from tfcluster_workers.errors import JobError
from tfcluster_workers.keras3 import patching, release


class KerasChoiceError(JobError):
    """The Keras that is needed is not there; the message says how to get it."""


def load() -> Any:
    """The Keras module that `keras.version` of the spec asks for. Call before importing TensorFlow.

    `auto`: Keras 3 in the releases `keras3` patches, else tf_keras, else Keras 3 for a task alone;
    tf_keras first under ParameterServerStrategy, which Keras 3 does not know. Its callbacks write
    from one worker only. Raises KerasChoiceError.
    """
    keras = _chosen()
    callbacks.of(keras)
    return keras


def _chosen() -> Any:
    installed = _version("keras")
    if not installed.startswith("3."):
        return _keras_of_tensorflow(str(context.setting("keras_version", "auto")))
    version = str(context.setting("keras_version", "auto"))
    if version == "3":
        return _keras_3(installed)
    if version == "2" or (_prefers_keras_2(installed) and _has_keras_2()):
        return _keras_2()
    return _keras_3(installed)


def _prefers_keras_2(keras_3: str) -> bool:
    asked = os.environ.get("TF_USE_LEGACY_KERAS") in {"1", "true", "True"}
    serves = "ps" in context.current().cluster
    return asked or serves or release.is_switched_off() or not release.is_tested(keras_3)


def _has_keras_2() -> bool:
    return importlib.util.find_spec("tf_keras") is not None


def _keras_2() -> Any:
    if not _has_keras_2():
        raise KerasChoiceError(f"keras.version is 2, and tf_keras is missing: {_fix()}")
    if "tensorflow" not in sys.modules:
        # Read by TensorFlow 2.16 and later when `tf.keras` is first used.
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    return importlib.import_module("tf_keras")


def _keras_3(installed: str) -> Any:
    several = context.current().num_workers > 1
    if several and not release.is_switched_off() and not release.is_tested(installed):
        raise KerasChoiceError(f"{release.refusal(installed)}; or {_fix()}")
    keras = importlib.import_module("keras")
    backend = keras.config.backend()
    if several and backend != "tensorflow":
        raise KerasChoiceError(f"Keras runs on {backend} here: set KERAS_BACKEND=tensorflow")
    patching.attach()
    if several and release.is_switched_off():
        reporting.note(f"Keras 3 cannot `fit` on several workers, and {release.SWITCH} is off")
    return keras


def _keras_of_tensorflow(version: str) -> Any:
    """TensorFlow 2.15 and older bring Keras 2."""
    import tensorflow as tf

    if version == "3":
        raise KerasChoiceError(
            f"keras.version is 3, but Keras {version_of(tf.keras)} is installed:"
            " Keras 3 comes with TensorFlow 2.16 and newer"
        )
    return tf.keras


def _fix() -> str:
    wanted = ".".join(_version("tensorflow").split(".")[:2])
    return f"pip install 'tf-keras~={wanted}.0'"


def _version(package: str) -> str:
    """Of an installed package, without importing it; empty where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def version_of(keras: Any) -> str:
    """The version of a Keras module; TensorFlow 2.15's `tf.keras` does not say it itself."""
    return str(getattr(keras, "__version__", None) or importlib.import_module("keras").__version__)


def apply_precision(keras: Any) -> None:
    """Set the spec's `keras.precision` for the layers made from now on."""
    from tfcluster_workers import precision

    precision.apply(keras)


def steps_per_execution() -> int:
    """How many steps one call of the compiled function does (`keras.steps_per_execution`)."""
    return int(context.setting("steps_per_execution", 1))
