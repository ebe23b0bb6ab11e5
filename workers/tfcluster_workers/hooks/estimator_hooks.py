"""Reports the steps of `tf.estimator` (TensorFlow 2.15 and older)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcluster_workers import reporting


class StepReporter(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A hook that reports the global step of each run; it does not change the graph."""

    def __init__(self, *, steps: int | None, max_steps: int | None) -> None:
        self._steps, self._total = steps, max_steps

    def begin(self) -> None:
        reporting.training_begins()
        self._global_step = tf.compat.v1.train.get_or_create_global_step()
        losses = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)
        self._fetches = {"step": self._global_step}
        self._metrics: dict[str, float] = {}
        if len(losses) == 1:
            self._fetches["loss"] = losses[0]

    def after_create_session(self, session: Any, coord: Any) -> None:
        if self._total is None and self._steps is not None:  # as in TensorFlow's StopAtStepHook
            self._total = int(session.run(self._global_step)) + self._steps

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        reporting.ready()
        results = dict(run_values.results)
        step = int(results.pop("step"))
        self._metrics = {name: float(value) for name, value in results.items()}
        reporting.progress(step, total=self._total, metrics=self._metrics)

    def end(self, session: Any) -> None:
        reporting.finished()
        # A run may fetch the step before its own training step has increased it.
        reporting.reached(int(session.run(self._global_step)), metrics=self._metrics)


class SignOfLife(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A hook that reports that an evaluation continues; it fetches nothing."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        reporting.alive()
