"""The jobs' input pipeline: N workers together read what one worker would read, in a fixed order.

Batches are full and sharded by example. The order is the same in every epoch, so a run that resumes
at epoch k continues with the same numbers.
"""

from __future__ import annotations

from typing import Any

from tfcluster_workers.data import errors, prepare, reading, sources

SYNTHETIC = "synthetic_digits"
POLICIES = ("auto", "file", "data", "off")
"""The ways N workers can share the data (tf.data.experimental.AutoShardPolicy)."""


def describe(name: str) -> str:
    """Return the data set's description for the start line."""
    if name == SYNTHETIC:
        return f"{name} (synthetic data; --dataset mnist for real data)"
    return name


def load(
    name: str,
    split: str,
    *,
    data_dir: str | None = None,
    take: int | None = None,
    cache: bool = True,
    policy: str = "data",
    input_context: Any = None,
) -> Any:
    """Return the split as (image float32 in 0…1, label int64); prepare the data set if necessary.

    `take` keeps the first examples only; `cache` keeps the images (uint8) in memory after the first
    epoch. The policy `file` needs a file for each worker. With an `input_context` (of Estimator's
    input_fn) the result is the share of its pipeline. Raises DataError.
    """
    import tensorflow as tf

    folder = prepare.data_dir(data_dir)
    reading.require_images(sources.builder(name, folder))
    builder, _ = prepare.prepare(name, folder)
    share = reading.Reading(builder, split, take, policy, input_context)
    examples = share.examples(as_supervised=True)
    if cache:
        examples = _cached(examples)

    def scale(image: Any, label: Any) -> Any:
        return tf.cast(image, tf.float32) / 255.0, label

    return examples.map(scale, num_parallel_calls=1)


def _cached(examples: Any) -> Any:
    """Return `examples`, cached in memory once all have been read.

    If an iterator is dropped while `prefetch` (TFDS adds one) reads ahead, `cache` may take that
    for the end of the data and keep only the examples read so far: with TensorFlow 2.21 half of the
    iterators dropped like that left a shortened data set. Keras 3 drops one in each first `fit` and
    `evaluate` under a strategy (trainer.py, `_maybe_symbolic_build`). Here an end before the last
    example is an error, and `cache` keeps nothing after an error.
    """
    import tensorflow as tf

    if not tf.executing_eagerly():
        return examples.cache()  # in a graph (Estimator, a dataset_fn): no other iterator reads it
    number = int(examples.cardinality().numpy())
    if number < 0:
        return examples  # the number of examples is unknown
    return examples.apply(tf.data.experimental.assert_cardinality(number)).cache()


def ids(
    name: str,
    split: str,
    *,
    data_dir: str | None = None,
    take: int | None = None,
    policy: str = "data",
    input_context: Any = None,
) -> Any:
    """Return the names (FILE__NUMBER) of the examples that `load` reads. Raises DataError."""
    builder, _ = prepare.prepare(name, prepare.data_dir(data_dir))
    share = reading.Reading(builder, split, take, policy, input_context)
    return share.examples(add_tfds_id=True).map(lambda example: example["tfds_id"])


def batches(
    examples: Any,
    global_batch: int,
    *,
    drop_remainder: bool,
    policy: str = "data",
    prefetch: int | str = 2,
) -> Any:
    """Return `examples` in global batches, shared among the workers by `policy` (see POLICIES).

    `data` splits each global batch by example. AUTO would shard by file as soon as there are as
    many files as workers, and global batches would have other examples. `prefetch` is a number of
    batches, or "auto".
    """
    import tensorflow as tf

    options = tf.data.Options()
    auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy.upper()]
    options.experimental_distribute.auto_shard_policy = auto_shard_policy
    batched = examples.batch(global_batch, drop_remainder=drop_remainder)
    ahead = tf.data.AUTOTUNE if prefetch == "auto" else int(prefetch)
    return batched.prefetch(ahead).with_options(options)


def count(batched: Any) -> int:
    """Return the number of batches in one epoch. Raises TooFewExamplesError if it is 0."""
    number = int(batched.cardinality().numpy())
    if number < 1:
        raise errors.TooFewExamplesError
    return number
