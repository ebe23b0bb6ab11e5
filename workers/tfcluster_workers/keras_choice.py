"""Chooses the Keras that a job uses: Keras 3 where it can train on several workers, else Keras 2.

Keras 3's own `fit` fails on two or more workers (keras#20585); `keras3` patches it from 3.3 on. A
job without a cluster chooses in the same way, so that its numbers are equal.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from typing import Any

from tfcluster_workers import callbacks, context, reporting
from tfcluster_workers.errors import JobError
from tfcluster_workers.keras3 import patching, release

_KERAS = ("keras-nightly", "keras")
"""The packages that have Keras; where both are installed, the nightly's files replace the others'.
"""


class KerasChoiceError(JobError):
    """The requested Keras is not installed or cannot work; the message says how to get it."""


def load() -> Any:
    """Return the Keras module that `keras.version` of the spec selects.

    Call it before importing TensorFlow. `auto` selects Keras 3 if `keras3` can patch it, else
    tf_keras, else Keras 3 for a task without a cluster. Keras 3 does not support
    ParameterServerStrategy, so that gets tf_keras if it is installed. The module's callbacks write
    files on one worker only. Raises KerasChoiceError.
    """
    keras = _chosen()
    callbacks.of(keras)
    return keras


def _chosen() -> Any:
    installed, version = _version(*_KERAS), str(context.setting("keras_version", "auto"))
    if release.numbers(installed) < (3,):
        return _keras_of_tensorflow(version)
    if version == "2" or (version == "auto" and _prefers_keras_2(installed) and _has_keras_2()):
        return _keras_2()
    return _keras_3(may_be_2=version == "auto" and _has_keras_2())


def _prefers_keras_2(keras_3: str) -> bool:
    is_requested = os.environ.get("TF_USE_LEGACY_KERAS") in {"1", "true", "True"}
    has_servers = "ps" in context.current().cluster
    return (
        is_requested
        or has_servers
        or release.is_switched_off()
        or not release.is_patchable(keras_3)
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


def _keras_3(*, may_be_2: bool) -> Any:
    several = context.current().num_workers > 1
    keras = importlib.import_module("keras")
    backend = keras.config.backend()
    if several and backend != "tensorflow":
        raise KerasChoiceError(f"Keras uses the backend {backend}: set KERAS_BACKEND=tensorflow")
    patching.attach(keras)
    if several and release.is_switched_off():
        reporting.note(
            f"Keras 3's `fit` fails on several workers, and {release.SWITCH}=off disables the patch"
        )
    elif several and (why := patching.obstacle(keras)):
        if not may_be_2:
            raise release.Keras3Error(f"{release.refusal(keras.__version__, why)}; {_fix()}")
        reporting.note(f"tf_keras is used: Keras {keras.__version__} cannot be patched ({why})")
        return _keras_2()
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


def _version(*packages: str) -> str:
    """Return the version of the first installed package, not importing it, or an empty string."""
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
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
