"""Patches stock Keras 3 so that `fit`, `evaluate` and `predict` work on several workers.

Keras 3's own versions fail there in every release to 3.15 (keras#20585, tensorflow#72388), and
where they do not fail some numbers are wrong. Each module names the upstream places it patches:
trainer.py (what fails), batches.py (uneven shares of a batch), optimizers.py (clipping, loss scale)
and variables.py (metrics and moving averages of older releases).

Each patch acts only under a strategy that spans workers; otherwise Keras's own code runs. The one
exception is the type of seeds before Keras 3.5 (seeds.py), which changes no number.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from tfcluster_workers import context
from tfcluster_workers.keras3 import batches, optimizers, release, seeds, trainer, variables
from tfcluster_workers.keras3.release import SWITCH, Keras3Error

TRAINER = "keras.src.backend.tensorflow.trainer"
"""The module of Keras 3 that defines `fit` for TensorFlow."""

_MARK = "_patched_by_tfcluster"


def attach(_keras: object = None) -> None:
    """Patch the Keras 3 of this process once; leave Keras 2 and other backends alone."""
    module = sys.modules.get(TRAINER)
    if module is None or release.is_switched_off() or hasattr(module, _MARK):
        return
    setattr(module, _MARK, False)  # until every patch is applied: a half-patched Keras is refused
    trainer.check_before_use(module, functools.partial(require_patched, module))
    if not _obstacle(module):
        _patch(module)
        setattr(module, _MARK, True)


def _patch(module: Any) -> None:
    seeds.patch()
    variables.patch()
    batches.patch(module)
    optimizers.patch()
    trainer.patch(module)


@functools.cache
def _obstacle(module: Any) -> str:
    """Return why this Keras cannot be patched; empty if it can."""
    version = release.version()
    if not release.is_tested(version):
        return release.refusal(version)
    if unknown := trainer.find_unknown_function(module):
        return (
            f"Keras {version} differs from its release, or was fixed upstream: {unknown} is not"
            " the function that tfcluster replaces for several workers;"
            f" {SWITCH}=off disables the patch"
        )
    return ""


@functools.cache
def require_patched(module: Any) -> None:
    """Log once, in the chief, that Keras is patched; raise Keras3Error if it could not be."""
    if obstacle := _obstacle(module):
        raise Keras3Error(f"{obstacle}, or set keras.version to 2")
    if not getattr(module, _MARK):
        raise Keras3Error(
            f"tfcluster could not patch all of Keras {release.version()} for several workers, and a"
            f" half-patched Keras would train wrongly: {SWITCH}=off disables the patch, or set"
            " keras.version to 2"
        )
    if context.current().is_chief:
        sys.stderr.write(
            f"tfcluster: patched Keras {release.version()} for multi-worker training"
            f" (keras#20585); {SWITCH}=off disables the patch, keras.version=2 uses tf_keras\n"
        )
