"""The options that all ready-made jobs share, so that each means the same everywhere.

    parser = argparse.ArgumentParser()
    options.add_data(parser)
    options.add_training(parser)
    options.add_strategy(parser)
    chosen = parser.parse_args()
    size = options.global_batch(chosen, strategy.num_replicas_in_sync)

What the spec settles (`keras.precision`, `keras.steps_per_execution`, `strategy.*`) is no option:
it is read where it is used, by `context.setting`.
"""

from __future__ import annotations

import argparse

from tfcluster_workers import strategy as strategies
from tfcluster_workers.data import pipeline
from tfcluster_workers.errors import OptionError

AUTOTUNE = -1
"""`tf.data.AUTOTUNE`, without importing TensorFlow for a command line."""
BASE_BATCH = 96
"""The global batch for which the learning rates of the jobs are meant."""


def add_data(parser: argparse.ArgumentParser) -> None:
    """Which data, how many, and how each worker gets its share."""
    add = parser.add_argument_group("data").add_argument
    add("--dataset", default=pipeline.DRAWN, metavar="NAME", help="any TFDS image data set")
    add("--data-dir", metavar="DIR", help="default: $TFDS_DATA_DIR")
    add("--examples", type=positive, metavar="N", help="train on the first N examples only")
    add("--seed", type=int, default=7, help="of the first weights (default: 7)")
    add(
        "--shard-policy",
        choices=pipeline.POLICIES,
        default="data",
        help="who reads what: data = each worker keeps its part of every global batch (default), "
        "file = its own files, auto = file where there are enough, off = everybody reads all",
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
    """How long, in what batches, at what rate."""
    add = parser.add_argument_group("training").add_argument
    add("--epochs", type=positive, default=epochs)
    add(
        "--global-batch",
        type=positive,
        default=BASE_BATCH,
        help="examples a step over all replicas (default: %(default)s)",
    )
    add("--replica-batch", type=positive, help="instead: examples a step of each replica")
    add("--scale-learning-rate", action="store_true", help=f"by global batch / {BASE_BATCH}")


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """Another strategy than the spec's, for a job started alone."""
    add = parser.add_argument_group("strategy").add_argument
    add("--strategy", choices=strategies.NAMES, help="default: the spec's")
    add("--logical-cpus", type=positive, default=1, help="replicas for --strategy mirrored")


def global_batch(options: argparse.Namespace, replicas: int) -> int:
    """Examples a step over all replicas. Raises OptionError where it cannot be split evenly."""
    if options.replica_batch:
        return int(options.replica_batch * replicas)
    size = int(options.global_batch)
    if size < replicas:
        raise OptionError(
            f"--global-batch {size} is smaller than the {replicas} replicas: each needs at least "
            f"one example a step; try {replicas}"
        )
    if size % replicas:
        raise OptionError(
            f"--global-batch {size} cannot be split evenly over {replicas} replicas; "
            f"try {size - size % replicas}"
        )
    return size


def learning_rate_scale(options: argparse.Namespace, batch: int) -> float:
    """What to multiply learning rates by: linear in the global batch where that is asked for.

    Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1.
    """
    return batch / BASE_BATCH if options.scale_learning_rate else 1.0


def positive(text: str) -> int:
    """A number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return number


def prefetch_size(text: str) -> int:
    """A number from 0, or `auto`."""
    if text == "auto":
        return AUTOTUNE
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is neither auto nor a number from 0")
    return number
