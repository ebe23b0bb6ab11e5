"""The jobs' input: fixed order, full batches, sharded by example, so that N workers see one data.

The order is the same in every epoch: a run that resumes at epoch k goes on with the same numbers.
"""

from __future__ import annotations

from typing import Any

from tfcluster_workers.data import errors, prepare, reading, sources

DRAWN = "synthetic_digits"
POLICIES = ("auto", "file", "data", "off")
"""How N workers share one input (tf.data.experimental.AutoShardPolicy)."""


def describe(name: str) -> str:
    """What the start line says about the data."""
    return f"{name}, drawn; --dataset mnist for the real one" if name == DRAWN else name


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
    """Split `split` as (image float32 in 0…1, label int64); prepares it where nobody did.

    `take` keeps the first examples only, `cache` keeps the images (uint8) in memory after the
    first epoch. A `policy` of `file` needs a file for each worker. With an `input_context` (of
    Estimator's input_fn) this is the share of its pipeline. Raises DataError.
    """
    import tensorflow as tf

    folder = prepare.data_dir(data_dir)
    reading.require_images(sources.builder(name, folder))
    found, _ = prepare.prepare(name, folder)
    share = reading.Reading(found, split, take, policy, input_context)
    examples = share.examples(as_supervised=True)
    if cache:
        examples = _cached(examples)

    def scale(image: Any, label: Any) -> Any:
        return tf.cast(image, tf.float32) / 255.0, label

    return examples.map(scale, num_parallel_calls=1)


def _cached(examples: Any) -> Any:
    """`examples`, kept in memory once all have been read.

    An iterator that is dropped while `prefetch` (TFDS ends with one) reads ahead for it may see the
    end of the data there, and `cache` then keeps what had come by as the whole: with TensorFlow
    2.21 half of the iterators dropped so left a data set cut short. Keras 3 drops one in each first
    `fit` and `evaluate` under a strategy (trainer.py, `_maybe_symbolic_build`). An end before the
    last example is an error here, which `cache` does not keep.
    """
    import tensorflow as tf

    if not tf.executing_eagerly():
        return examples.cache()  # a graph's own (Estimator, a dataset_fn): nobody reads it again
    number = int(examples.cardinality().numpy())
    if number < 0:
        return examples  # nobody knows where its end is
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
    """What `load` reads, as the names of the examples: FILE__NUMBER. Raises DataError."""
    found, _ = prepare.prepare(name, prepare.data_dir(data_dir))
    share = reading.Reading(found, split, take, policy, input_context)
    return share.examples(add_tfds_id=True).map(lambda example: example["tfds_id"])


def batches(
    examples: Any,
    global_batch: int,
    *,
    drop_remainder: bool,
    policy: str = "data",
    prefetch: int | str = 2,
) -> Any:
    """`examples` in global batches, split over the workers as `policy` (one of POLICIES) says.

    `data` deals out the examples of each global batch. AUTO would shard by file as soon as there
    are as many files as workers, and give each global batch other examples. `prefetch` counts
    batches, or is "auto".
    """
    import tensorflow as tf

    options = tf.data.Options()
    chosen = tf.data.experimental.AutoShardPolicy[policy.upper()]
    options.experimental_distribute.auto_shard_policy = chosen
    batched = examples.batch(global_batch, drop_remainder=drop_remainder)
    ahead = tf.data.AUTOTUNE if prefetch == "auto" else int(prefetch)
    return batched.prefetch(ahead).with_options(options)


def count(batched: Any) -> int:
    """Batches in one epoch. Raises TooFewExamplesError where there is not even one."""
    number = int(batched.cardinality().numpy())
    if number < 1:
        raise errors.TooFewExamplesError
    return number
