"""Finds the weights of several models whose weighted mixture predicts best, with NumPy only.

`predictions` are probabilities (models × examples × classes), `labels` the classes. By Jensen's
inequality the cross-entropy of a mixture is at most the mean of its models' (−log is convex). The
search starts with equal weights and keeps the best weights it has tried, so on the same examples
the weighted mixture is never worse than the plain average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TINY = 1e-7
"""The lowest probability of a class: with 0, one wrong prediction would cost infinity."""
METHODS = ("nelder-mead", "random")

Loss = Callable[["Floats"], float]


@dataclass(frozen=True)
class Found:
    """The result of a search: the best weights and their loss."""

    weights: Floats
    loss: float
    """Cross-entropy of the mixture with these weights."""
    evaluations: int
    """The number of weight vectors tried."""


def true_class_probabilities(predictions: Floats, labels: NDArray[Any]) -> Floats:
    """Return each model's probability of the true class of each example: models × examples."""
    true_class = predictions[:, np.arange(len(labels)), labels]
    return np.maximum(true_class, TINY).astype(np.float64)


def cross_entropy(true_class: Floats) -> Floats:
    """Return the mean −log of the true classes' probabilities over the last axis."""
    means: Floats = -np.log(true_class).mean(axis=-1)
    return means


def mixture_loss(true_class: Floats) -> Loss:
    """Return the cross-entropy of the mixture as a function of the weights."""
    return lambda weights: float(cross_entropy(weights @ true_class))


def equal(models: int) -> Floats:
    """Return the weights of the plain average."""
    return np.full(models, 1.0 / models)


def accuracy(probabilities: Floats, labels: NDArray[Any]) -> float:
    """Return the share of the examples whose most probable class is the true one."""
    return float((probabilities.argmax(axis=-1) == labels).mean())


def search(
    loss: Loss, models: int, *, method: str = "nelder-mead", evaluations: int = 300, seed: int = 7
) -> Found:
    """Return weights (none below 0, sum 1) with a small `loss`; the search starts at equal ones.

    It tries at most `evaluations` weight vectors; a `seed` always gives the same result. Raises
    ValueError for an unknown method.
    """
    if method not in METHODS:
        raise ValueError(f"unknown search method {method!r}; choose one of {', '.join(METHODS)}")
    trials = _Trials(loss, evaluations)
    trials.evaluate(equal(models))
    if models > 1:
        (_random if method == "random" else _nelder_mead)(trials, models, seed)
    return trials.best


class _Trials:
    """The weights tried so far: their number and the best of them."""

    def __init__(self, loss: Loss, limit: int) -> None:
        self._loss, self._limit = loss, limit
        self.best = Found(np.empty(0), np.inf, 0)

    @property
    def is_over(self) -> bool:
        return self.best.evaluations >= self._limit

    def evaluate(self, weights: Floats) -> float:
        """Return the loss of `weights`; infinity after the last allowed evaluation."""
        if self.is_over:
            return np.inf
        loss, tried = self._loss(weights), self.best.evaluations + 1
        if loss < self.best.loss or tried == 1:
            self.best = Found(weights, loss, tried)
        else:
            self.best = Found(self.best.weights, self.best.loss, tried)
        return loss


def _random(trials: _Trials, models: int, seed: int) -> None:
    """Sample weights from the whole simplex at first, then closer and closer to the best ones."""
    rng = np.random.default_rng(seed)
    concentration = 1.0
    while not trials.is_over:
        trials.evaluate(rng.dirichlet(0.5 + concentration * trials.best.weights))
        concentration *= 1.03


def _nelder_mead(trials: _Trials, models: int, seed: int) -> None:
    """Run Nelder and Mead's method (1965) on the logarithms of the weights' ratios to the last one.

    Whenever a simplex has become small, a new one is started around the best point.
    """
    rng = np.random.default_rng(seed)

    def loss(point: Floats) -> float:
        return trials.evaluate(_softmax(np.append(point, 0.0)))

    size = 1.0
    while not trials.is_over:
        logits = np.log(np.maximum(trials.best.weights, TINY))
        middle = logits[:-1] - logits[-1]
        corners = size * rng.choice([-1.0, 1.0], models - 1) * np.eye(models - 1)
        points = [middle, *(middle + corners)]
        _descend([(loss(point), point) for point in points], loss, trials)
        size *= 0.5


def _descend(simplex: list[tuple[float, Floats]], loss: Loss, trials: _Trials) -> None:
    """Reflect, expand, contract or shrink the simplex until its corners hardly differ."""
    while not trials.is_over:
        simplex.sort(key=lambda corner: corner[0])
        (lowest, best), (highest, worst) = simplex[0], simplex[-1]
        if highest - lowest < 1e-9:
            return
        middle = np.mean([point for _, point in simplex[:-1]], axis=0)

        def at(step: float, middle: Floats = middle, worst: Floats = worst) -> tuple[float, Floats]:
            point = middle + step * (middle - worst)
            return loss(point), point

        reflected = at(1.0)
        if reflected[0] < lowest:
            simplex[-1] = min(reflected, at(2.0), key=lambda corner: corner[0])
            continue
        if reflected[0] < simplex[-2][0]:
            simplex[-1] = reflected
            continue
        contracted = at(0.5 if reflected[0] < highest else -0.5)
        if contracted[0] < min(highest, reflected[0]):
            simplex[-1] = contracted
        else:
            shrunk = [best + 0.5 * (point - best) for _, point in simplex[1:]]
            simplex[1:] = [(loss(point), point) for point in shrunk]


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max())
    weights: Floats = powers / powers.sum()
    return weights
