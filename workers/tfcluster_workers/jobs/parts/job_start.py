"""Loads the data that an example job's options select, and prints the job's start lines."""

from __future__ import annotations

import argparse
from typing import Any

from tfcluster_workers import context, keras_choice, precision
from tfcluster_workers.data import pipeline


def examples(args: argparse.Namespace, split: str) -> Any:
    """Return the examples of `split` in a fixed order; of `train` the first --examples."""
    training = split == "train"
    return pipeline.load(
        args.dataset,
        split,
        data_dir=args.data_dir,
        take=args.examples if training else None,
        cache=args.cache,
        policy=args.shard_policy if training else "data",
    )


def batches(args: argparse.Namespace, examples: Any, size: int, *, training: bool) -> Any:
    """Return global batches of `size`, of which each worker gets its share; full ones for training.

    A test always uses all examples, whatever the sharding policy.
    """
    return pipeline.batches(
        examples,
        size,
        drop_remainder=training,
        policy=args.shard_policy if training else "data",
        prefetch=args.prefetch,
    )


def announce(
    job: str, args: argparse.Namespace, *, keras: Any, model: Any, replicas: int, batch: int
) -> None:
    """Print the start lines: data, task, batch, replicas, TensorFlow, Keras and number formats."""
    import tensorflow as tf

    this_task = context.current()
    print(
        f"{job}: {pipeline.describe(args.dataset)} · {this_task.task} of {this_task.num_workers} · "
        f"global batch {batch} on {replicas} replicas · TensorFlow {tf.__version__}, "
        f"{keras.__name__.split('.')[0]} {keras_choice.version_of(keras)}",
        f"the model {precision.describe(model)}",
        sep="\n",
        flush=True,
    )
