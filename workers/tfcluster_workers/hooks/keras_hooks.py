"""Reports the steps of every `fit` of tf.keras, tf_keras and Keras 3 with a silent callback.

The callback changes no number and no visible output: it is added to Keras's list after the user's
callbacks, the user's own list stays as it is, and Keras's warning about slow callbacks ignores it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from tfcluster_workers import chaos, context, doubts, reporting, step_parts
from tfcluster_workers.hooks import (
    devices,
    fit_position,
    jax_cluster,
    one_writer,
    save_hooks,
    step_clocks,
    stop_saves,
    training_facts,
)
from tfcluster_workers.hooks.replacing import replaces

KERAS_DEFAULT = 32
"""Keras's default batch size for arrays."""


def global_batch_size(data: Any, *, requested: int | None) -> int | None:
    """Return the examples per step over all replicas, or None if they cannot be determined."""
    if requested is not None:
        return int(requested)
    if data is None:
        return None
    if hasattr(data, "element_spec"):
        return _size_in_dataset(data)
    if hasattr(data, "batch_size") and isinstance(data.batch_size, int):
        return data.batch_size  # a keras Sequence or PyDataset
    first = next(iter(data.values()), None) if isinstance(data, dict) else data
    first = first[0] if isinstance(first, (list, tuple)) and first else first
    return KERAS_DEFAULT if hasattr(first, "shape") else None


def _size_in_dataset(data: Any) -> int | None:
    """Return the global batch size of a tf.data.Dataset or of a distributed one, or None."""
    # A DistributedDataset divides the batches of another dataset, of which it keeps a reference.
    whole = getattr(data, "_original_dataset", None)
    if whole is not None:
        data = whole
    replicas, of_function = 1, getattr(data, "_datasets", None)
    if of_function:  # distribute_datasets_from_function: each batch is for one replica
        replicas, data = data._strategy.num_replicas_in_sync, of_function[0]
    size = _size_in_shapes(data) or _size_in_batch_call(data)
    return None if size is None else size * replicas


def _size_in_shapes(dataset: Any) -> int | None:
    """Return the batch size in the static shapes, as with `drop_remainder=True`, or None."""
    import tensorflow as tf

    shape = getattr(tf.nest.flatten(dataset.element_spec)[0], "shape", None)
    if shape is None or shape.rank in (None, 0) or shape[0] is None:
        return None
    return int(shape[0])


def _size_in_batch_call(dataset: Any) -> int | None:
    """Return the size in the dataset's `batch` call, below prefetch, repeat …, or None."""
    for _ in range(16):
        size = getattr(dataset, "_batch_size", None)
        if size is not None:
            return int(size)
        dataset = getattr(dataset, "_input_dataset", None)
        if dataset is None:
            return None
    return None


_REPORTER = "_tfcluster_reporter"
"""The attribute of a CallbackList with its FitReporter."""
_fitting = threading.local()
"""`batch_size`: the global batch size of the `fit` that this thread runs."""


