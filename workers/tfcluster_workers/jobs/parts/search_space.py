"""What the tuner job searches: a small network, its data, and seeds that are the trial's own.

A trial's first weights and the order of its data come from a hash of its hyperparameters, so that
a trial has the same score whoever runs it, when, and how often it was begun.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tfcluster_workers import keras_choice
from tfcluster_workers.data import pipeline
from tfcluster_workers.errors import OptionError

SHUFFLE_BUFFER = 10_000
"""Examples among which the next one is drawn."""


class Data:
    """Training, validation and test examples; the last fifth of the training split validates.

    Raises OptionError where there is not one example for each.
    """

    def __init__(self, chosen: argparse.Namespace, batch: int) -> None:
        if chosen.examples == 1:
            raise OptionError("--examples 1 is too few to train and validate on; try 2")
        where = {"data_dir": chosen.data_dir, "cache": chosen.cache}
        some, most = (chosen.examples, chosen.examples * 4 // 5) if chosen.examples else ("", "80%")
        self.train = pipeline.load(chosen.dataset, f"train[:{most}]", **where)
        self.validation = pipeline.load(chosen.dataset, f"train[{most}:{some}]", **where)
        self.test = pipeline.load(chosen.dataset, "test", **where)
        self.batch, self.prefetch = batch, chosen.prefetch

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train.element_spec[0].shape)

    def batches(self, examples: Any) -> Any:
        """Every tuner trains alone, so each reads all of it."""
        return pipeline.batches(
            examples, self.batch, drop_remainder=False, policy="off", prefetch=self.prefetch
        )


def seed_of(values: Mapping[str, Any], *, seed: int, execution: int = 0) -> int:
    """From 0 to 2**31 - 1, equal for equal `values`; KerasTuner's own (``tuner/epochs``) apart."""
    own = {name: value for name, value in values.items() if not name.startswith("tuner/")}
    text = json.dumps([seed, execution, sorted(own.items())])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 2**31


def network(keras: Any, values: Any, shape: tuple[int, ...]) -> Any:
    """The model for one set of hyperparameters; put your own here."""
    layers = keras.layers
    filters = values.Choice("filters", [8, 16, 32])
    units = values.Int("units", 16, 128, step=16)
    dropout = values.Float("dropout", 0.0, 0.5, step=0.1)
    rate = values.Float("learning_rate", 1e-4, 1e-2, sampling="log")
    model = keras.Sequential(
        [
            layers.InputLayer(shape),
            layers.Conv2D(filters, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(units, activation="relu"),
            layers.Dropout(dropout),
            layers.Dense(10, dtype="float32"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss=loss,
        metrics=["accuracy"],
        steps_per_execution=keras_choice.steps_per_execution(),
    )
    return model


def hypermodel(keras: Any, keras_tuner: Any, chosen: argparse.Namespace, data: Data) -> Any:
    """`network` as KerasTuner wants it: `build` and `fit`, both with the trial's seed.

    Each of `chosen.executions_per_trial` has a seed of its own.
    """
    begun: Counter[str] = Counter()

    class Seeded(keras_tuner.HyperModel):  # type: ignore[misc]
        def build(self, values: Any) -> Any:
            keras.utils.set_random_seed(self.seed(values))
            return network(keras, values, data.shape)

        def fit(self, values: Any, model: Any, examples: Any, **how: Any) -> Any:
            seed = self.seed(values)
            begun[str(values.values)] += 1
            batches = data.batches(examples.shuffle(SHUFFLE_BUFFER, seed=seed))
            return model.fit(batches, shuffle=False, verbose=0, **how)  # Keras 3 warns of True

        def seed(self, values: Any) -> int:
            execution = begun[str(values.values)] % chosen.executions_per_trial
            return seed_of(values.values, seed=chosen.seed, execution=execution)

    return Seeded()
