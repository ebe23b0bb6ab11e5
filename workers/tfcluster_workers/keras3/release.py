"""Decides which releases of Keras 3 are patched, where the patch applies, and how to disable it."""

from __future__ import annotations

import os
from typing import Any

from tfcluster_workers.errors import JobError

TESTED = ("3.3.0", "3.15.1")
"""The first and the last release of Keras that the patches were tested with.

An older one is not patched. A newer one is patched if every function is found (`patches`).
"""

SWITCH = "TFCLUSTER_KERAS3_SHIM"
"""The environment variable that disables the patches if it is `off`."""


class Keras3Error(JobError, RuntimeError):
    """A job that cannot train on several workers with this Keras 3; the message says what to do."""


def is_switched_off() -> bool:
    """Return whether the environment disables the patches."""
    return os.environ.get(SWITCH, "").lower() in {"off", "0", "false", "no"}


def is_patchable(version: str) -> bool:
    """Return whether `version` is not older than the tested releases."""
    return numbers(version) >= numbers(TESTED[0])


def is_newer(version: str) -> bool:
    """Return whether `version` is newer than the tested releases; a candidate is its release."""
    return numbers(version) > numbers(TESTED[1])


def numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version."""
    found: list[int] = []
    for part in version.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def refusal(version: str, why: str) -> str:
    """Return the message that refuses `version` and says how to install a tested one."""
    return (
        f"Keras {version} cannot be patched for several workers: {why}."
        f" Install a tested release ({install_tested(version)}), or set keras.version to 2"
        f" (tf_keras); {SWITCH}=off disables the patch"
    )


def install_tested(version: str) -> str:
    """Return the command that replaces `version` by the newest tested release."""
    if ".dev" not in version:
        return f"pip install 'keras=={TESTED[1]}'"
    # keras-nightly and keras install the same files, and pip does not know that.
    return f"pip uninstall -y keras-nightly; pip install --force-reinstall 'keras=={TESTED[1]}'"


def spans_workers(strategy: Any) -> bool:
    """Return whether `strategy` is a MultiWorkerMirroredStrategy of two or more workers."""
    import tensorflow as tf

    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    return bool(strategy.extended._in_multi_worker_mode())
