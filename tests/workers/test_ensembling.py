"""Averaged models are never worse than their mean, and weighted ones never worse than averaged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tfcluster_workers.jobs.parts import ensembling

Floats = NDArray[np.float64]

ROUNDING = 1e-9


@st.composite
def predictions(draw: st.DrawFn) -> tuple[Floats, NDArray[np.int64]]:
    """Generate the probabilities of some models, from certain to undecided, some badly wrong."""
    models = draw(st.integers(1, 5))
    examples = draw(st.integers(1, 30))
    classes = draw(st.integers(2, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sureness = draw(st.sampled_from([0.1, 1.0, 10.0, 1000.0]))
    logits = sureness * random.normal(size=(models, examples, classes))
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    labels = random.integers(0, classes, examples)
    return powers / powers.sum(axis=-1, keepdims=True), labels


@given(predictions(), st.sampled_from(ensembling.METHODS), st.integers(0, 9))
def test_weighted_is_at_most_plain_and_plain_at_most_the_mean_of_single_models(
    given: tuple[Floats, NDArray[np.int64]], method: str, seed: int
) -> None:
    right = ensembling.true_class_probabilities(*given)
    loss, models = ensembling.mixture_loss(right), len(right)
    found = ensembling.search(loss, models, method=method, evaluations=60, seed=seed)
    plain = loss(ensembling.equal(models))
    assert found.loss <= plain
    assert plain <= ensembling.cross_entropy(right).mean() + ROUNDING
    assert found.loss == loss(found.weights)
    assert found.weights.min() >= 0
    assert found.weights.sum() == pytest.approx(1)
    assert found.evaluations <= 60


@pytest.mark.parametrize("method", ensembling.METHODS)
def test_a_search_finds_the_one_good_model(method: str) -> None:
    right = np.full((3, 50), 0.1)
    right[1] = 0.9
    found = ensembling.search(ensembling.mixture_loss(right), 3, method=method)
    assert found.weights[1] > 0.95


@pytest.mark.parametrize("method", ensembling.METHODS)
def test_a_search_mixes_models_that_are_right_about_different_examples(method: str) -> None:
    right = np.array([[0.9, 0.9, 0.9, 0.1], [0.1, 0.1, 0.1, 0.9]])
    found = ensembling.search(ensembling.mixture_loss(right), 2, method=method)
    # The derivative of the mean −log is 0 at this weight: 3·0.8/(0.1+0.8w) = 0.8/(0.9−0.8w).
    assert found.weights[0] == pytest.approx(0.8125, abs=0.02)


@pytest.mark.parametrize("method", ensembling.METHODS)
def test_a_seed_gives_the_same_result(method: str) -> None:
    right = np.random.default_rng(0).uniform(0.01, 1, size=(4, 40))
    loss = ensembling.mixture_loss(right)
    first, second = (ensembling.search(loss, 4, method=method, seed=3) for _ in range(2))
    assert first.weights.tolist() == second.weights.tolist()


def test_a_zero_probability_of_the_true_class_costs_a_finite_loss() -> None:
    sure = np.array([[[1.0, 0.0], [1.0, 0.0]]])
    right = ensembling.true_class_probabilities(sure, np.array([0, 1]))
    assert ensembling.cross_entropy(right)[0] == pytest.approx(-np.log(ensembling.TINY) / 2)
    assert ensembling.accuracy(sure[0], np.array([0, 1])) == 0.5


def test_an_unknown_search_method_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of nelder-mead, random"):
        ensembling.search(lambda weights: 0.0, 2, method="grid")