def watch_callback_list(module: ModuleType) -> None:
    """Add a reporter to every CallbackList: `fit` makes one, and so may a custom training loop."""
    callback_list = vars(module).get("CallbackList")
    if callback_list is None:
        return

    @replaces(callback_list, "__init__")
    def construct(stock: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        _add_reporter(self)

    _time_callbacks(callback_list, "on_train_batch_begin")

    @replaces(callback_list, "on_epoch_begin")
    def begin_epoch(stock: Any, self: Any, epoch: int, logs: Any = None) -> None:
        with reporting.parts.of(step_parts.CALLBACKS):
            stock(self, epoch, logs)
        if (position := fit_position.current()) is not None:
            position.begin_epoch(self.model, epoch)
            if (reporter := vars(self).get(_REPORTER)) is not None:
                reporter.begin_epoch_at(position.batches)

    @replaces(callback_list, "on_epoch_end")
    def end_epoch(stock: Any, self: Any, epoch: int, logs: Any = None) -> None:
        if (position := fit_position.current()) is not None:
            position.end_epoch(epoch)
        with reporting.parts.of(step_parts.CALLBACKS):
            stock(self, epoch, logs)

    @replaces(callback_list, "on_train_batch_end")
    def end_batch(stock: Any, self: Any, batch: int, logs: Any = None) -> None:
        if (position := fit_position.current()) is not None:
            position.end_batch(batch)
        with reporting.parts.of(step_parts.CALLBACKS):
            stock(self, batch, logs)
        reporter = vars(self).get(_REPORTER)
        if reporter is not None and not hasattr(logs, "fetch"):
            reporting.parts.note(reporter.step_of(batch))

    for name in ("on_test_batch_begin", "on_predict_batch_begin"):
        _report_alive_at(callback_list, name)


def _time_callbacks(callback_list: Any, name: str) -> None:
    @replaces(callback_list, name)
    def call(stock: Any, *args: Any, **kwargs: Any) -> Any:
        with reporting.parts.of(step_parts.CALLBACKS):
            return stock(*args, **kwargs)


def _report_alive_at(callback_list: Any, name: str) -> None:
    """Have every CallbackList report that an evaluation or a prediction continues.

    The list is patched instead of adding a callback: for a callback that handles these batches,
    Keras 2 would fetch every batch's logs, and Keras 3 would run the callbacks in the thread that
    evaluates.
    """

    @replaces(callback_list, name)
    def with_sign_of_life(stock: Any, *args: Any, **kwargs: Any) -> Any:
        reporting.alive()
        doubts.note_data()
        return stock(*args, **kwargs)


def watch_fit(module: ModuleType) -> None:
    """Patch `fit` to note the batch size, which callbacks do not get, training alone, and its end.

    `fit` and `evaluate` begin with the check for the GPUs that the plan gives.
    """
    # In Keras 3 a base class of `Model` defines `fit`; its name and module depend on the release.
    owner = next(each for each in vars(module)["Model"].__mro__ if "fit" in vars(each))
    signature = inspect.signature(owner.fit)

    @replaces(owner, "fit")
    def fit(stock: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        devices.require_gpus()
        training_facts.note_fit(self)
        before = getattr(_fitting, "batch_size", None)
        _fitting.batch_size = _global_batch(signature, self, args, kwargs)
        doubts.fit_begins()
        try:
            with step_clocks.never_saved(), fit_position.of_fit(), stop_saves.end_of_fit():
                result = stock(self, *args, **kwargs)
        except BaseException as error:
            doubts.fit_ends(error)
            raise
        finally:
            _fitting.batch_size = before
        doubts.fit_ends(None)
        return result

    @replaces(owner, "evaluate")
    def evaluate(stock: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        devices.require_gpus()
        with reporting.parts.of(step_parts.EVALUATION):
            results = stock(self, *args, **kwargs)
        if context.is_evaluator():  # also in SidecarEvaluator
            reporting.evaluated(steps_done(self) or None)
        return results


def _global_batch(
    signature: inspect.Signature, model: Any, args: Any, kwargs: Mapping[str, Any]
) -> int | None:
    try:
        arguments = signature.bind(model, *args, **kwargs).arguments
        data, requested = arguments.get("x"), arguments.get("batch_size")
        size = global_batch_size(data, requested=requested)
        return None if size is None else size * jax_cluster.batches_per_step()
    except Exception:
        return None  # Keras itself reports a wrong call


def _add_reporter(callbacks: Any) -> None:
    is_keras_2 = hasattr(callbacks, "_should_call_train_batch_hooks")
    reporter = FitReporter(
        getattr(_fitting, "batch_size", None),
        sums_replicas=is_keras_2,
        callbacks=callbacks.callbacks,
    )
    try:
        reporter.set_model(getattr(callbacks, "model", None))
        reporter.set_params(getattr(callbacks, "params", None) or {})
        callbacks.callbacks.append(reporter)
        vars(callbacks)[_REPORTER] = reporter
        if is_keras_2:
            callbacks._should_call_train_batch_hooks = True
        elif chaos.has_step_faults() or reporting.ends.is_on:
            callbacks._async_train = False  # in the thread that trains: there a step ends
    except Exception as error:
        reporting.note(f"tfcluster cannot report Keras's progress: {error!r}")


class FitReporter:
    """A callback for any Keras, without a base class, that reports progress."""

    _supports_tf_logs = True  # Keras 2: pass the tensors as they are
    async_safe = True  # Keras 3: may run in parallel with the training step

    def __init__(
        self, global_batch: int | None, *, sums_replicas: bool, callbacks: Sequence[Any] = ()
    ) -> None:
        self._callbacks = callbacks
        self.params: Mapping[str, Any] = {}
        self.validation_data = None
        self._batch_size = global_batch
        self._model: Any = None
        self._base = 0
        self._step = 0
        self._epoch = 0
        self._epochs: int | None = None
        self._steps_per_epoch: int | None = None
        self._per_execution = 1
        self._is_first = True
        self._is_resuming = False
        self._polled_at = float("-inf")
        self._sums_replicas = sums_replicas

    @property
    def model(self) -> Any:
        return self._model

    def set_model(self, model: Any) -> None:
        self._model = model

    def set_params(self, params: Mapping[str, Any]) -> None:
        self.params = params

    def on_train_begin(self, logs: Any = None) -> None:
        reporting.training_begins()
        self._base = self._step = steps_done(self._model)
        self._is_resuming = True
        self._epochs = _count_in(self.params, "epochs")
        self._steps_per_epoch = _count_in(self.params, "steps")
        if fit_position.current() is not None:  # else a script's own loop
            stop_saves.fit_begins(self._model, self._callbacks)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch + 1
        self._base = self._step
        self._per_execution = _steps_per_execution(self._model)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._is_resuming:
            # Keras 2's BackupAndRestore may resume within an epoch, say at its batch 5.
            self._is_resuming = False
            self.begin_epoch_at(batch)

    def begin_epoch_at(self, batch: int) -> None:
        self._base = self._step - batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._is_first:
            self._is_first = False
            doubts.note_data()
            reporting.ready()
            _report_gradients(self._model)
        self._step = self.step_of(batch)
        if one_writer.has_coordinator(getattr(self._model, "distribute_strategy", None)):
            self._poll_servers()
        else:
            reporting.step_done(self._reading(logs, divisor=self._divisor()))
            # Never after the last batch: a resume would leave out the epoch's validation and end.
            if fit_position.current() is not None and batch + 1 != self._steps_per_epoch:
                stop_saves.step_done()

    def step_of(self, batch: int) -> int:
        """Return the step at the end of a batch, the last one of `steps_per_execution`."""
        return self._base + batch + 1

    def _poll_servers(self) -> None:
        """Report the ps tasks' step counter: a coordinator's batch "ends" when it is scheduled."""
        now = time.monotonic()
        if now - self._polled_at >= reporting.INTERVAL_S:
            self._polled_at = now
            done = min(self._step, steps_done(self._model))
            reporting.step_done(self._reading({}, divisor=1, step=done))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._steps_per_epoch is None:  # the data's size was unknown until they ended
            self._steps_per_epoch = self._step - self._base or None
        if not self._is_first:  # else resumed with no batch of the epoch left
            reading = self._reading(logs, divisor=1)
            reporting.meter.offer(dataclasses.replace(reading, ends_epoch=True))

    def on_train_end(self, logs: Any = None) -> None:
        reporting.finished()
        if self._epoch and self._is_first and doubts.is_in_fit():  # else a script's own loop
            doubts.note_no_data()

    def _divisor(self) -> int:
        """Return the number to divide a batch's logs by.

        Keras 2 adds up the replicas' means in them (`reduce_per_replica`, "sum"). Its own progress
        bar shows them like that, N times too large, until the epoch ends.
        """
        strategy = getattr(self._model, "distribute_strategy", None)
        return int(strategy.num_replicas_in_sync) if self._sums_replicas and strategy else 1

    def _reading(self, logs: Any, *, divisor: int, step: int | None = None) -> reporting.Reading:
        return reporting.Reading(
            self._step if step is None else step,
            epoch=self._epoch,
            epochs=self._epochs,
            steps_per_epoch=self._steps_per_epoch,
            total_steps=self._total_steps(),
            metrics=functools.partial(plain_numbers, logs, divisor=divisor),
            batch_size=self._batch_size,
            steps_per_execution=self._per_execution,
        )

    def _total_steps(self) -> int | None:
        """Return the step after the last epoch, counted from the begin of the present one."""
        if self._epochs is None or self._steps_per_epoch is None:
            return None
        return self._base + (self._epochs - self._epoch + 1) * self._steps_per_epoch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *args, **kwargs: None
        if name.startswith("_implements_"):
            return lambda: name == "_implements_train_batch_hooks"
        raise AttributeError(name)


def _report_gradients(model: Any) -> None:
    try:
        reporting.gradients(model.trainable_variables)
    except Exception as error:
        reporting.note(f"tfcluster cannot tell the size of the model's gradients: {error!r}")


def _count_in(params: Mapping[str, Any], name: str) -> int | None:
    """Return a positive number of the params of `fit`; None if it is unknown or missing."""
    value = params.get(name)
    return int(value) if isinstance(value, int) and value > 0 else None


def plain_numbers(logs: Any, *, divisor: int = 1) -> Mapping[str, float]:
    """Return the numbers of Keras's logs, divided by `divisor`; remote values are left out."""
    metrics = {}
    for name, value in dict(logs or {}).items():
        try:
            metrics[str(name)] = float(value) / divisor
        except (TypeError, ValueError):
            continue
    return metrics


def steps_done(model: Any) -> int:
    """Return the steps that the model's optimizer has taken; 0 if unknown."""
    return save_hooks.iterations_of(getattr(model, "optimizer", None)) or 0


def _steps_per_execution(model: Any) -> int:
    """Return the steps between two calls of the batch methods; Keras 2 keeps a variable."""
    steps = getattr(model, "_steps_per_execution", None)
    if steps is None:
        steps = getattr(model, "steps_per_execution", None)
    try:
        return 1 if steps is None else int(steps.numpy() if hasattr(steps, "numpy") else steps)
    except Exception:
        return 1
