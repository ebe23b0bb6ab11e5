"""A trial's seed depends only on the hyperparameters, the search's seed and the execution."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tfcluster_workers import keras_choice
from tfcluster_workers.errors import OptionError
from tfcluster_workers.jobs import tuner
from tfcluster_workers.jobs.parts.search_space import Data, seed_of

VALUES = {"filters": 16, "units": 64, "learning_rate": 0.0012345678901234567}


def test_equal_hyperparameters_have_one_seed_in_any_order() -> None:
    backwards = dict(reversed(VALUES.items()))
    assert seed_of(VALUES, seed=7) == seed_of(backwards, seed=7)


def test_other_hyperparameters_seeds_and_executions_give_another_seed() -> None:
    found = {
        seed_of(VALUES, seed=7),
        seed_of(VALUES, seed=8),
        seed_of(VALUES, seed=7, execution=1),
        seed_of(VALUES | {"units": 65}, seed=7),
        seed_of(VALUES | {"learning_rate": 0.0012345678901234569}, seed=7),
    }
    assert len(found) == 5


def test_a_hyperband_round_keeps_the_seed_of_the_previous_one() -> None:
    later = VALUES | {"tuner/trial_id": "0003", "tuner/epochs": 9, "tuner/initial_epoch": 3}
    assert seed_of(later, seed=7) == seed_of(VALUES, seed=7)


def test_a_seed_is_valid_for_every_library() -> None:
    seeds = [seed_of({"units": units}, seed=7) for units in range(100)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len(set(seeds)) == 100


def test_one_example_cannot_be_both_trained_and_validated_on() -> None:
    with pytest.raises(OptionError, match="--examples 1 is too few to train and validate"):
        Data(tuner.parse(["--examples=1"]), 96)


def test_a_keras_that_keras_tuner_does_not_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = SimpleNamespace(__name__="tf_keras")
    monkeypatch.setattr(keras_choice, "load", lambda: chosen)
    with pytest.raises(keras_choice.KerasChoiceError, match=r"--set keras\.version=3"):
        tuner.load_keras()
    chosen.__name__ = "keras"
    assert tuner.load_keras() is chosen
