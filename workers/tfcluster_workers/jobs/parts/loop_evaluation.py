"""Evaluates what `custom_loop` has trained, on all replicas together."""

from __future__ import annotations

import argparse
from typing import Any

from tfcluster_workers.jobs.parts import openings


def evaluate(keras: Any, chosen: argparse.Namespace, loop: Any) -> tuple[float, float]:
    """Loss and accuracy of a `Loop` on the test split; the last batch may be a small one."""
    import tensorflow as tf

    tests = openings.examples(chosen, "test")
    batches = openings.batches(chosen, tests, loop.batch, training=False)
    with loop.strategy.scope():
        losses = keras.metrics.Mean(name="test_loss")
        accuracy = keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")

    def replica_test(inputs: Any) -> None:
        images, labels = inputs
        logits = loop.model(images, training=False)
        losses.update_state(loop.loss_of_each(labels, logits))
        accuracy.update_state(labels, logits)

    compiled = tf.function(lambda batch: loop.strategy.run(replica_test, args=(batch,)))
    for batch in loop.strategy.experimental_distribute_dataset(batches):
        compiled(batch)
    regularization = float(tf.add_n(loop.model.losses))
    return float(losses.result()) + regularization, float(accuracy.result())
