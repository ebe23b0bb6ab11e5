"""Patches stock Keras 3 so that `fit`, `evaluate` and `predict` work on several workers.

Keras 3's own versions fail there in every release (keras#20585, tensorflow#72388), and where they
do not fail some numbers are wrong. Each module names the upstream places it patches: trainer.py
(what fails), batches.py (uneven shares of a batch), optimizers.py (clipping, loss scale),
variables.py (metrics and moving averages of older releases) and counters.py (parameter servers).

Each patch acts only under a strategy that spans workers, counters.py only on variables that ps
tasks hold; otherwise Keras's own code runs. The one exception is the type of seeds before Keras 3.5
(seeds.py), which changes no number.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from tfcluster_workers import context
from tfcluster_workers.hooks.fit_position import OBSTACLE
from tfcluster_workers.hooks.replacing import replaces
from tfcluster_workers.keras3 import (
    batches,
    callbacks,
    counters,
    optimizers,
    release,
    scheduling,
    seeds,
    trainer,
    variables,
)
from tfcluster_workers.keras3.patches import OtherKerasError, Patches
from tfcluster_workers.keras3.release import SWITCH, Keras3Error

_STEPPING = (
    *("fit", "evaluate", "predict"),
    *("train_on_batch", "test_on_batch", "predict_on_batch"),
)
"""The public methods of `keras.Model` that run steps."""


def attach(keras: Any) -> None:
    """Patch Keras 3 once; leave Keras 2 and other backends alone.

    A Keras that cannot be patched stays as it is, and refuses to train on several workers.
    """
    if not _is_of_tensorflow(keras) or release.is_switched_off() or hasattr(keras.Model, OBSTACLE):
        return
    setattr(keras.Model, OBSTACLE, "tfcluster has not finished patching it")
    _require_patch(keras.Model)
    setattr(keras.Model, OBSTACLE, _patch(keras))


def obstacle(keras: Any) -> str:
    """Return why this Keras is not patched for several workers; empty if it is."""
    return str(getattr(keras.Model, OBSTACLE, "tfcluster's hooks are not attached"))


def _is_of_tensorflow(keras: Any) -> bool:
    if release.numbers(str(getattr(keras, "__version__", ""))) < (3,):
        return False
    return str(keras.config.backend()) == "tensorflow"


def _patch(keras: Any) -> str:
    """Apply every patch and return an empty string, or apply none and return the reason."""
    if not release.is_patchable(str(keras.__version__)):
        return f"only {release.TESTED[0]} and newer can be"
    patches = Patches()
    try:
        for part in (seeds, variables, counters, batches, optimizers, trainer):
            part.add_to(patches, keras)
        callbacks.require_methods(keras.callbacks)
    except OtherKerasError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    patches.apply()
    _patch_scheduling(keras)
    return ""


def _patch_scheduling(keras: Any) -> None:
    """Have `fit` support parameter servers, or fail as Keras does if a function is not found."""
    patches = Patches()
    try:
        scheduling.add_to(patches, keras)
    except OtherKerasError:
        return
    patches.apply()


def _require_patch(model: Any) -> None:
    """Have `fit` and the other public methods of a model refuse, before they begin, to fail."""
    for name in _STEPPING:
        owner = next((each for each in model.__mro__ if name in vars(each)), None)
        if owner is not None:
            _check_before(owner, name)


def _check_before(owner: Any, name: str) -> None:
    @replaces(owner, name)
    def checked(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if release.spans_workers(self.distribute_strategy):
            keras = sys.modules["keras"]
            if why := obstacle(keras):
                raise Keras3Error(release.refusal(str(keras.__version__), why))
            _announce(str(keras.__version__))
        return original(self, *args, **kwargs)


@functools.cache
def _announce(version: str) -> None:
    """Log once, in the chief, that Keras is patched."""
    if context.current().is_chief:
        newer = f", which is newer than {release.TESTED[1]}, the newest tested one,"
        sys.stderr.write(
            f"tfcluster: patched Keras {version}{newer if release.is_newer(version) else ''}"
            f" for multi-worker training (keras#20585); {SWITCH}=off disables the patch,"
            " keras.version=2 uses tf_keras\n"
        )
