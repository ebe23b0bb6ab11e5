"""Trains a small CNN with a custom training loop; any number of workers gives the same numbers.

    tfcluster up cluster_specs/custom-loop-2w.json
    python -m tfcluster_workers.jobs.custom_loop --epochs 2        # one process, no cluster

`Loop` defines one training step; epochs.py has three ways to run a whole epoch of steps. On SIGTERM
the job saves after the current step. To adapt it, copy this file and replace `fashion_cnn` with
your model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import keras_choice, precision, reporting
from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline
from tfcluster_workers.jobs.parts import epochs, fashion_cnn, job_errors, job_start, options
from tfcluster_workers.jobs.parts.loop_checkpoints import LoopCheckpoints, variables_of


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="A small CNN with a custom training loop.")
    options.add_data(parser)
    options.add_training(parser, epochs=4)
    options.add_strategy(parser)
    add = parser.add_argument
    add("--iterate", choices=tuple(epochs.WAYS), default="for", help="how; see epochs.py")
    add("--save-every", type=options.positive, default=2, metavar="EPOCHS", help="default: 2")
    return parser.parse_args(arguments)


class Loop:
    """Model, optimizer and metrics, and the training step that updates them."""

    def __init__(
        self, keras: Any, args: argparse.Namespace, strategy: Any, *, shape: Any, batch: int
    ) -> None:
        import tensorflow as tf

        self.strategy, self.batch = strategy, batch
        with strategy.scope():
            self.model = fashion_cnn.build(keras, shape=shape, seed=args.seed)
            rate = 1e-3 * options.learning_rate_scale(args, batch)
            # With Adam's default epsilon (1e-7), rounding errors of gradients near 0 become steps.
            adam = keras.optimizers.Adam(rate, epsilon=1e-5)
            self.optimizer = precision.optimizer_for(keras, adam)
            precision.build(self.optimizer, self.model)
            cross_entropy = keras.losses.SparseCategoricalCrossentropy
            self.example_losses = cross_entropy(from_logits=True, reduction="none")
            self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
            self.loss_sum = tf.Variable(0.0, trainable=False)

    def state(self) -> dict[str, Any]:
        """Return the objects that a checkpoint holds; the `evaluate` job loads `model`."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "loss_sum": self.loss_sum,
            "accuracy": variables_of(self.accuracy),
        }

    def loss(self, labels: Any, logits: Any) -> Any:
        """Return this replica's part of the loss; all parts add up to the global batch's mean."""
        import tensorflow as tf

        losses = self.example_losses(labels, logits)
        mean = tf.nn.compute_average_loss(losses, global_batch_size=self.batch)
        regularization = tf.cast(tf.add_n(self.model.losses), mean.dtype)
        return mean + tf.nn.scale_regularization_loss(regularization)

    def replica_step(self, inputs: Any) -> Any:
        """Train on one replica's share of a batch: forward, backward, update, metrics."""
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
        """Run one step on all replicas; return the loss of the global batch."""
        losses = self.strategy.run(self.replica_step, args=(inputs,))
        return self.strategy.reduce("SUM", losses, axis=None)

    def end_epoch(self, epoch: int, steps: int) -> None:
        """Print the epoch's metrics and reset them."""
        loss, accuracy = float(self.loss_sum.numpy()) / steps, float(self.accuracy.result())
        print(f"epoch {epoch} loss {loss:.6f} accuracy {accuracy:.6f}", flush=True)
        self.loss_sum.assign(0.0)
        self.accuracy.reset_state()


def train(keras: Any, args: argparse.Namespace) -> tuple[float, float]:
    """Train, then evaluate; return loss and accuracy on the test split."""
    strategy = strategies.make(args.strategy, logical_cpus=args.logical_cpus)
    replicas = strategy.num_replicas_in_sync
    batch = options.global_batch(args, replicas)
    precision.apply(keras)
    examples = job_start.examples(args, "train")
    shape = tuple(examples.element_spec[0].shape)
    loop = Loop(keras, args, strategy, shape=shape, batch=batch)
    job_start.announce(
        "custom_loop", args, keras=keras, model=loop.model, replicas=replicas, batch=batch
    )
    reporting.gradients(loop.model.trainable_variables)
    batches = job_start.batches(args, examples, batch, training=True)
    checkpoints = LoopCheckpoints(strategy, **loop.state())
    per_epoch = pipeline.count(batches)
    data = epochs.distribute(strategy, batches, steps=per_epoch, done=checkpoints.steps_done)
    epoch_calls = epochs.WAYS[args.iterate](loop.step)
    for epoch in range(checkpoints.steps_done // per_epoch, args.epochs):
        for steps, function, arguments in epoch_calls(data, checkpoints.steps_done % per_epoch):
            loss = checkpoints.run(function, *arguments)
            loop.loss_sum.assign_add(loss)
            checkpoints.step.assign_add(steps)
            reporting.progress(
                checkpoints.steps_done,
                total=args.epochs * per_epoch,
                epoch=epoch + 1,
                epochs=args.epochs,
                metrics={"loss": float(loss) / steps},
                batch_size=batch,
                steps_per_execution=steps,
            )
        loop.end_epoch(epoch + 1, per_epoch)
        if (epoch + 1) % args.save_every == 0 or epoch + 1 == args.epochs:
            checkpoints.save()
    reporting.finished()
    checkpoints.close()
    return evaluate(keras, args, loop)


def evaluate(keras: Any, args: argparse.Namespace, loop: Loop) -> tuple[float, float]:
    """Return loss and accuracy on the test split; its last batch may be smaller."""
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a problem that the user can fix ends it with one line."""
    args = parse(arguments)
    with job_errors.exit_with_message("custom_loop"):
        loss, accuracy = train(keras_choice.load(), args)
    print(f"test loss {loss:.6f}", flush=True)
    print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
