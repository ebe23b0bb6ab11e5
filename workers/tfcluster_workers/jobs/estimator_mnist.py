"""Trains a small CNN with `tf.estimator` on several workers, and evaluates in a task of its own.

    tfcluster up cluster_specs/estimator-2w-evaluator.json

TensorFlow 2.15 is the last release with Estimator. Each worker reads its own 1/N of the data. The
evaluator evaluates each new checkpoint of its model folder, the last one too, and ends after it.
The chief then predicts some digits and exports a SavedModel. Copy this file and change `model_fn`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import context
from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline
from tfcluster_workers.jobs.parts import endings, estimator_needs, options


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line of the job."""
    parser = argparse.ArgumentParser(description="A small CNN with tf.estimator (TensorFlow 2.15).")
    options.add_data(parser)
    add = parser.add_argument_group("training").add_argument
    add("--max-steps", type=options.positive, default=300, help="the global step that ends it")
    add("--save-steps", type=options.positive, default=100, help="steps between two checkpoints")
    add("--global-batch", type=options.positive, default=options.BASE_BATCH)
    add("--replica-batch", type=options.positive, help="instead: examples a step of each worker")
    add("--learning-rate", type=float, default=0.05)
    add("--predict", type=options.positive, default=8, metavar="N", help="test images to predict")
    return parser.parse_args(arguments)


def input_function(chosen: argparse.Namespace, batch: int) -> Any:
    """`input_fn(mode, input_context)`: this worker's share, in batches of its share's size."""

    def input_fn(mode: str, input_context: Any = None) -> Any:
        pipelines = input_context.num_input_pipelines if input_context else 1
        examples = pipeline.load(
            chosen.dataset,
            "train" if mode == "train" else "test",
            data_dir=chosen.data_dir,
            take={"train": chosen.examples, "infer": chosen.predict}.get(mode),
            cache=chosen.cache,
            policy=chosen.shard_policy if mode == "train" else "data",
            input_context=input_context,
        )
        if mode == "train":
            number = input_context.input_pipeline_id + 1 if input_context else 1
            print(f"reads part {number} of {pipelines} of the examples", flush=True)
            examples = examples.repeat()
        return examples.batch(batch // pipelines).prefetch(chosen.prefetch)

    return input_fn


def logits_of(images: Any, *, seed: int) -> Any:
    """Conv 32×3, max-pool, dense 64, dense 10 in graph mode."""
    import tensorflow as tf

    keras = tf.keras
    start = [keras.initializers.GlorotUniform(seed=seed * 10 + layer) for layer in range(3)]
    hidden = keras.layers.Conv2D(32, 3, activation="relu", kernel_initializer=start[0])(images)
    hidden = keras.layers.Flatten()(keras.layers.MaxPooling2D()(hidden))
    hidden = keras.layers.Dense(64, activation="relu", kernel_initializer=start[1])(hidden)
    return keras.layers.Dense(10, kernel_initializer=start[2])(hidden)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """The model for training, evaluation and prediction."""
    import tensorflow as tf

    v1 = tf.compat.v1
    logits = logits_of(features, seed=params["seed"])
    classes = tf.argmax(logits, axis=-1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        outputs = {"class": classes, "probabilities": tf.nn.softmax(logits)}
        return tf.estimator.EstimatorSpec(mode, predictions=outputs)
    # The gradients of all workers are added, so each divides its sum by the global batch. The sum
    # has to be taken by `losses`: with a sum of another origin the optimizer takes the loss for a
    # mean and divides it by the number of workers once more (distribute_utils.get_loss_reduction).
    total = v1.losses.sparse_softmax_cross_entropy(labels, logits, reduction="weighted_sum")
    if mode == tf.estimator.ModeKeys.EVAL:
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        metrics = {
            "accuracy": v1.metrics.accuracy(labels, classes),
            "average_loss": v1.metrics.mean(each),
        }
        return tf.estimator.EstimatorSpec(mode, loss=total, eval_metric_ops=metrics)
    loss = total / params["global_batch"]
    optimizer = v1.train.MomentumOptimizer(params["learning_rate"], 0.9)
    step = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


def run_config(chosen: argparse.Namespace, strategy: Any) -> Any:
    """Every task's RunConfig; its own checkpoint directory is the model folder."""
    import tensorflow as tf

    return tf.estimator.RunConfig(
        model_dir=str(context.current().checkpoint_dir),
        tf_random_seed=chosen.seed,
        train_distribute=strategy,
        save_checkpoints_steps=chosen.save_steps,
        log_step_count_steps=50,
        keep_checkpoint_max=3,
    )


def run(chosen: argparse.Namespace) -> None:
    """Train or evaluate, as TF_CONFIG says; the chief predicts and exports at the end."""
    import tensorflow as tf

    from tfcluster_workers.jobs.parts import estimator_results

    here = context.current()
    strategy = strategies.make() if here.cluster else None
    batch = options.global_batch(chosen, strategy.num_replicas_in_sync if strategy else 1)
    params = {"seed": chosen.seed, "learning_rate": chosen.learning_rate, "global_batch": batch}
    estimator = tf.estimator.Estimator(model_fn, params=params, config=run_config(chosen, strategy))
    input_fn = input_function(chosen, batch)

    report = estimator_results.EvaluationReport()
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, max_steps=chosen.max_steps),
        tf.estimator.EvalSpec(
            input_fn, steps=None, exporters=[report], start_delay_secs=1, throttle_secs=1
        ),
    )
    if here.is_chief and here.job != "evaluator":
        estimator_results.predict_and_export(estimator, input_fn)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a mistake in the surroundings ends it with one line."""
    chosen = parse(arguments)
    with endings.told("estimator_mnist"):
        estimator_needs.require()
        estimator_needs.settle()
        here = context.current()
        print(f"estimator_mnist: {pipeline.describe(chosen.dataset)} · {here.task}", flush=True)
        run(chosen)


if __name__ == "__main__":
    main()
