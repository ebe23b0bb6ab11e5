"""Prepares TensorFlow for a job with `tf.estimator`: checks its release, sets mode and logging."""

from __future__ import annotations

import logging

from tfcluster_workers import context
from tfcluster_workers.errors import JobError


class NoEstimatorError(JobError):
    """A TensorFlow without Estimator; 2.15 was the last release that has it."""

    def __init__(self, version: str) -> None:
        super().__init__(
            f"TensorFlow {version} has no tf.estimator (the last release with it is 2.15); run this"
            " job with a Python that has TensorFlow 2.15: tfcluster up SPEC --python PATH"
        )


def require_estimator() -> None:
    """Raise NoEstimatorError if TensorFlow has no Estimator."""
    import tensorflow as tf

    if not hasattr(getattr(tf, "estimator", None), "Estimator"):
        raise NoEstimatorError(tf.__version__)


def configure() -> None:
    """Show Estimator's log lines once each, and choose eager or graph mode for this task."""
    import tensorflow as tf

    logger = logging.getLogger("tensorflow")
    logger.setLevel(logging.INFO)
    logger.propagate = False  # other packages give the root logger a handler
    if context.current().job == "evaluator":
        # An evaluator copies the strategy, which fails in eager mode. The workers keep eager mode:
        # there the coordination service ends them within seconds if one of them dies.
        tf.compat.v1.disable_eager_execution()
