"""Reads a prepared data set: a part of it, or one worker's share of that part, in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfcluster_workers import context
from tfcluster_workers.data import errors


@dataclass(frozen=True)
class Reading:
    """The first `take` examples of a split, or the share of one input pipeline in them."""

    builder: Any
    split: str
    take: int | None = None
    policy: str = "data"
    input_context: Any = None
    """A `tf.distribute.InputContext` to shard by; None if the strategy shards the data set."""

    def examples(self, *, as_supervised: bool = False, add_tfds_id: bool = False) -> Any:
        """Return the examples in a fixed order. Raises TooFewFilesError and UnfitDatasetError."""
        import tensorflow_datasets as tfds

        part, take = self._tfds_split()
        by_file = self._shards_by_file(part)
        read_config = tfds.ReadConfig(
            # One file after the other: if interleaved, the order would depend on their number.
            interleave_cycle_length=1,
            try_autocache=False,
            add_tfds_id=add_tfds_id,
            input_context=self.input_context if by_file else None,
        )
        dataset = self.builder.as_dataset(
            split=part, as_supervised=as_supervised, read_config=read_config
        )
        if take is not None:
            dataset = dataset.take(take)
        if self.input_context is not None and self.policy != "off" and not by_file:
            dataset = dataset.shard(
                self.input_context.num_input_pipelines, self.input_context.input_pipeline_id
            )
        return dataset

    def _tfds_split(self) -> tuple[str, int | None]:
        """Return TFDS's expression for the part, and the number of examples to take of it, or None.

        With `take` in the expression, sharding by file shares the part among the workers;
        `Dataset.take` would give each worker that many. A split that is a part already
        ("train[:80%]") cannot have it in the expression.
        """
        name, splits = self.split.partition("[")[0], self.builder.info.splits
        if name not in splits:
            names = ", ".join(splits)
            raise errors.UnfitDatasetError(
                self.builder.name, f"it has no split {name!r}, only {names}"
            )
        if self.take is None or name != self.split:
            return self.split, self.take
        return f"{name}[:{min(self.take, splits[name].num_examples)}]", None

    def _shards_by_file(self, part: str) -> bool:
        """Return whether each worker reads its own files. Raises TooFewFilesError.

        TensorFlow itself reports too few files only in the first step (tensorflow#36846).
        """
        files = len(self.builder.info.splits[part].file_instructions)
        workers = context.current().num_workers
        if self.input_context is not None:
            workers = self.input_context.num_input_pipelines
        if self.policy == "file" and files < workers:
            raise errors.TooFewFilesError(f"{self.builder.name} {part}", files, workers)
        return self.policy == "file" or (self.policy == "auto" and files >= workers)


def require_images(builder: Any) -> None:
    """Raise UnfitDatasetError if the data set is not images of one size with a label."""
    keys = builder.info.supervised_keys
    if keys is None or len(keys) != 2:
        raise errors.UnfitDatasetError(builder.name, "it has no pairs of image and label")
    image = builder.info.features[keys[0]]
    if len(image.shape or ()) != 3 or None in image.shape:
        raise errors.UnfitDatasetError(builder.name, f"its {keys[0]} has the shape {image.shape}")
