"""The search space of the tuner job: a small network, its data, and a seed for each trial.

A trial's initial weights and the order of its data come from a hash of its hyperparameters, so that
its score does not depend on which tuner runs it, when, or how often it is restarted.
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
"""Size of the shuffle buffer in examples."""


class Data:
    """The training, validation and test examples; validation is a fifth of the training split.

    Raises OptionError if there is not at least one example for each.
    """

    def __init__(self, args: argparse.Namespace, batch: int) -> None:
        if args.examples == 1:
            raise OptionError("--examples 1 is too few to train and validate; try 2")
        options = {"data_dir": args.data_dir, "cache": args.cache}
        end, split = (args.examples, args.examples * 4 // 5) if args.examples else ("", "80%")
        self.train = pipeline.load(args.dataset, f"train[:{split}]", **options)
        self.validation = pipeline.load(args.dataset, f"train[{split}:{end}]", **options)
        self.test = pipeline.load(args.dataset, "test", **options)
        self.batch, self.prefetch = batch, args.prefetch

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train.element_spec[0].shape)

    def batches(self, examples: Any) -> Any:
        """Return batches of all examples: every tuner trains alone, so nothing is sharded."""
        return pipeline.batches(
            examples, self.batch, drop_remainder=False, policy="off", prefetch=self.prefetch
        )


def seed_of(values: Mapping[str, Any], *, seed: int, execution: int = 0) -> int:
    """Return a seed from 0 to 2**31 - 1 that depends on the hyperparameters only.

    KerasTuner's own values (`tuner/epochs`) do not count.
    """
    searched = {name: value for name, value in values.items() if not name.startswith("tuner/")}
    text = json.dumps([seed, execution, sorted(searched.items())])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 2**31


def network(keras: Any, values: Any, shape: tuple[int, ...]) -> Any:
    """Return the model for one set of hyperparameters; replace it with your own."""
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


def hypermodel(keras: Any, keras_tuner: Any, args: argparse.Namespace, data: Data) -> Any:
    """Return `network` as a KerasTuner HyperModel whose `build` and `fit` use the trial's seed.

    Each of the `args.executions_per_trial` executions has its own seed.
    """
    executions: Counter[str] = Counter()

    class Seeded(keras_tuner.HyperModel):  # type: ignore[misc]
        def build(self, values: Any) -> Any:
            keras.utils.set_random_seed(self.seed(values))
            return network(keras, values, data.shape)

        def fit(self, values: Any, model: Any, examples: Any, **options: Any) -> Any:
            seed = self.seed(values)
            executions[str(values.values)] += 1
            batches = data.batches(examples.shuffle(SHUFFLE_BUFFER, seed=seed))
            return model.fit(batches, shuffle=False, verbose=0, **options)  # Keras 3 warns of True

        def seed(self, values: Any) -> int:
            execution = executions[str(values.values)] % args.executions_per_trial
            return seed_of(values.values, seed=args.seed, execution=execution)

    return Seeded()
