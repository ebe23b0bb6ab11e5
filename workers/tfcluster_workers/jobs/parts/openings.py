"""How a ready-made job begins: its data as the options say, and the lines that tell about it."""

from __future__ import annotations

import argparse
from typing import Any

from tfcluster_workers import context, keras_choice, precision
from tfcluster_workers.data import pipeline


def examples(chosen: argparse.Namespace, split: str) -> Any:
    """The examples of `split` in a fixed order; of `train`, as many as were asked for."""
    training = split == "train"
    return pipeline.load(
        chosen.dataset,
        split,
        data_dir=chosen.data_dir,
        take=chosen.examples if training else None,
        cache=chosen.cache,
        policy=chosen.shard_policy if training else "data",
    )


def batches(chosen: argparse.Namespace, examples: Any, size: int, *, training: bool) -> Any:
    """Global batches of `size`, of which each worker gets its share; full ones for training.

    A test is always of all examples, whatever the sharding policy.
    """
    return pipeline.batches(
        examples,
        size,
        drop_remainder=training,
        policy=chosen.shard_policy if training else "data",
        prefetch=chosen.prefetch,
    )


def announce(
    job: str, chosen: argparse.Namespace, *, keras: Any, model: Any, replicas: int, batch: int
) -> None:
    """The start lines: which data, how many replicas, which Keras, which numbers."""
    import tensorflow as tf

    here = context.current()
    print(
        f"{job}: {pipeline.describe(chosen.dataset)} · {here.task} of {here.num_workers} · "
        f"global batch {batch} on {replicas} replicas · TensorFlow {tf.__version__}, "
        f"{keras.__name__.split('.')[0]} {keras_choice.version_of(keras)}",
        f"the model {precision.describe(model)}",
        sep="\n",
        flush=True,
    )
