"""Trains a small CNN with Keras `fit` on any number of workers, with the same numbers.

    tfcluster up cluster_specs/localhost-2w.json
    tfcluster up cluster_specs/mirrored-local.json
    python -m tfcluster_workers.jobs.keras_mnist --epochs 3        # alone, no cluster

Each replica reads its share of every global batch of 96, so the loss of an epoch does not depend on
how many there are. After training, every task restores the checkpoint it saved last and all
evaluate together. Copy this file and change `digits_cnn` to your model.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from tfcluster_workers import callbacks, keras_choice, precision
from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline
from tfcluster_workers.jobs.parts import digits_cnn, endings, openings, options


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line of the job."""
    parser = argparse.ArgumentParser(description="A small CNN with Keras fit.")
    options.add_data(parser)
    options.add_training(parser)
    options.add_strategy(parser)
    add = parser.add_argument_group("files").add_argument
    add("--keep", type=options.positive, default=3, help="checkpoints to keep (default: 3)")
    add("--csv", metavar="FILE", help="write the metrics of each epoch there, too")
    return parser.parse_args(arguments)


def train(keras: Any, chosen: argparse.Namespace) -> tuple[float, float]:
    """Train, evaluate from the latest checkpoint; loss and accuracy on the test split."""
    strategy = strategies.make(chosen.strategy, logical_cpus=chosen.logical_cpus)
    size = options.global_batch(chosen, strategy.num_replicas_in_sync)
    keras.utils.set_random_seed(chosen.seed)
    precision.apply(keras)
    examples, tests = (openings.examples(chosen, split) for split in ("train", "test"))
    with strategy.scope():
        shape = tuple(examples.element_spec[0].shape)
        model = digits_cnn.build(keras, shape=shape, seed=chosen.seed)
        digits_cnn.compile_for_training(
            keras, model, steps_per_execution=keras_choice.steps_per_execution()
        )
        precision.build(model.optimizer, model)  # `restore` fills variables that are there
    replicas = strategy.num_replicas_in_sync
    openings.announce(
        "keras_mnist", chosen, keras=keras, model=model, replicas=replicas, batch=size
    )
    saving = callbacks.EpochCheckpoints(model, strategy=strategy, keep=chosen.keep)
    done = saving.restore()
    if done:
        print(f"resuming after epoch {done}", flush=True)
    batches = openings.batches(chosen, examples, size, training=True)
    model.fit(
        batches.repeat(),  # one iterator for all epochs: ending one can stall for seconds
        steps_per_epoch=pipeline.count(batches),
        epochs=chosen.epochs,
        shuffle=False,
        initial_epoch=done,
        verbose=0,
        callbacks=watchers(keras, model, saving, chosen, size),
    )
    restored = saving.restore_latest()
    test_batches = openings.batches(chosen, tests, size, training=False)
    loss, accuracy = model.evaluate(test_batches, verbose=0)
    saving.close()
    print(f"evaluated from {os.path.basename(restored or 'the first weights')}", flush=True)
    return float(loss), float(accuracy)


def watchers(
    keras: Any, model: Any, saving: Any, chosen: argparse.Namespace, size: int
) -> list[Any]:
    """Learning rate, one line an epoch that shows it, checkpoint and backup in one, logs."""
    scale = options.learning_rate_scale(chosen, size)
    return [
        callbacks.learning_rate_schedule(keras, scale=scale),
        callbacks.epoch_line(keras, model, write=lambda line: print(line, flush=True)),
        saving.callback(keras),
        *callbacks.tensorboard(keras),
        *([callbacks.csv_log(keras, chosen.csv)] if chosen.csv else []),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; a mistake in the surroundings ends it with one line."""
    chosen = parse(arguments)
    with endings.told("keras_mnist"):
        loss, accuracy = train(keras_choice.load(), chosen)
    print(f"test loss {loss:.6f}", flush=True)
    print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
