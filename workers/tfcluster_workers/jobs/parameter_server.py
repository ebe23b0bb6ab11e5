"""Trains a small CNN with parameter servers: a chief hands out steps, workers do them, ps keep.

    tfcluster up cluster_specs/parameter-server.json
    python -m tfcluster_workers.jobs.parameter_server      # alone: the whole cluster in one process

Workers do not wait for each other, so the losses differ a little from run to run. One that dies is
started again while the others train on. Copy this file and change `digits_cnn` to your model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import context, keras_choice, precision, server
from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline
from tfcluster_workers.errors import JobError
from tfcluster_workers.jobs.parts import digits_cnn, endings, openings, options, saved_models
from tfcluster_workers.jobs.parts.coordination import Steps


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line of the job."""
    parser = argparse.ArgumentParser(description="A small CNN with ParameterServerStrategy.")
    options.add_data(parser)
    parser.set_defaults(shard_policy="off")
    add = parser.add_argument_group("training").add_argument
    add("--max-steps", type=options.positive, default=400, help="steps of all workers together")
    add("--save-steps", type=options.positive, default=100, help="steps between two checkpoints")
    add("--batch", type=options.positive, default=96, help="examples of a step, all one worker's")
    add("--learning-rate", type=float, default=1e-3)
    return parser.parse_args(arguments)


class Training:
    """Model, optimizer and loss on the ps, and the step that a worker does with them."""

    def __init__(self, keras: Any, chosen: argparse.Namespace, strategy: Any) -> None:
        self.chosen, self.keras, self.strategy = chosen, keras, strategy
        with strategy.scope():
            shape = tuple(openings.examples(chosen, "train").element_spec[0].shape)
            self.model = digits_cnn.build(keras, shape=shape, seed=chosen.seed)
            self.optimizer = keras.optimizers.Adam(chosen.learning_rate)
            precision.build(self.optimizer, self.model)
            # Not the steps' own results: what a worker keeps is lost with it.
            self.loss = keras.metrics.Mean()

    def step(self, batch: Any) -> None:
        """One batch on one replica."""
        import tensorflow as tf

        images, labels = batch
        losses = self.keras.losses
        loss_of = losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        with tf.GradientTape() as tape:
            each = loss_of(labels, self.model(images, training=True))
            loss = tf.nn.compute_average_loss(each, global_batch_size=self.chosen.batch)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.loss.update_state(loss)

    def batches(self) -> Any:
        """Every worker reads everything in an order of its own: it may do any of the steps."""
        import tensorflow as tf

        index = tf.distribute.coordinator.experimental_get_current_worker_index()

        def of_worker(shares: Any) -> Any:
            examples = openings.examples(self.chosen, "train")
            shuffled = examples.shuffle(10_000, seed=self.chosen.seed + index).repeat()
            size = shares.get_per_replica_batch_size(self.chosen.batch)
            return shuffled.batch(size, drop_remainder=True).prefetch(self.chosen.prefetch)

        return self.strategy.distribute_datasets_from_function(of_worker)

    def metrics(self) -> dict[str, float]:
        """The mean loss since the last checkpoint."""
        return {"loss": float(self.loss.result())}


def train(keras: Any, chosen: argparse.Namespace, strategy: Any) -> str:
    """Train from the newest checkpoint to --max-steps; the last checkpoint."""
    import tensorflow as tf

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    training = Training(keras, chosen, strategy)
    print(f"the model {precision.describe(training.model)}", flush=True)
    state = tf.train.Checkpoint(model=training.model, optimizer=training.optimizer)
    counter = training.optimizer.iterations
    steps = Steps(coordinator, state, counter, training.metrics, batch_size=chosen.batch)
    steps.per_call = keras_choice.steps_per_execution()
    if steps.restore():
        print(f"resuming at step {steps.done}", flush=True)
    of_worker = tf.autograph.experimental.do_not_convert(training.batches)
    batches = iter(coordinator.create_per_worker_dataset(of_worker))

    @tf.function  # type: ignore[untyped-decorator]
    def call(batches: Any, count: Any) -> None:
        for _ in tf.range(count):
            strategy.run(training.step, (next(batches),))

    for done in steps.run(call, batches, last=chosen.max_steps, every=chosen.save_steps):
        print(f"step {done} loss {training.metrics()['loss']:.6f}", flush=True)
        training.loss.reset_state()
    return steps.latest_checkpoint


def evaluate(keras: Any, checkpoint: str, chosen: argparse.Namespace) -> tuple[float, float]:
    """Loss and accuracy of `checkpoint` on the test split: the chief's, without any strategy."""
    tests = openings.examples(chosen, "test")
    shape = tuple(tests.element_spec[0].shape)
    model = saved_models.load(checkpoint, model="digits_cnn", shape=shape)
    digits_cnn.compile_for_training(keras, model)
    loss, accuracy = model.evaluate(tests.batch(chosen.batch), verbose=0)
    return float(loss), float(accuracy)


def strategy_of(here: context.Context) -> Any:
    """The cluster's strategy, or one over servers in this process."""
    import tensorflow as tf

    if here.job == "evaluator":
        raise JobError("the chief evaluates at the end; leave the evaluator out of the cluster")
    if context.setting("precision") == "mixed_float16":
        raise JobError("Keras has no mixed_float16 with parameter servers; mixed_bfloat16 works")
    if here.cluster:
        return strategies.make("parameter_server")
    return tf.distribute.ParameterServerStrategy(server.start_in_process())


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve in workers and ps; train and evaluate in the chief."""
    chosen = parse(arguments)
    server.serve_unless_chief()
    with endings.told("parameter_server"):
        keras = keras_choice.load()
        strategy = strategy_of(context.current())
        precision.apply(keras)
        workers = len(context.current().cluster.get("worker", ())) or 1
        data = pipeline.describe(chosen.dataset)
        print(f"parameter_server: {data} · {workers} workers", flush=True)
        loss, accuracy = evaluate(keras, train(keras, chosen, strategy), chosen)
    print(f"test loss {loss:.6f}", flush=True)
    print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
