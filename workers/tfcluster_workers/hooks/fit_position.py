"""The position of a training inside Keras's `fit`: saved with each backup, resumed exactly.

Keras's `BackupAndRestore` saves the model, the optimizer and the number of the epoch. A training
that resumes within an epoch then repeats batches (Keras 3: the whole epoch), and its metrics start
from zero. With the position, the epoch goes on with its next batch and the metrics it had.
"""

from __future__ import annotations

import base64
import contextlib
import io
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tfcluster_workers import reporting
from tfcluster_workers.hooks import one_writer
from tfcluster_workers.hooks.replacing import replaces


@dataclass
class Position:
    """The epochs and batches that are done, in the `fit` that a thread runs."""

    epoch: int = 0
    """The epochs done."""
    batches: int = 0
    """The batches done of the epoch after them."""
    resumed: Mapping[str, Any] | None = None
    """The position of a restored backup, until its epoch begins."""
    skipped: int = 0
    """The batches that the next epoch's iterator has to skip."""

    def begin_epoch(self, model: Any, epoch: int) -> None:
        """Note that `epoch` begins, its metrics reset; give a resumed epoch its metrics back."""
        self.epoch, self.batches = epoch, 0
        resumed, self.resumed = self.resumed, None
        if resumed is not None and resumed["epoch"] == epoch and resumed["batches"]:
            self.batches = self.skipped = int(resumed["batches"])
            _restore_metrics(model, resumed["metrics"])

    def end_batch(self, batch: int) -> None:
        self.batches = batch + 1

    def end_epoch(self, epoch: int) -> None:
        self.epoch, self.batches = epoch + 1, 0


_fitting = threading.local()
"""`position`: that of the `fit` that the thread runs."""


def current() -> Position | None:
    """Return the position of the `fit` that this thread runs, or None outside of `fit`."""
    return getattr(_fitting, "position", None)


@contextlib.contextmanager
def of_fit() -> Iterator[None]:
    """Keep a position for the `fit` that this thread runs in the context."""
    before = current()
    _fitting.position = Position()
    try:
        yield
    finally:
        _fitting.position = before


def save(model: Any) -> dict[str, Any] | None:
    """Return what a backup saves of the position, or None; every worker must call it.

    Only TensorFlow's Keras goes on within an epoch: that of another backend has no strategy.
    """
    position = current()
    if position is None or not hasattr(model, "distribute_strategy"):
        return None
    metrics = _save_metrics(model) if position.batches else ""
    return {"epoch": position.epoch, "batches": position.batches, "metrics": metrics}


def resume(saved: Mapping[str, Any] | None, steps_per_epoch: int | None) -> tuple[int, int] | None:
    """Have `fit` go on from a restored backup; return epoch and batch, or None if it has neither.

    An epoch whose last batch is done counts as done: neither Keras accepts an epoch without one.
    """
    position = current()
    if position is None or not saved:
        return None
    epoch, batches = int(saved["epoch"]), int(saved["batches"])
    if steps_per_epoch and batches >= steps_per_epoch:
        epoch, batches = epoch + 1, 0
    position.resumed = {**saved, "epoch": epoch, "batches": batches}
    return epoch, batches


# -- the batches that are done --------------------------------------------------------------------


def watch_keras_2_data(module: ModuleType) -> None:
    """Have an epoch that Keras 2 resumes at a batch begin with that batch of its data."""

    @replaces(vars(module)["DataHandler"], "enumerate_epochs")
    def enumerate_epochs(stock: Any, self: Any) -> Any:
        skipped = self._initial_step
        for epoch, iterator in stock(self):
            if skipped:
                _skip(iterator, skipped)
                _make_metrics(self._model, iterator)
                skipped = 0
            yield epoch, iterator


def _make_metrics(model: Any, iterator: Any) -> None:
    """Have Keras 2 make the metrics passed to `compile`, which it does when it traces a step."""
    with contextlib.suppress(Exception):  # not with `run_eagerly`; a script's error comes again
        model.train_function.get_concrete_function(iterator)


def enumerate_steps(stock: Any, self: Any) -> Any:
    """Yield the steps of Keras 3's iterator over an epoch, without the batches that are done.

    Each is the first batch of the step, in newer releases the last one, and the iterator.
    """
    position = current()
    skipped = 0
    if position is not None:
        skipped, position.skipped = position.skipped, 0
    for entry in stock(self):
        if entry[0] >= skipped:
            yield entry
        else:
            _skip(entry[-1], int(self.steps_per_execution))


def _skip(iterator: Any, batches: int) -> None:
    for _ in range(batches):
        next(iterator, None)


# -- metrics --------------------------------------------------------------------------------------


def _save_metrics(model: Any) -> str:
    """Return the values of all metrics' variables, summed over the workers where they are."""
    import numpy as np

    file = io.BytesIO()
    np.savez(file, *(variable.numpy() for variable in _metric_variables(model)))
    return base64.b64encode(file.getvalue()).decode()


def _restore_metrics(model: Any, saved: str) -> None:
    """Set the variables of the metrics that exist by now.

    Those passed to `compile` do not in Keras 2 with `run_eagerly`, and in Keras 3 before 3.5 or
    without a strategy.
    """
    import numpy as np

    if not saved:
        return
    values = list(np.load(io.BytesIO(base64.b64decode(saved))).values())
    variables = _metric_variables(model)
    if len(variables) < len(values):
        reporting.note("in the resumed epoch the metrics passed to `compile` begin anew")
    for variable, value in zip(variables, values):
        if tuple(variable.shape) != value.shape:
            reporting.note("other metrics than before: those of the resumed epoch begin anew")
            return
        _assign(variable, value)


def _assign(variable: Any, value: Any) -> None:
    """Assign a value; a variable that is summed when it is read gets an equal part in each replica.

    Keras shows the mean of the replicas' metrics after a batch, so equal parts show the same.
    """
    import tensorflow as tf

    synchronization = getattr(variable, "synchronization", None)
    strategy = getattr(variable, "distribute_strategy", None)  # None without a strategy
    if strategy is None or synchronization != tf.VariableSynchronization.ON_READ:
        variable.assign(value)
        return
    replicas = strategy.num_replicas_in_sync
    part = (value // replicas if value.dtype.kind in "iu" else value / replicas).astype(value.dtype)
    for index, local in enumerate(strategy.experimental_local_results(variable)):
        has_rest = index == 0 and one_writer.may_write(strategy)
        local.assign(value - part * (replicas - 1) if has_rest else part)


def _metric_variables(model: Any) -> list[Any]:
    """Return TensorFlow's variables of all metrics, in an order that all workers share."""
    variables = [variable for metric in model.metrics for variable in metric.variables]
    # A variable of Keras 3 has one of TensorFlow as its value; TensorFlow's own has a method.
    return [each if callable(each.value) else each.value for each in variables]
