"""The position of a training inside Keras's `fit`: saved with each backup, resumed exactly.

Keras's `BackupAndRestore` saves the model, the optimizer and the number of the epoch. A training
that resumes within an epoch then repeats batches (Keras 3: the whole epoch), and its metrics start
from zero. With the position, the epoch goes on with its next batch and the metrics it had.
"""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import math
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
    batches_before: int = 0
    """The batches of this epoch that were done before the restart."""
    restored: Mapping[str, Any] | None = None
    """The position of a restored backup, until the data of its epoch begin."""
    has_metrics: bool = False
    """True if the metrics of a resumed epoch were restored."""
    model: Any = None

    def begin_epoch(self, model: Any, epoch: int) -> None:
        self.model = model
        self.epoch, self.batches, self.batches_before = epoch, 0, 0
        if self.restored is not None and self.restored["epoch"] == epoch:
            self.batches = self.batches_before = int(self.restored["batches"])

    def begin_data(self) -> Mapping[str, Any] | None:
        """Return the restored position when the data of its epoch begin, and only then."""
        if not self.batches_before:  # also while a callback evaluates before the epoch begins
            return None
        restored, self.restored = self.restored, None
        return restored

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


OBSTACLE = "_tfcluster_obstacle"
"""The attribute of Keras 3's `Model` that says why Keras is not patched; empty if it is."""


def can_resume_within_epoch(model: Any) -> bool:
    """Return whether `fit` of this model can skip batches: in Keras 2, and in a patched Keras 3.

    Keras 3 is patched on TensorFlow only. Not with parameter servers: there a batch "ends" when its
    step is scheduled, and the workers read the data.
    """
    if one_writer.has_coordinator(getattr(model, "distribute_strategy", None)):
        return False
    return getattr(model, OBSTACLE, None) == "" or hasattr(model, "_train_counter")


def save(model: Any) -> dict[str, Any] | None:
    """Return what a backup saves of the position, or None; every worker must call it."""
    position = current()
    if position is None or not can_resume_within_epoch(model):
        return None
    metrics = _save_metrics(model) if position.batches else ""
    return {"epoch": position.epoch, "batches": position.batches, "metrics": metrics}


def resume(model: Any, saved: Mapping[str, Any] | None) -> tuple[int, int] | None:
    """Have `fit` go on from a restored backup; return its epoch and batch, None if it has none."""
    position = current()
    if position is None or not saved:
        return None
    epoch, batches = int(saved["epoch"]), int(saved["batches"])
    if batches and not can_resume_within_epoch(model):
        reporting.note(
            f"epoch {epoch + 1} begins again, from the backup after its batch {batches}: this Keras"
            " is not patched to go on within an epoch"
        )
        return epoch, 0
    position.restored = saved
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
                _make_metrics_of_keras_2(self._model, iterator)
                skipped = 0
            yield epoch, iterator

    @replaces(vars(module)["DataHandler"], "steps")
    def steps(stock: Any, self: Any) -> Any:
        position = current()
        restored = None if position is None else position.begin_data()
        if position is not None and restored is not None:
            position.has_metrics = _restore_metrics(self._model, restored["metrics"])
        yield from stock(self)


def enumerate_steps(stock: Any, self: Any) -> Any:
    """Yield the steps of Keras 3's iterator over an epoch, without the batches that are done.

    Each is the first batch of the step, in newer releases the last one, and the iterator.
    """
    position, steps = current(), stock(self)
    restored = None if position is None else position.begin_data()
    if position is not None and restored is not None:
        per_step, batch = int(self.steps_per_execution), None
        for entry in itertools.islice(steps, math.ceil(restored["batches"] / per_step)):
            batch = _skip(entry[-1], per_step)
        position.has_metrics = _restore_metrics(position.model, restored["metrics"], batch)
    yield from steps


def _skip(iterator: Any, batches: int) -> Any:
    """Skip batches and return the last one of them."""
    batch = None
    for _ in range(batches):
        batch = next(iterator, batch)
    return batch


# -- metrics --------------------------------------------------------------------------------------


def _make_metrics_of_keras_2(model: Any, iterator: Any) -> None:
    """Have Keras 2 make the metrics passed to `compile`, which it does when it traces a step."""
    import tensorflow as tf

    step = model.train_function
    if not hasattr(step, "get_concrete_function"):  # with `run_eagerly`
        step = tf.function(step)
    with contextlib.suppress(Exception):  # a script's error comes again
        step.get_concrete_function(iterator)


def _make_metrics_of_keras_3(model: Any, batch: Any) -> None:
    """Have Keras 3 make them as it does under a strategy; else it waits for the first step."""
    import tensorflow as tf

    strategy = model.distribute_strategy
    with contextlib.suppress(Exception), strategy.scope():  # a script's error comes again
        first = [strategy.experimental_local_results(part)[0] for part in tf.nest.flatten(batch)]
        model._symbolic_build(data_batch=tf.nest.pack_sequence_as(batch, first))


def watch_keras_2_logs(module: ModuleType) -> None:
    """Have Keras 2 end an epoch that is resumed with no batch left, whose logs are None."""
    if not hasattr(module, "sync_to_numpy_or_python_type"):
        return  # Keras 3

    @replaces(module, "sync_to_numpy_or_python_type")
    def sync_to_numpy_or_python_type(stock: Any, tensors: Any) -> Any:
        return stock(_logs_before() if tensors is None else tensors)


def keras_3_logs(stock: Any, self: Any, logs: Any) -> Any:
    """Have Keras 3 end an epoch that is resumed with no batch left, which has no logs."""
    before = None if logs else _logs_before()
    return stock(self, logs if before is None else before)


def _logs_before() -> dict[str, Any] | None:
    """Return the metrics of a resumed epoch of which no batch was left; None in another one."""
    position = current()
    if position is None or not 0 < position.batches == position.batches_before:
        return None
    metrics = position.model.get_metrics_result() if position.has_metrics else {}
    return dict(metrics)


def _save_metrics(model: Any) -> str:
    """Return the values of all metrics' variables, summed over the workers where they are."""
    import numpy as np

    file = io.BytesIO()
    np.savez(file, *(variable.numpy() for variable in _metric_variables(model)))
    return base64.b64encode(file.getvalue()).decode()


def _restore_metrics(model: Any, saved: str, batch: Any = None) -> bool:
    """Set the variables of all metrics; return whether they are those that were saved.

    `batch`: data from which Keras 3 can make the metrics that do not exist yet.
    """
    import numpy as np

    values = list(np.load(io.BytesIO(base64.b64decode(saved))).values())
    if batch is not None and len(_metric_variables(model)) < len(values):
        _make_metrics_of_keras_3(model, batch)
    variables = _metric_variables(model)
    if [tuple(variable.shape) for variable in variables] != [value.shape for value in values]:
        reporting.note("the metrics of the resumed epoch begin again: the model has other ones")
        return False
    for variable, value in zip(variables, values):
        _assign(variable, value)
    return True


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
