"""Decides which releases of Keras 3 are patched, where the patch applies, and how to disable it."""

from __future__ import annotations

import os
from typing import Any

from tfcluster_workers.errors import JobError

TESTED = ("3.3.0", "3.15.1")
"""The first and the last release of Keras that the patches were tested with."""

SWITCH = "TFCLUSTER_KERAS3_SHIM"
"""The environment variable that disables the patches if it is `off`."""


class Keras3Error(JobError, RuntimeError):
    """A job that cannot train on several workers with this Keras 3; the message says what to do."""


def is_switched_off() -> bool:
    """Return whether the environment disables the patches."""
    return os.environ.get(SWITCH, "").lower() in {"off", "0", "false", "no"}


def is_tested(version: str) -> bool:
    """Return whether `version` is in the tested range; a candidate counts as its release."""
    first, last = map(_numbers, TESTED)
    return first <= _numbers(version) <= last


def _numbers(version: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in version.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def version() -> str:
    """Return the version of the Keras that `import keras` gives."""
    import keras

    return str(keras.__version__)


def refusal(version: str) -> str:
    """Return the message that refuses `version` and says how to install a tested one."""
    first, last = TESTED
    return (
        f"Keras {version} is not among the releases whose `fit` tfcluster patches for several"
        f" workers ({first} to {last}): pip install 'keras=={last}'"
    )


def spans_workers(strategy: Any) -> bool:
    """Return whether `strategy` is a MultiWorkerMirroredStrategy of two or more workers."""
    import tensorflow as tf

    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    return bool(strategy.extended._in_multi_worker_mode())
