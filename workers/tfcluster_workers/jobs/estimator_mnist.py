"""Trains a small CNN with `tf.estimator` on several workers, and evaluates in a task of its own.

    tfcluster up cluster_specs/estimator-2w-evaluator.json

TensorFlow 2.15 is the last release with Estimator. Each worker reads its own 1/N of the data. The
evaluator evaluates each new checkpoint of its model folder, the last one too, and ends after it.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import context
from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline, prepare


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line of the job."""
    parser = argparse.ArgumentParser(description="A small CNN with tf.estimator (TensorFlow 2.15).")
    add = parser.add_argument
    add("--dataset", default=pipeline.DRAWN, metavar="NAME", help="any TFDS image data set")
    add("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR")
    add("--max-steps", type=int, default=300, help="training ends at this global step")
    add("--save-steps", type=int, default=100, help="steps between two checkpoints")
    add("--global-batch", type=int, default=96, help="examples a step over all workers")
    add("--learning-rate", type=float, default=1e-3)
    add("--seed", type=int, default=7)
    return parser.parse_args(arguments)


def require_estimator() -> None:
    """Exit with the cure where TensorFlow has no Estimator any more."""
    import tensorflow as tf

    if not hasattr(tf, "estimator") or not hasattr(tf.estimator, "Estimator"):
        sys.exit(
            f"estimator_mnist: TensorFlow {tf.__version__} has no tf.estimator (2.15 was the last "
            "release); run this job with a Python that has TensorFlow 2.15: "
            "tfcluster up SPEC --python .venv-tf215/bin/python"
        )


def input_function(options: argparse.Namespace) -> Any:
    """`input_fn(mode, input_context)`: this worker's share, in batches of its share's size."""

    def input_fn(mode: str, input_context: Any = None) -> Any:
        training = mode == "train"
        split = "train" if training else "test"
        examples = pipeline.load(options.dataset, split, data_dir=options.data_dir)
        size = options.global_batch
        if input_context is not None and input_context.num_input_pipelines > 1:
            pipelines = input_context.num_input_pipelines
            examples = examples.shard(pipelines, input_context.input_pipeline_id)
            size //= pipelines
        if training:
            examples = examples.shuffle(10_000, seed=options.seed).repeat()
        return examples.batch(size, drop_remainder=training).prefetch(2)

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
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {"accuracy": v1.metrics.accuracy(labels, classes)}
        return tf.estimator.EstimatorSpec(mode, loss=tf.reduce_mean(each), eval_metric_ops=metrics)
    # The gradients of all workers are added, so each divides by the global batch.
    loss = tf.reduce_sum(each) / params["global_batch"]
    optimizer = v1.train.AdamOptimizer(params["learning_rate"])
    step = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


def run_config(options: argparse.Namespace) -> Any:
    """Every task's RunConfig; its own checkpoint directory is the model folder."""
    import tensorflow as tf

    here = context.current()
    strategy = strategies.make() if here.cluster else None
    return tf.estimator.RunConfig(
        model_dir=str(here.checkpoint_dir),
        tf_random_seed=options.seed,
        train_distribute=strategy,
        save_checkpoints_steps=options.save_steps,
        log_step_count_steps=50,
        keep_checkpoint_max=3,
    )


def prepare_logging() -> None:
    """Show Estimator's own lines, each once (other packages give the root logger a handler)."""
    logger = logging.getLogger("tensorflow")
    logger.setLevel(logging.INFO)
    logger.propagate = False


def run(options: argparse.Namespace) -> None:
    """Train or evaluate, as TF_CONFIG says."""
    import tensorflow as tf

    from tfcluster_workers.jobs.evaluation_report import EvaluationReport

    prepare_logging()
    if context.current().job == "evaluator":
        # It copies the strategy, which eager mode refuses. The workers keep eager mode: there the
        # coordination service ends them within seconds when one of them dies.
        tf.compat.v1.disable_eager_execution()
    params = {name: getattr(options, name) for name in ("seed", "global_batch", "learning_rate")}
    estimator = tf.estimator.Estimator(model_fn, params=params, config=run_config(options))
    input_fn = input_function(options)

    def training(input_context: Any = None) -> Any:
        return input_fn("train", input_context)

    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(training, max_steps=options.max_steps),
        tf.estimator.EvalSpec(
            lambda: input_fn("eval"),
            steps=None,
            exporters=[EvaluationReport()],
            start_delay_secs=1,
            throttle_secs=1,
        ),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a mistake in the surroundings ends it with one line."""
    options = parse(arguments)
    require_estimator()
    here = context.current()
    print(f"estimator_mnist: {pipeline.describe(options.dataset)} · {here.task}", flush=True)
    try:
        run(options)
    except (prepare.UnknownDatasetError, prepare.UnavailableDatasetError) as error:
        sys.exit(f"estimator_mnist: {error}")


if __name__ == "__main__":
    main()
