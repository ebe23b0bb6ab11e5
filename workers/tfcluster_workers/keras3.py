"""Makes stock Keras 3 `fit`, `evaluate` and `predict` work on several workers.

Keras 3's own fail there in every release to 3.15 (keras#20585, tensorflow#72388), and where they do
not fail some numbers are wrong. The rooms of the cure, each with the upstream places it mends:
keras3_trainer.py (what fails), keras3_batches.py (uneven shares of a batch), keras3_optimizers.py
(clipping, loss scale) and keras3_variables.py (metrics and moving averages of older releases).
All of them act under a strategy that spans workers only; else Keras's own code runs. The exception
is the type of seeds before 3.5 (keras3_seeds.py), which changes no number.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from tfcluster_workers import context
from tfcluster_workers.errors import JobError

TESTED = ("3.3.0", "3.15.1")
"""The first and the last release of Keras this was tested with."""

SWITCH = "TFCLUSTER_KERAS3_SHIM"
"""`off` in a task's environment leaves Keras as it is."""

TRAINER = "keras.src.backend.tensorflow.trainer"


class Keras3Error(JobError, RuntimeError):
    """This job with this Keras 3 cannot train on several workers; the message has the cure."""


def attach() -> None:
    """Mend the Keras 3 of this process, once; not where another backend or Keras 2 is in use."""
    trainer: Any = sys.modules.get(TRAINER)
    if trainer is None or is_switched_off() or hasattr(trainer, "_mended_by_tfcluster"):
        return
    trainer._mended_by_tfcluster = False  # until all of it is: half mended is refused
    from tfcluster_workers import keras3_trainer

    keras3_trainer.check_before_use(trainer)
    if not _obstacle(trainer):
        _mend(trainer)
        trainer._mended_by_tfcluster = True


def _mend(trainer: Any) -> None:
    from tfcluster_workers import (
        keras3_batches,
        keras3_optimizers,
        keras3_seeds,
        keras3_trainer,
        keras3_variables,
    )

    keras3_seeds.mend()
    keras3_variables.mend()
    keras3_batches.mend(trainer)
    keras3_optimizers.mend()
    keras3_trainer.mend(trainer)


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


def _version() -> str:
    import keras

    return str(keras.__version__)


@functools.cache
def _obstacle(trainer: Any) -> str:
    """Why this Keras is not mended; empty where it is."""
    from tfcluster_workers import keras3_trainer

    if not is_tested(_version()):
        return refusal(_version())
    if unknown := keras3_trainer.what_is_unknown(trainer):
        return (
            f"Keras {_version()} is not as it was released, or mended upstream: {unknown} differs"
            f" from what tfcluster replaces for several workers; {SWITCH}=off leaves it as it is"
        )
    return ""


@functools.cache
def require_mended(trainer: Any) -> None:
    """Say once, in the chief's log, that Keras is mended; raise Keras3Error where it is not."""
    if obstacle := _obstacle(trainer):
        raise Keras3Error(f"{obstacle}, or keras.version 2")
    if not trainer._mended_by_tfcluster:
        raise Keras3Error(
            f"tfcluster could not mend Keras {_version()} for several workers, and half mended it"
            f" would train wrongly: {SWITCH}=off leaves it as it is, or keras.version 2"
        )
    if context.current().is_chief:
        sys.stderr.write(
            f"tfcluster: Keras {_version()} is mended for several workers (keras#20585);"
            f" {SWITCH}=off leaves it as it is, keras.version 2 takes tf_keras\n"
        )


def refusal(version: str) -> str:
    """Why `version` is refused, and the cure that pins Keras."""
    first, last = TESTED
    return (
        f"Keras {version} is not among the releases whose `fit` tfcluster mends for several"
        f" workers ({first} to {last}): pip install 'keras=={last}'"
    )
