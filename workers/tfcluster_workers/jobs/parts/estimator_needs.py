"""What `tf.estimator` needs before a job uses it: a TensorFlow that has it, its mode, its log."""

from __future__ import annotations

import logging

from tfcluster_workers import context
from tfcluster_workers.errors import JobError


class NoEstimatorError(JobError):
    """TensorFlow 2.15 was the last release with Estimator."""

    def __init__(self, version: str) -> None:
        super().__init__(
            f"TensorFlow {version} has no tf.estimator (2.15 was the last release); run this job "
            "with a Python that has TensorFlow 2.15: tfcluster up SPEC --python PATH"
        )


def require() -> None:
    """Raise NoEstimatorError where TensorFlow has no Estimator any more."""
    import tensorflow as tf

    if not hasattr(getattr(tf, "estimator", None), "Estimator"):
        raise NoEstimatorError(tf.__version__)


def settle() -> None:
    """Show Estimator's own lines, each once, and choose the mode this task needs."""
    import tensorflow as tf

    logger = logging.getLogger("tensorflow")
    logger.setLevel(logging.INFO)
    logger.propagate = False  # other packages give the root logger a handler
    if context.current().job == "evaluator":
        # It copies the strategy, which eager mode refuses. The workers keep eager mode: there the
        # coordination service ends them within seconds when one of them dies.
        tf.compat.v1.disable_eager_execution()
