"""Trains a small CNN with `tf.estimator` on several workers, and evaluates in a separate task.

    tfcluster up cluster_specs/estimator-2w-evaluator.json

TensorFlow 2.15 is the last release with Estimator. Each worker reads its own 1/N of the data. The
evaluator evaluates each new checkpoint in its model folder and ends after the last one. The chief
then predicts some digits and exports a SavedModel. To adapt it, copy this file and replace
`model_fn`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import context
from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline
from tfcluster_workers.jobs.parts import estimator_setup, job_errors, options


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="A small CNN with tf.estimator (TensorFlow 2.15).")
    options.add_data(parser)
    add = parser.add_argument_group("training").add_argument
    add("--max-steps", type=options.positive, default=300, help="the global step to stop at")
    add("--save-steps", type=options.positive, default=100, help="steps between two checkpoints")
    add("--global-batch", type=options.positive, default=options.BASE_BATCH)
    add("--replica-batch", type=options.positive, help="instead: examples per step and worker")
    add("--learning-rate", type=float, default=0.05)
    add("--predict", type=options.positive, default=8, metavar="N", help="test images to predict")
    return parser.parse_args(arguments)


def input_function(args: argparse.Namespace, batch: int) -> Any:
    """Return Estimator's `input_fn`: this worker's examples, in batches of its share's size."""

    def input_fn(mode: str, input_context: Any = None) -> Any:
        pipelines = input_context.num_input_pipelines if input_context else 1
        examples = pipeline.load(
            args.dataset,
            "train" if mode == "train" else "test",
            data_dir=args.data_dir,
            take={"train": args.examples, "infer": args.predict}.get(mode),
            cache=args.cache,
            policy=args.shard_policy if mode == "train" else "data",
            input_context=input_context,
        )
        if mode == "train":
            number = input_context.input_pipeline_id + 1 if input_context else 1
            print(f"reads part {number} of {pipelines} of the examples", flush=True)
            examples = examples.repeat()
        return examples.batch(batch // pipelines).prefetch(args.prefetch)

    return input_fn


def logits_of(images: Any, *, seed: int) -> Any:
    """Return the logits: Conv 32×3, max-pool, dense 64, dense 10, in graph mode."""
    import tensorflow as tf

    keras = tf.keras
    initializers = [keras.initializers.GlorotUniform(seed=seed * 10 + layer) for layer in range(3)]
    first, second, third = initializers
    hidden = keras.layers.Conv2D(32, 3, activation="relu", kernel_initializer=first)(images)
    hidden = keras.layers.Flatten()(keras.layers.MaxPooling2D()(hidden))
    hidden = keras.layers.Dense(64, activation="relu", kernel_initializer=second)(hidden)
    return keras.layers.Dense(10, kernel_initializer=third)(hidden)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Return the EstimatorSpec for training, evaluation or prediction."""
    import tensorflow as tf

    v1 = tf.compat.v1
    logits = logits_of(features, seed=params["seed"])
    classes = tf.argmax(logits, axis=-1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        outputs = {"class": classes, "probabilities": tf.nn.softmax(logits)}
        return tf.estimator.EstimatorSpec(mode, predictions=outputs)
    # The gradients of all workers are added, so each worker divides its sum by the global batch.
    # The sum must come from `v1.losses`: otherwise the optimizer takes the loss for a mean and
    # divides it by the number of workers again (distribute_utils.get_loss_reduction).
    total = v1.losses.sparse_softmax_cross_entropy(labels, logits, reduction="weighted_sum")
    if mode == tf.estimator.ModeKeys.EVAL:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        metrics = {
            "accuracy": v1.metrics.accuracy(labels, classes),
            "average_loss": v1.metrics.mean(losses),
        }
        return tf.estimator.EstimatorSpec(mode, loss=total, eval_metric_ops=metrics)
    loss = total / params["global_batch"]
    optimizer = v1.train.MomentumOptimizer(params["learning_rate"], 0.9)
    step = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


def run_config(args: argparse.Namespace, strategy: Any) -> Any:
    """Return the RunConfig of this task; its checkpoint directory is the model folder."""
    import tensorflow as tf

    return tf.estimator.RunConfig(
        model_dir=str(context.current().checkpoint_dir),
        tf_random_seed=args.seed,
        train_distribute=strategy,
        save_checkpoints_steps=args.save_steps,
        log_step_count_steps=50,
        keep_checkpoint_max=3,
    )


def run(args: argparse.Namespace) -> None:
    """Train or evaluate according to TF_CONFIG; at the end the chief predicts and exports."""
    import tensorflow as tf

    from tfcluster_workers.jobs.parts import estimator_results

    this_task = context.current()
    strategy = strategies.make() if this_task.cluster else None
    batch = options.global_batch(args, strategy.num_replicas_in_sync if strategy else 1)
    params = {"seed": args.seed, "learning_rate": args.learning_rate, "global_batch": batch}
    estimator = tf.estimator.Estimator(model_fn, params=params, config=run_config(args, strategy))
    input_fn = input_function(args, batch)

    report = estimator_results.EvaluationReport()
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, max_steps=args.max_steps),
        tf.estimator.EvalSpec(
            input_fn, steps=None, exporters=[report], start_delay_secs=1, throttle_secs=1
        ),
    )
    if this_task.is_chief and this_task.job != "evaluator":
        estimator_results.predict_and_export(estimator, input_fn)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a problem that the user can fix ends it with one line."""
    args = parse(arguments)
    with job_errors.exit_with_message("estimator_mnist"):
        estimator_setup.require_estimator()
        estimator_setup.configure()
        this_task = context.current()
        print(f"estimator_mnist: {pipeline.describe(args.dataset)} · {this_task.task}", flush=True)
        run(args)


if __name__ == "__main__":
    main()
