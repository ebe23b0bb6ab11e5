"""Trains a small CNN with a loop of one's own, on any number of workers, with the same numbers.

    tfcluster up cluster_specs/custom-loop-2w.json
    python -m tfcluster_workers.jobs.custom_loop --epochs 2        # alone, no cluster

`Loop` is what is done with one batch, epochs.py has three ways to do that for a whole epoch.
SIGTERM saves after the step that runs. Copy this file and change `fashion_cnn` to your model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import keras_choice, precision, reporting
from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline
from tfcluster_workers.jobs.parts import (
    endings,
    epochs,
    fashion_cnn,
    loop_evaluation,
    openings,
    options,
)
from tfcluster_workers.jobs.parts.loop_checkpoints import LoopCheckpoints, variables_of


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line of the job."""
    parser = argparse.ArgumentParser(description="A small CNN with a training loop of its own.")
    options.add_data(parser)
    options.add_training(parser, epochs=4)
    options.add_strategy(parser)
    add = parser.add_argument
    add("--iterate", choices=tuple(epochs.WAYS), default="for", help="over batches; see epochs.py")
    add("--save-every", type=options.positive, default=2, metavar="EPOCHS", help="default: 2")
    return parser.parse_args(arguments)


class Loop:
    """Model, optimizer and metrics, and what is done with one batch."""

    def __init__(
        self, keras: Any, chosen: argparse.Namespace, strategy: Any, *, shape: Any, batch: int
    ) -> None:
        import tensorflow as tf

        self.strategy, self.batch = strategy, batch
        with strategy.scope():
            self.model = fashion_cnn.build(keras, shape=shape, seed=chosen.seed)
            rate = 1e-3 * options.learning_rate_scale(chosen, batch)
            # With Adam's own epsilon of 1e-7, rounding errors of gradients near 0 are steps.
            adam = keras.optimizers.Adam(rate, epsilon=1e-5)
            self.optimizer = precision.optimizer_for(keras, adam)
            precision.build(self.optimizer, self.model)
            cross_entropy = keras.losses.SparseCategoricalCrossentropy
            self.loss_of_each = cross_entropy(from_logits=True, reduction="none")
            self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
            self.loss_sum = tf.Variable(0.0, trainable=False)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; `model` is what `evaluate` looks for."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "loss_sum": self.loss_sum,
            "accuracy": variables_of(self.accuracy),
        }

    def loss(self, labels: Any, logits: Any) -> Any:
        """This replica's part of the loss; the parts of all replicas add up to the batch's mean."""
        import tensorflow as tf

        each = self.loss_of_each(labels, logits)
        mean = tf.nn.compute_average_loss(each, global_batch_size=self.batch)
        regularization = tf.cast(tf.add_n(self.model.losses), mean.dtype)
        return mean + tf.nn.scale_regularization_loss(regularization)

    def replica_step(self, inputs: Any) -> Any:
        """One replica's share of one batch: forward, backward, update, metrics."""
        import tensorflow as tf

        images, labels = inputs
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            loss = self.loss(labels, logits)
            scaled = precision.scale_loss(self.optimizer, loss)
        variables = self.model.trainable_variables
        gradients = tape.gradient(scaled, variables)
        precision.apply_gradients(self.optimizer, gradients, variables)
        self.accuracy.update_state(labels, logits)
        return loss

    def step(self, inputs: Any) -> Any:
        """One step of all replicas; the loss of the global batch."""
        losses = self.strategy.run(self.replica_step, args=(inputs,))
        return self.strategy.reduce("SUM", losses, axis=None)

    def end_epoch(self, epoch: int, steps: int) -> None:
        """One line, and the next epoch's metrics begin at 0."""
        loss, accuracy = float(self.loss_sum.numpy()) / steps, float(self.accuracy.result())
        print(f"epoch {epoch} loss {loss:.6f} accuracy {accuracy:.6f}", flush=True)
        self.loss_sum.assign(0.0)
        self.accuracy.reset_state()


def train(keras: Any, chosen: argparse.Namespace) -> tuple[float, float]:
    """Train and evaluate; loss and accuracy on the test split."""
    strategy = strategies.make(chosen.strategy, logical_cpus=chosen.logical_cpus)
    replicas = strategy.num_replicas_in_sync
    batch = options.global_batch(chosen, replicas)
    precision.apply(keras)
    examples = openings.examples(chosen, "train")
    shape = tuple(examples.element_spec[0].shape)
    loop = Loop(keras, chosen, strategy, shape=shape, batch=batch)
    openings.announce(
        "custom_loop", chosen, keras=keras, model=loop.model, replicas=replicas, batch=batch
    )
    batches = openings.batches(chosen, examples, batch, training=True)
    saving = LoopCheckpoints(strategy, **loop.state())
    per_epoch = pipeline.count(batches)
    data = epochs.distribute(strategy, batches, steps=per_epoch, done=saving.steps_done)
    way = epochs.WAYS[chosen.iterate](loop.step)
    for epoch in range(saving.steps_done // per_epoch, chosen.epochs):
        for steps, function, arguments in way(data, saving.steps_done % per_epoch):
            loss = saving.run(function, *arguments)
            loop.loss_sum.assign_add(loss)
            saving.step.assign_add(steps)
            reporting.progress(
                saving.steps_done,
                epoch=epoch + 1,
                metrics={"loss": float(loss) / steps},
                batch_size=batch,
                steps_per_execution=steps,
            )
        loop.end_epoch(epoch + 1, per_epoch)
        if (epoch + 1) % chosen.save_every == 0 or epoch + 1 == chosen.epochs:
            saving.save()
    reporting.finished()
    saving.close()
    return loop_evaluation.evaluate(keras, chosen, loop)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a mistake in the surroundings ends it with one line."""
    chosen = parse(arguments)
    with endings.told("custom_loop"):
        loss, accuracy = train(keras_choice.load(), chosen)
    print(f"test loss {loss:.6f}", flush=True)
    print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
