"""Chooses the Keras that a job uses: Keras 3 where it can train on several workers, else Keras 2.

Keras 3's own `fit` fails on two or more workers (keras#20585); `keras3` patches the releases it was
tested with. A job without a cluster chooses in the same way, so that its numbers are equal.
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
    """The requested Keras is not installed or cannot work; the message says how to get it."""


def load() -> Any:
    """Return the Keras module that `keras.version` of the spec selects.

    Call it before importing TensorFlow. `auto` selects Keras 3 in the releases that `keras3`
    patches, else tf_keras, else Keras 3 for a task without a cluster. Keras 3 does not support
    ParameterServerStrategy, so that gets tf_keras if it is installed. The module's callbacks write
    files on one worker only. Raises KerasChoiceError.
    """
    keras = _chosen()
    callbacks.of(keras)
    return keras


def _chosen() -> Any:
    installed, version = _version("keras"), str(context.setting("keras_version", "auto"))
    if not installed.startswith("3."):
        return _keras_of_tensorflow(version)
    if version == "3":
        return _keras_3(installed)
    if version == "2" or (_prefers_keras_2(installed) and _has_keras_2()):
        return _keras_2()
    return _keras_3(installed)


def _prefers_keras_2(keras_3: str) -> bool:
    is_requested = os.environ.get("TF_USE_LEGACY_KERAS") in {"1", "true", "True"}
    has_servers = "ps" in context.current().cluster
    return (
        is_requested or has_servers or release.is_switched_off() or not release.is_tested(keras_3)
    )


def _has_keras_2() -> bool:
    return importlib.util.find_spec("tf_keras") is not None


def _keras_2() -> Any:
    if not _has_keras_2():
        raise KerasChoiceError(f"keras.version is 2, but tf_keras is not installed: {_fix()}")
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
        raise KerasChoiceError(f"Keras uses the backend {backend}: set KERAS_BACKEND=tensorflow")
    patching.attach()
    if several and release.is_switched_off():
        reporting.note(
            f"Keras 3's `fit` fails on several workers, and {release.SWITCH}=off disables the patch"
        )
    return keras


def _keras_of_tensorflow(version: str) -> Any:
    """Return `tf.keras` of TensorFlow 2.15 or older, which installs Keras 2."""
    import tensorflow as tf

    if version == "3":
        raise KerasChoiceError(
            f"keras.version is 3, but Keras {version_of(tf.keras)} is installed:"
            " Keras 3 comes with TensorFlow 2.16 and newer"
        )
    return tf.keras


def _fix() -> str:
    minor_version = ".".join(_version("tensorflow").split(".")[:2])
    return f"pip install 'tf-keras~={minor_version}.0'"


def _version(package: str) -> str:
    """Return the version of an installed package without importing it, or an empty string."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def version_of(keras: Any) -> str:
    """Return the version of a Keras module; TensorFlow 2.15's `tf.keras` has no `__version__`."""
    return str(getattr(keras, "__version__", None) or importlib.import_module("keras").__version__)


def apply_precision(keras: Any) -> None:
    """Set the spec's `keras.precision` for the layers made from now on."""
    from tfcluster_workers import precision

    precision.apply(keras)


def steps_per_execution() -> int:
    """Return how many steps a call of the compiled function runs (`keras.steps_per_execution`)."""
    return int(context.setting("steps_per_execution", 1))
