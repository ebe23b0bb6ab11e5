"""A job that fails on purpose, to show how tfcluster reports a failure.

    tfcluster up cluster_specs/broken-2w.json

It trains a linear classifier in a custom training loop. In step 20 worker 1 gets images that lack a
row, as one bad file among many would cause. docs/tutorials/broken.md explains tfcluster's report.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import context, reporting
from tfcluster_workers import strategy as strategies

BATCH, ROWS, COLUMNS, CLASSES = 32, 28, 28, 10


def train(steps: int, bad_step: int, bad_task: str) -> None:
    """Train for `steps` steps; `bad_task` gets images of the wrong shape in step `bad_step`."""
    import numpy as np
    import tensorflow as tf

    strategy, this_task = strategies.make(), context.current()
    size = BATCH * strategy.num_replicas_in_sync
    with strategy.scope():
        initial = tf.zeros((ROWS * COLUMNS, CLASSES))
        weights = tf.Variable(initial, aggregation=tf.VariableAggregation.SUM)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = images @ weights
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=size)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    for step in range(1, steps + 1):
        rows = ROWS - 1 if (step, this_task.task) == (bad_step, bad_task) else ROWS
        images = np.random.default_rng(step).random((BATCH, rows * COLUMNS), dtype=np.float32)
        losses = strategy.run(train_step, args=(images, images[:, :CLASSES].argmax(axis=1)))
        loss = float(strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None))
        reporting.progress(step, metrics={"loss": loss}, batch_size=size)
        print(f"step {step}  loss {loss:.4f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job."""
    parser = argparse.ArgumentParser(description="Fails on purpose.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--bad-step", type=int, default=20, help="0: never")
    parser.add_argument("--bad-task", default="worker:1")
    train(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
