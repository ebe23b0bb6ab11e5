"""The data set `synthetic_digits`: drawn by code, so every job runs without a network.

Importing this module registers it: `tfds.load("synthetic_digits", data_dir=…)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

from tfcluster_workers.data import glyphs, tfds_needs

tfds_needs.supply()

TRAIN_EXAMPLES = 12_000
TEST_EXAMPLES = 2_000
SHARDS = 4


class SyntheticDigits(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
    """Digits of 28×28×1 uint8, labels 0 to 9, 12,000 for training and 2,000 for test."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First drawing."}  # noqa: RUF012 (the base class's own form)

    def _info(self) -> Any:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Digits drawn by code under shift, rotation, thickness and noise.",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(28, 28, 1)),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, Any]]]:
        return {
            "train": self._generate_examples(TRAIN_EXAMPLES, seed=1),
            "test": self._generate_examples(TEST_EXAMPLES, seed=2),
        }

    def _generate_examples(self, count: int, seed: int) -> Iterator[tuple[int, Any]]:
        images, labels = glyphs.draw(count, seed=seed)
        for number, (image, label) in enumerate(zip(images, labels)):
            yield number, {"image": image, "label": int(label)}

    def _download_and_prepare(self, dl_manager: Any, download_config: Any) -> None:
        # Several files, as real data sets have: sharding by file and by data can both be tried.
        several = dataclasses.replace(download_config, num_shards=SHARDS)
        super()._download_and_prepare(dl_manager, several)
