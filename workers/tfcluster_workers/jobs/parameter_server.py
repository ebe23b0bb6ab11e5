"""Trains a small CNN with parameter servers: a chief schedules steps that the workers run.

    tfcluster up cluster_specs/parameter-server.json
    python -m tfcluster_workers.jobs.parameter_server      # the whole cluster in one process

The ps tasks hold the variables. Workers do not wait for each other, so the losses differ a little
from run to run. A worker that dies is restarted while the others continue. To adapt it, copy this
file and replace `digits_cnn` with your model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import context, keras_choice, precision, server
from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline
from tfcluster_workers.errors import JobError
from tfcluster_workers.jobs.parts import digits_cnn, job_errors, job_start, options, saved_models
from tfcluster_workers.jobs.parts.coordination import Steps


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="A small CNN with ParameterServerStrategy.")
    options.add_data(parser)
    parser.set_defaults(shard_policy="off")
    add = parser.add_argument_group("training").add_argument
    add("--max-steps", type=options.positive, default=400, help="steps of all workers together")
    add("--save-steps", type=options.positive, default=100, help="steps between two checkpoints")
    add("--batch", type=options.positive, default=96, help="examples per step of one worker")
    add("--learning-rate", type=float, default=1e-3)
    return parser.parse_args(arguments)


class Training:
    """Model, optimizer and loss on the ps tasks, and the step that a worker runs."""

    def __init__(self, keras: Any, args: argparse.Namespace, strategy: Any) -> None:
        self.args, self.keras, self.strategy = args, keras, strategy
        with strategy.scope():
            shape = tuple(job_start.examples(args, "train").element_spec[0].shape)
            self.model = digits_cnn.build(keras, shape=shape, seed=args.seed)
            self.optimizer = keras.optimizers.Adam(args.learning_rate)
            precision.build(self.optimizer, self.model)
            # A metric on the ps: losses that a worker holds would be lost with it.
            self.loss = keras.metrics.Mean()

    def step(self, batch: Any) -> None:
        """Train on one batch on one replica."""
        import tensorflow as tf

        images, labels = batch
        cross_entropy = self.keras.losses.SparseCategoricalCrossentropy
        loss_function = cross_entropy(from_logits=True, reduction="none")
        with tf.GradientTape() as tape:
            losses = loss_function(labels, self.model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=self.args.batch)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.loss.update_state(loss)

    def batches(self) -> Any:
        """Return the batches of a worker: all examples, in an order that depends on the worker.

        Any worker may run any step, so the data is not sharded.
        """
        import tensorflow as tf

        index = tf.distribute.coordinator.experimental_get_current_worker_index()

        def dataset_fn(input_context: Any) -> Any:
            examples = job_start.examples(self.args, "train")
            shuffled = examples.shuffle(10_000, seed=self.args.seed + index).repeat()
            size = input_context.get_per_replica_batch_size(self.args.batch)
            return shuffled.batch(size, drop_remainder=True).prefetch(self.args.prefetch)

        return self.strategy.distribute_datasets_from_function(dataset_fn)

    def metrics(self) -> dict[str, float]:
        """Return the mean loss since the last checkpoint."""
        return {"loss": float(self.loss.result())}


def train(keras: Any, args: argparse.Namespace, strategy: Any) -> str:
    """Train from the newest checkpoint to --max-steps; return the path of the last checkpoint."""
    import tensorflow as tf

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    training = Training(keras, args, strategy)
    print(f"the model {precision.describe(training.model)}", flush=True)
    state = tf.train.Checkpoint(model=training.model, optimizer=training.optimizer)
    counter = training.optimizer.iterations
    steps = Steps(coordinator, state, counter, training.metrics, batch_size=args.batch)
    steps.per_call = keras_choice.steps_per_execution()
    if steps.restore():
        print(f"resuming at step {steps.done}", flush=True)
    dataset_fn = tf.autograph.experimental.do_not_convert(training.batches)
    batches = iter(coordinator.create_per_worker_dataset(dataset_fn))

    @tf.function  # type: ignore[untyped-decorator]
    def call(batches: Any, count: Any) -> None:
        for _ in tf.range(count):
            strategy.run(training.step, (next(batches),))

    for done in steps.run(call, batches, last=args.max_steps, every=args.save_steps):
        print(f"step {done} loss {training.metrics()['loss']:.6f}", flush=True)
        training.loss.reset_state()
    return steps.latest_checkpoint


def evaluate(keras: Any, checkpoint: str, args: argparse.Namespace) -> tuple[float, float]:
    """Return loss and accuracy of `checkpoint` on the test split, computed in the chief alone."""
    tests = job_start.examples(args, "test")
    shape = tuple(tests.element_spec[0].shape)
    model = saved_models.load(checkpoint, model="digits_cnn", shape=shape)
    digits_cnn.compile_for_training(keras, model)
    loss, accuracy = model.evaluate(tests.batch(args.batch), verbose=0)
    return float(loss), float(accuracy)


def make_strategy(this_task: context.Context) -> Any:
    """Return the cluster's strategy, or without a cluster one with servers in this process."""
    import tensorflow as tf

    if this_task.job == "evaluator":
        raise JobError("the chief evaluates at the end; leave the evaluator out of the cluster")
    if context.setting("precision") == "mixed_float16":
        raise JobError(
            "Keras does not support mixed_float16 with parameter servers; use mixed_bfloat16"
        )
    if this_task.cluster:
        return strategies.make("parameter_server")
    return tf.distribute.ParameterServerStrategy(server.start_in_process())


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve in worker and ps tasks; train and evaluate in the chief."""
    args = parse(arguments)
    server.serve_unless_chief()
    with job_errors.exit_with_message("parameter_server"):
        keras = keras_choice.load()
        strategy = make_strategy(context.current())
        precision.apply(keras)
        workers = len(context.current().cluster.get("worker", ())) or 1
        data = pipeline.describe(args.dataset)
        print(f"parameter_server: {data} · {workers} workers", flush=True)
        loss, accuracy = evaluate(keras, train(keras, args, strategy), args)
    print(f"test loss {loss:.6f}", flush=True)
    print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
