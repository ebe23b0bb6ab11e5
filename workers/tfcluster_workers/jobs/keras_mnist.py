"""Trains a small CNN with Keras `fit`; any number of workers gives the same numbers.

    tfcluster up cluster_specs/localhost-2w.json
    tfcluster up cluster_specs/mirrored-local.json
    tfcluster up cluster_specs/keras-2w-evaluator.json
    python -m tfcluster_workers.jobs.keras_mnist --epochs 3        # one process, no cluster

Each replica reads its share of every global batch of 96, so the loss of an epoch does not depend on
the number of replicas. After training, every task restores the checkpoint it saved last, and all
tasks evaluate together. To adapt it, copy this file and replace `digits_cnn` with your model.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfcluster_workers import callbacks, context, evaluator, keras_choice, precision
from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline
from tfcluster_workers.jobs.parts import digits_cnn, job_errors, job_start, options

if TYPE_CHECKING:
    from typing import NoReturn


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="A small CNN with Keras fit.")
    options.add_data(parser)
    options.add_training(parser)
    options.add_strategy(parser)
    add = parser.add_argument_group("files").add_argument
    add("--keep", type=options.positive, default=3, help="checkpoints to keep (default: 3)")
    add("--csv", metavar="FILE", help="write the metrics of each epoch to FILE")
    return parser.parse_args(arguments)


def train(keras: Any, args: argparse.Namespace) -> tuple[float, float]:
    """Train, evaluate the latest checkpoint; return loss and accuracy on the test split."""
    if context.is_evaluator():
        evaluate_checkpoints(keras, args)
    strategy = strategies.make(args.strategy, logical_cpus=args.logical_cpus)
    replicas = strategy.num_replicas_in_sync
    batch = options.global_batch(args, replicas)
    keras.utils.set_random_seed(args.seed)
    precision.apply(keras)
    examples, tests = (job_start.examples(args, split) for split in ("train", "test"))
    with strategy.scope():
        shape = tuple(examples.element_spec[0].shape)
        model = digits_cnn.build(keras, shape=shape, seed=args.seed)
        digits_cnn.compile_for_training(
            keras, model, steps_per_execution=keras_choice.steps_per_execution()
        )
        precision.build(model.optimizer, model)  # `restore` fills existing variables
    job_start.announce(
        "keras_mnist", args, keras=keras, model=model, replicas=replicas, batch=batch
    )
    checkpoints = callbacks.EpochCheckpoints(model, strategy=strategy, keep=args.keep)
    done = checkpoints.restore()
    if done:
        print(f"resuming after epoch {done}", flush=True)
    batches = job_start.batches(args, examples, batch, training=True)
    model.fit(
        batches.repeat(),  # one iterator for all epochs: destroying one can take seconds
        steps_per_epoch=pipeline.count(batches),
        epochs=args.epochs,
        shuffle=False,
        initial_epoch=done,
        verbose=0,
        callbacks=make_callbacks(keras, model, checkpoints, args, batch),
    )
    restored = checkpoints.restore_latest()
    test_batches = job_start.batches(args, tests, batch, training=False)
    loss, accuracy = model.evaluate(test_batches, verbose=0)
    checkpoints.close()
    print(f"evaluated from {os.path.basename(restored or 'the initial weights')}", flush=True)
    return float(loss), float(accuracy)


def evaluate_checkpoints(keras: Any, args: argparse.Namespace) -> NoReturn:
    """Evaluate each checkpoint of the chief on the test split, in the task `evaluator`."""
    precision.apply(keras)
    tests = job_start.examples(args, "test")
    model = digits_cnn.build(keras, shape=tuple(tests.element_spec[0].shape), seed=args.seed)
    digits_cnn.compile_for_training(keras, model)
    batches = job_start.batches(args, tests, args.global_batch, training=False)
    evaluator.evaluate_checkpoints(model, batches, metric="accuracy")


def make_callbacks(
    keras: Any, model: Any, checkpoints: Any, args: argparse.Namespace, batch: int
) -> list[Any]:
    """Return the callbacks: learning rate, a line per epoch, checkpoints, TensorBoard, CSV log."""
    scale = options.learning_rate_scale(args, batch)
    return [
        callbacks.learning_rate_schedule(keras, scale=scale),
        callbacks.epoch_line(keras, model, write=lambda line: print(line, flush=True)),
        checkpoints.callback(keras),
        *callbacks.tensorboard(keras),
        *([callbacks.csv_log(keras, args.csv)] if args.csv else []),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a problem that the user can fix ends it with one line."""
    args = parse(arguments)
    with job_errors.exit_with_message("keras_mnist"):
        loss, accuracy = train(keras_choice.load(), args)
    print(f"test loss {loss:.6f}", flush=True)
    print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
