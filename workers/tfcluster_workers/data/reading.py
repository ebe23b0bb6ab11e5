"""Reads a prepared data set: which part of it, whose share of that, in what order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfcluster_workers import context
from tfcluster_workers.data import errors


@dataclass(frozen=True)
class Reading:
    """The first `take` examples of `split`, or the share of one input pipeline in them."""

    builder: Any
    split: str
    take: int | None = None
    policy: str = "data"
    input_context: Any = None
    """`tf.distribute.InputContext`, where the reader shards by itself. Nobody else does then."""

    def examples(self, *, as_supervised: bool = False, add_tfds_id: bool = False) -> Any:
        """The examples in a fixed order. Raises TooFewFilesError, UnfitDatasetError."""
        import tensorflow_datasets as tfds

        part, left = self._words()
        by_file = self._shards_by_file(part)
        read_config = tfds.ReadConfig(
            # One file after the other: interleaved, the order would depend on their number.
            interleave_cycle_length=1,
            try_autocache=False,
            add_tfds_id=add_tfds_id,
            input_context=self.input_context if by_file else None,
        )
        found = self.builder.as_dataset(
            split=part, as_supervised=as_supervised, read_config=read_config
        )
        if left is not None:
            found = found.take(left)
        if self.input_context is not None and self.policy != "off" and not by_file:
            found = found.shard(
                self.input_context.num_input_pipelines, self.input_context.input_pipeline_id
            )
        return found

    def _words(self) -> tuple[str, int | None]:
        """TFDS's words for the part, and how many are left to be taken of it.

        In those words, who shards by file takes a share of the part; `Dataset.take` would give
        each worker that many. A split that is a part already ("train[:80%]") has no such words.
        """
        name, splits = self.split.partition("[")[0], self.builder.info.splits
        if name not in splits:
            has = ", ".join(splits)
            raise errors.UnfitDatasetError(self.builder.name, f"it has no {name!r}, only {has}")
        if self.take is None or name != self.split:
            return self.split, self.take
        return f"{name}[:{min(self.take, splits[name].num_examples)}]", None

    def _shards_by_file(self, part: str) -> bool:
        """Whether each worker reads files of its own.

        TensorFlow says that there are too few in the middle of the first step (tensorflow#36846).
        """
        files = len(self.builder.info.splits[part].file_instructions)
        workers = context.current().num_workers
        if self.input_context is not None:
            workers = self.input_context.num_input_pipelines
        if self.policy == "file" and files < workers:
            raise errors.TooFewFilesError(f"{self.builder.name} {part}", files, workers)
        return self.policy == "file" or (self.policy == "auto" and files >= workers)


def require_images(builder: Any) -> None:
    """Raise UnfitDatasetError for what is not images of one size with a label."""
    keys = builder.info.supervised_keys
    if keys is None or len(keys) != 2:
        raise errors.UnfitDatasetError(builder.name, "it has no pairs of image and label")
    image = builder.info.features[keys[0]]
    if len(image.shape or ()) != 3 or None in image.shape:
        raise errors.UnfitDatasetError(builder.name, f"its {keys[0]} has the shape {image.shape}")
