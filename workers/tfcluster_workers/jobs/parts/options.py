"""The command-line options that the example jobs share, so that each has one meaning.

    parser = argparse.ArgumentParser()
    options.add_data(parser)
    options.add_training(parser)
    options.add_strategy(parser)
    args = parser.parse_args()
    batch = options.global_batch(args, strategy.num_replicas_in_sync)

Settings of the spec (`keras.precision`, `keras.steps_per_execution`, `strategy.*`) are not options:
`context.setting` reads them where they are used.
"""

from __future__ import annotations

import argparse

from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline
from tfcluster_workers.errors import OptionError

AUTOTUNE = -1
"""The value of `tf.data.AUTOTUNE`, so that parsing options does not import TensorFlow."""
BASE_BATCH = 96
"""The global batch size that the jobs' learning rates are chosen for."""


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the options for the data and how the workers share it."""
    add = parser.add_argument_group("data").add_argument
    add("--dataset", default=pipeline.SYNTHETIC, metavar="NAME", help="any TFDS image data set")
    add("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR")
    add("--examples", type=positive, metavar="N", help="train on the first N examples only")
    add("--seed", type=int, default=7, help="seed of the initial weights (default: 7)")
    add(
        "--shard-policy",
        choices=pipeline.POLICIES,
        default="data",
        help="what each worker reads: data = its part of every global batch (default), file = its "
        "own files, auto = file if there are enough files, else data, off = everything",
    )
    add(
        "--cache",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the examples in memory after the first epoch",
    )
    add(
        "--prefetch",
        type=prefetch_size,
        default=AUTOTUNE,
        metavar="N|auto",
        help="batches prepared ahead (default: auto; 0 = none)",
    )


def add_training(parser: argparse.ArgumentParser, *, epochs: int = 3) -> None:
    """Add the options for epochs, batch size and learning rate."""
    add = parser.add_argument_group("training").add_argument
    add("--epochs", type=positive, default=epochs)
    add(
        "--global-batch",
        type=positive,
        default=BASE_BATCH,
        help="examples per step over all replicas (default: %(default)s)",
    )
    add("--replica-batch", type=positive, help="instead: examples per step and replica")
    add(
        "--scale-learning-rate",
        action="store_true",
        help=f"multiply it by global batch / {BASE_BATCH}",
    )


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """Add the options that replace the spec's strategy, for a job without the launcher."""
    add = parser.add_argument_group("strategy").add_argument
    add("--strategy", choices=strategies.NAMES, help="default: the spec's")
    add("--logical-cpus", type=positive, default=1, help="replicas for --strategy mirrored")


def global_batch(args: argparse.Namespace, replicas: int) -> int:
    """Return the examples per step over all replicas; raise OptionError if they do not divide."""
    if args.replica_batch:
        return int(args.replica_batch * replicas)
    size = int(args.global_batch)
    if size < replicas:
        raise OptionError(
            f"--global-batch {size} is smaller than the {replicas} replicas: each needs at least "
            f"one example per step; try {replicas}"
        )
    if size % replicas:
        raise OptionError(
            f"--global-batch {size} cannot be split evenly over {replicas} replicas; "
            f"try {size - size % replicas}"
        )
    return size


def learning_rate_scale(args: argparse.Namespace, batch: int) -> float:
    """Return the factor for learning rates: 1, or with --scale-learning-rate linear in the batch.

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1.
    """
    return batch / BASE_BATCH if args.scale_learning_rate else 1.0


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def prefetch_size(text: str) -> int:
    """Parse an integer of at least 0, or `auto`."""
    if text == "auto":
        return AUTOTUNE
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is neither auto nor at least 0")
    return number
