"""The jobs' input: fixed order, full batches, sharded by example, so that N workers see one data.

The order is the same in every epoch: a run that resumes at epoch k goes on with the same numbers.
"""

from __future__ import annotations

from typing import Any

from tfcluster_workers import context
from tfcluster_workers.data import errors, prepare, sources

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
) -> Any:
    """Split `split` as (image float32 in 0…1, label int64); prepares it where nobody did.

    `take` keeps the first examples only, `cache` keeps the images (uint8) in memory after the
    first epoch. A `policy` of `file` needs a file for each worker. Raises DataError.
    """
    import tensorflow as tf

    folder = prepare.data_dir(data_dir)
    require_images(sources.builder(name, folder))
    found, _ = prepare.prepare(name, folder)
    part, left = first(found, split, take)
    if policy == "file":
        require_files(found, part)
    examples = found.as_dataset(split=part, as_supervised=True, read_config=in_order())
    if left is not None:
        examples = examples.take(left)
    if cache:
        examples = examples.cache()

    def scale(image: Any, label: Any) -> Any:
        return tf.cast(image, tf.float32) / 255.0, label

    return examples.map(scale, num_parallel_calls=1)


def ids(
    name: str,
    split: str,
    *,
    data_dir: str | None = None,
    take: int | None = None,
    policy: str = "data",
) -> Any:
    """What `load` reads, as the names of the examples: FILE__NUMBER. Raises DataError."""
    found, _ = prepare.prepare(name, prepare.data_dir(data_dir))
    part, left = first(found, split, take)
    if policy == "file":
        require_files(found, part)
    examples = found.as_dataset(split=part, read_config=in_order(add_tfds_id=True))
    return examples.take(-1 if left is None else left).map(lambda example: example["tfds_id"])


def first(found: Any, split: str, take: int | None) -> tuple[str, int | None]:
    """TFDS's words for the first `take` examples of `split`, and how many are left to be taken.

    In those words, who shards by file takes a share of them; `Dataset.take` would give each
    worker that many. A split that is a part already ("train[:80%]") has no such words.
    """
    name = split.partition("[")[0]
    if name not in found.info.splits:
        has = ", ".join(found.info.splits)
        raise errors.UnfitDatasetError(found.name, f"it has no {name!r}, only {has}")
    if take is None or name != split:
        return split, take
    return f"{split}[:{min(take, found.info.splits[split].num_examples)}]", None


def in_order(*, add_tfds_id: bool = False) -> Any:
    """One file after the other: interleaving files would make the order depend on their number."""
    import tensorflow_datasets as tfds

    return tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False, add_tfds_id=add_tfds_id)


def require_images(found: Any) -> None:
    """Raise UnfitDatasetError for what is not images of one size with a label."""
    keys = found.info.supervised_keys
    if keys is None or len(keys) != 2:
        raise errors.UnfitDatasetError(found.name, "it has no pairs of image and label")
    image = found.info.features[keys[0]]
    if len(image.shape or ()) != 3 or None in image.shape:
        raise errors.UnfitDatasetError(found.name, f"its {keys[0]} has the shape {image.shape}")


def require_files(found: Any, part: str) -> None:
    """Raise TooFewFilesError where FILE sharding would leave a worker without a file.

    TensorFlow says so in the middle of the first step (tensorflow#36846).
    """
    workers = context.current().num_workers
    files = len(found.info.splits[part].file_instructions)
    if files < workers:
        raise errors.TooFewFilesError(f"{found.name} {part}", files, workers)


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
