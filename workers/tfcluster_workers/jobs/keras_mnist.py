"""Trains a small CNN with Keras `fit` on any number of workers, with the same numbers.

    tfcluster up cluster_specs/localhost-2w.json
    python -m tfcluster_workers.jobs.keras_mnist --epochs 3        # alone, no cluster

Each task reads its share of every global batch of 96, so the loss of an epoch does not depend on
how many workers there are. After training, every task restores the checkpoint it saved last and
all evaluate together. Copy this file and change `digits_cnn` to your model.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import callbacks, context, keras_choice
from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline, prepare
from tfcluster_workers.jobs import digits_cnn


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line of the job."""
    parser = argparse.ArgumentParser(description="A small CNN with Keras fit.")
    add = parser.add_argument
    add("--dataset", default=pipeline.DRAWN, metavar="NAME", help="any TFDS image data set")
    add("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR")
    add("--epochs", type=int, default=3)
    add("--global-batch", type=int, default=96, help="examples a step over all replicas")
    add("--replica-batch", type=int, help="instead: examples a step of each replica")
    add("--scale-learning-rate", action="store_true", help="by global batch / 96")
    add("--seed", type=int, default=7)
    add("--examples", type=int, help="train on the first N examples only")
    add("--strategy", choices=strategies.NAMES, help="default: the spec's")
    add("--logical-cpus", type=int, default=1, help="replicas for --strategy mirrored")
    add("--keep", type=int, default=3, help="checkpoints to keep")
    return parser.parse_args(arguments)


def batch_size(options: argparse.Namespace, replicas: int) -> int:
    """The global batch; exits where it cannot be divided evenly."""
    size = int(options.replica_batch * replicas if options.replica_batch else options.global_batch)
    if size % replicas:
        fitting = size - size % replicas or replicas
        sys.exit(f"--global-batch {size} cannot be split over {replicas} replicas; try {fitting}")
    return size


def train(keras: Any, options: argparse.Namespace) -> tuple[float, float]:
    """Train, evaluate from the latest checkpoint; loss and accuracy on the test split."""
    strategy = strategies.make(options.strategy, logical_cpus=options.logical_cpus)
    size = batch_size(options, strategy.num_replicas_in_sync)
    keras.utils.set_random_seed(options.seed)
    keras_choice.apply_precision(keras)
    data = {"data_dir": options.data_dir}
    examples = pipeline.load(options.dataset, "train", take=options.examples, **data)
    tests = pipeline.load(options.dataset, "test", **data)
    announce(keras, options, strategy, size)
    with strategy.scope():
        shape = tuple(examples.element_spec[0].shape)
        model = digits_cnn.build(keras, shape=shape, seed=options.seed)
        digits_cnn.compile_for_training(
            keras, model, steps_per_execution=keras_choice.steps_per_execution()
        )
    saving = callbacks.EpochCheckpoints(model, strategy=strategy, keep=options.keep)
    done = saving.restore()
    if done:
        print(f"resuming after epoch {done}", flush=True)
    batches = pipeline.batches(examples, size, drop_remainder=True)
    model.fit(
        batches.repeat(),  # one iterator for all epochs: ending one can stall for seconds
        steps_per_epoch=pipeline.count(batches),
        epochs=options.epochs,
        initial_epoch=done,
        verbose=0,
        callbacks=watchers(keras, model, saving, options, size),
    )
    restored = saving.restore_latest()
    test_batches = pipeline.batches(tests, size, drop_remainder=False)
    loss, accuracy = model.evaluate(test_batches, verbose=0)
    saving.close()
    print(f"evaluated from {os.path.basename(restored or 'the first weights')}", flush=True)
    return float(loss), float(accuracy)


def watchers(
    keras: Any, model: Any, saving: Any, options: argparse.Namespace, size: int
) -> list[Any]:
    """Learning rate, checkpoint, TensorBoard, one line an epoch."""
    scale = size / 96 if options.scale_learning_rate else 1.0
    return [
        callbacks.learning_rate_schedule(keras, scale=scale),
        callbacks.epoch_line(keras, model, write=lambda line: print(line, flush=True)),
        saving.callback(keras),
        *callbacks.tensorboard(keras),
    ]


def announce(keras: Any, options: argparse.Namespace, strategy: Any, size: int) -> None:
    """The start line: which data, how many replicas, which Keras."""
    import tensorflow as tf

    here = context.current()
    replicas = strategy.num_replicas_in_sync
    print(
        f"keras_mnist: {pipeline.describe(options.dataset)} · {here.task} of {here.num_workers} · "
        f"global batch {size} on {replicas} replicas · TensorFlow {tf.__version__}, "
        f"{keras.__name__.split('.')[0]} {keras_choice.version_of(keras)}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a mistake in the surroundings ends it with one line."""
    options = parse(arguments)
    try:
        keras = keras_choice.load()
        loss, accuracy = train(keras, options)
    except (
        keras_choice.KerasChoiceError,
        prepare.UnknownDatasetError,
        prepare.UnavailableDatasetError,
    ) as error:
        sys.exit(f"keras_mnist: {error}")
    print(f"test loss {loss:.6f}", flush=True)
    print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
