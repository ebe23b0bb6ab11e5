"""Makes stock Keras 3 `fit`, `evaluate` and `predict` work on several workers.

Two functions of keras/src/backend/tensorflow/trainer.py are wrong there (keras#20585,
tensorflow#72388, every release to 3.15): `_maybe_symbolic_build` converts a PerReplica batch, and
`reduce_per_replica` takes the mean of scalar logs over axis 0. They are replaced, for strategies
that span workers only; everything else runs Keras's own code.
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

from tfcluster_workers import context

TESTED = ("3.3.0", "3.15.1")
"""The first and the last release of Keras this was tested with."""

SWITCH = "TFCLUSTER_KERAS3_SHIM"
"""`off` in a task's environment leaves Keras as it is."""

TRAINER = "keras.src.backend.tensorflow.trainer"


class Keras3Error(RuntimeError):
    """This Keras 3 cannot train on several workers; the message has the cure."""


def attach() -> None:
    """Mend the Keras 3 of this process, where TensorFlow is its backend."""
    if TRAINER in sys.modules:
        mend_trainer(sys.modules[TRAINER])


def is_switched_off() -> bool:
    return os.environ.get(SWITCH, "").lower() in {"off", "0", "false", "no"}


def is_tested(version: str) -> bool:
    """Whether `version` lies in the tested range; a release candidate counts as its release."""
    first, last = map(_numbers, TESTED)
    return first <= _numbers(version) <= last


def _numbers(version: str) -> tuple[int, ...]:
    found = []
    for part in version.split(".")[:3]:
        digits = "".join(c for c in part if c.isdigit()) if part[:1].isdigit() else ""
        found.append(int(digits or 0))
    return tuple(found)


def mend_trainer(module: ModuleType) -> None:
    """Replace the two functions of `module`, the TensorFlow trainer of Keras 3; once."""
    trainer: Any = module
    if is_switched_off() or hasattr(trainer, "_mended_by_tfcluster"):
        return
    trainer._mended_by_tfcluster = True
    _mend_reduction(trainer)
    _mend_build(trainer)
    for name in ("make_train_function", "make_test_function", "make_predict_function"):
        _open_door(trainer.TensorFlowTrainer, name)


def spans_workers(strategy: Any) -> bool:
    """Whether `strategy` is a MultiWorkerMirroredStrategy of two workers and more."""
    import tensorflow as tf

    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    return bool(strategy.extended._in_multi_worker_mode())


def _mend_reduction(trainer: Any) -> None:
    original = trainer.reduce_per_replica

    @functools.wraps(original)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if reduction not in {"auto", "mean"} or not spans_workers(strategy):
            return original(values, strategy, reduction)
        return trainer.tree.map_structure(
            lambda value: strategy.reduce("MEAN", value, axis=None), values
        )

    trainer.reduce_per_replica = reduce_per_replica


def _mend_build(trainer: Any) -> None:
    owner = trainer.TensorFlowTrainer
    original = owner._maybe_symbolic_build

    @functools.wraps(original)
    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        if not spans_workers(self._distribute_strategy):
            return original(self, iterator=iterator, data_batch=data_batch)
        require_tested()
        if iterator is not None:
            data_batch = _first_batch(trainer.tree, iterator, self._distribute_strategy)
        with self._distribute_strategy.scope():
            return self._symbolic_build(data_batch=data_batch)

    owner._maybe_symbolic_build = _maybe_symbolic_build


def _first_batch(tree: Any, iterator: Any, strategy: Any) -> Any:
    """What the first replica of this task would get: its shapes are everybody's."""
    epoch = iterator.enumerate_epoch() if hasattr(iterator, "enumerate_epoch") else iterator
    for found in epoch:
        batch = next(found[-1])
        return tree.map_structure(lambda v: strategy.experimental_local_results(v)[0], batch)
    return None


def _open_door(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if spans_workers(self.distribute_strategy):
            require_tested()
        return original(self, *args, **kwargs)

    setattr(owner, name, checked)


@functools.cache
def require_tested() -> None:
    """Say once that Keras is mended; raise Keras3Error outside the tested range."""
    import keras

    version = str(keras.__version__)
    if not is_tested(version):
        raise Keras3Error(f"{refusal(version)}, or keras.version 2")
    if context.current().is_chief:
        sys.stderr.write(
            f"tfcluster: Keras {version} is mended for several workers (keras#20585);"
            f" {SWITCH}=off leaves it as it is, keras.version 2 takes tf_keras\n"
        )


def refusal(version: str) -> str:
    """Why `version` is refused, and the cure that pins Keras."""
    first, last = TESTED
    return (
        f"Keras {version} is not among the releases whose `fit` tfcluster mends for several"
        f" workers ({first} to {last}): pip install 'keras=={last}'"
    )
