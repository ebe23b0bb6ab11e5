"""Evaluates the model of `custom_loop` on all replicas together."""

from __future__ import annotations

import argparse
from typing import Any

from tfcluster_workers.jobs.parts import job_start


def evaluate(keras: Any, args: argparse.Namespace, loop: Any) -> tuple[float, float]:
    """Return loss and accuracy of a `Loop` on the test split; the last batch may be smaller."""
    import tensorflow as tf

    tests = job_start.examples(args, "test")
    batches = job_start.batches(args, tests, loop.batch, training=False)
    with loop.strategy.scope():
        losses = keras.metrics.Mean(name="test_loss")
        accuracy = keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")

    def replica_test(inputs: Any) -> None:
        images, labels = inputs
        logits = loop.model(images, training=False)
        losses.update_state(loop.example_losses(labels, logits))
        accuracy.update_state(labels, logits)

    compiled = tf.function(lambda batch: loop.strategy.run(replica_test, args=(batch,)))
    for batch in loop.strategy.experimental_distribute_dataset(batches):
        compiled(batch)
    regularization = float(tf.add_n(loop.model.losses))
    return float(losses.result()) + regularization, float(accuracy.result())
