"""Which releases of Keras 3 are patched, where the patch applies, and how to leave it out."""

from __future__ import annotations

import os
from typing import Any

from tfcluster_workers.errors import JobError

TESTED = ("3.3.0", "3.15.1")
"""The first and the last release of Keras this was tested with."""

SWITCH = "TFCLUSTER_KERAS3_SHIM"
"""`off` in a task's environment leaves Keras as it is."""


class Keras3Error(JobError, RuntimeError):
    """This job with this Keras 3 cannot train on several workers; the message has the cure."""


def is_switched_off() -> bool:
    return os.environ.get(SWITCH, "").lower() in {"off", "0", "false", "no"}


def is_tested(version: str) -> bool:
    """Whether `version` lies in the tested range; a release candidate counts as its release."""
    first, last = map(_numbers, TESTED)
    return first <= _numbers(version) <= last


def _numbers(version: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in version.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def version() -> str:
    """Return the version of the Keras that `import keras` gives."""
    import keras

    return str(keras.__version__)


def refusal(version: str) -> str:
    """Why `version` is refused, and the cure that pins Keras."""
    first, last = TESTED
    return (
        f"Keras {version} is not among the releases whose `fit` tfcluster patches for several"
        f" workers ({first} to {last}): pip install 'keras=={last}'"
    )


def spans_workers(strategy: Any) -> bool:
    """Whether `strategy` is a MultiWorkerMirroredStrategy of two workers and more."""
    import tensorflow as tf

    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    return bool(strategy.extended._in_multi_worker_mode())
