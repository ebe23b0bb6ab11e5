"""How much to trust each of several models: weights that make their mixture predict best.

All is NumPy. `predictions` are probabilities, models × examples × classes; `labels` the classes.
Mixing probabilities never loses on the average: by Jensen's inequality the mixture's cross-entropy
is at most the mean of its members' (−log is convex). The search begins with equal weights and keeps
the best it saw, so the weighted mixture is at most as bad as the plain one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TINY = 1e-7
"""No class is held to be impossible: one mistake would cost infinitely much."""
METHODS = ("nelder-mead", "random")

Loss = Callable[["Floats"], float]


@dataclass(frozen=True)
class Found:
    """The best weights of a search."""

    weights: Floats
    loss: float
    """Cross-entropy of the mixture with these weights."""
    evaluations: int
    """Weights that were tried."""


def of_right_class(predictions: Floats, labels: NDArray[Any]) -> Floats:
    """What each model gives to the right class of each example: models × examples."""
    right = predictions[:, np.arange(len(labels)), labels]
    return np.maximum(right, TINY).astype(np.float64)


def cross_entropy(right: Floats) -> Floats:
    """Mean −log over the last axis of what was given to the right classes."""
    found: Floats = -np.log(right).mean(axis=-1)
    return found


def mixture_loss(right: Floats) -> Loss:
    """The cross-entropy of the mixture as a function of the weights."""
    return lambda weights: float(cross_entropy(weights @ right))


def equal(models: int) -> Floats:
    """The weights of the plain average."""
    return np.full(models, 1.0 / models)


def accuracy(probabilities: Floats, labels: NDArray[Any]) -> float:
    """Share of the examples whose most probable class is the right one."""
    return float((probabilities.argmax(axis=-1) == labels).mean())


def search(
    loss: Loss, models: int, *, method: str = "nelder-mead", evaluations: int = 300, seed: int = 7
) -> Found:
    """Weights (none below 0, sum 1) with a small `loss`, begun at equal ones.

    Tries at most `evaluations` weights; the same `seed` finds the same. Raises ValueError for an
    unknown method.
    """
    if method not in METHODS:
        raise ValueError(f"no search named {method!r}; there are {', '.join(METHODS)}")
    trials = _Trials(loss, evaluations)
    trials.of(equal(models))
    if models > 1:
        (_random if method == "random" else _nelder_mead)(trials, models, seed)
    return trials.best


class _Trials:
    """Tries weights, counts, and keeps the best."""

    def __init__(self, loss: Loss, most: int) -> None:
        self._loss, self._most = loss, most
        self.best = Found(np.empty(0), np.inf, 0)

    @property
    def is_over(self) -> bool:
        return self.best.evaluations >= self._most

    def of(self, weights: Floats) -> float:
        """The loss of `weights`; infinite once there were enough."""
        if self.is_over:
            return np.inf
        loss, tried = self._loss(weights), self.best.evaluations + 1
        if loss < self.best.loss or tried == 1:
            self.best = Found(weights, loss, tried)
        else:
            self.best = Found(self.best.weights, self.best.loss, tried)
        return loss


def _random(trials: _Trials, models: int, seed: int) -> None:
    """First anywhere on the simplex, then nearer and nearer to the best."""
    draw = np.random.default_rng(seed)
    nearness = 1.0
    while not trials.is_over:
        trials.of(draw.dirichlet(0.5 + nearness * trials.best.weights))
        nearness *= 1.03


def _nelder_mead(trials: _Trials, models: int, seed: int) -> None:
    """Nelder and Mead 1965, on the logarithms of the weights' ratios to the last one.

    A new simplex, somewhere else around the best, is begun whenever one has become small.
    """
    draw = np.random.default_rng(seed)

    def loss(point: Floats) -> float:
        return trials.of(_softmax(np.append(point, 0.0)))

    size = 1.0
    while not trials.is_over:
        logits = np.log(np.maximum(trials.best.weights, TINY))
        middle = logits[:-1] - logits[-1]
        corners = size * draw.choice([-1.0, 1.0], models - 1) * np.eye(models - 1)
        points = [middle, *(middle + corners)]
        _descend([(loss(point), point) for point in points], loss, trials)
        size *= 0.5


def _descend(simplex: list[tuple[float, Floats]], loss: Loss, trials: _Trials) -> None:
    """Until the corners hardly differ: reflect, expand, contract or shrink."""
    while not trials.is_over:
        simplex.sort(key=lambda corner: corner[0])
        (least, best), (most, worst) = simplex[0], simplex[-1]
        if most - least < 1e-9:
            return
        middle = np.mean([point for _, point in simplex[:-1]], axis=0)

        def at(far: float, middle: Floats = middle, worst: Floats = worst) -> tuple[float, Floats]:
            point = middle + far * (middle - worst)
            return loss(point), point

        reflected = at(1.0)
        if reflected[0] < least:
            simplex[-1] = min(reflected, at(2.0), key=lambda corner: corner[0])
        elif reflected[0] < simplex[-2][0]:
            simplex[-1] = reflected
        elif (contracted := at(0.5 if reflected[0] < most else -0.5))[0] < min(most, reflected[0]):
            simplex[-1] = contracted
        else:
            nearer = [best + 0.5 * (point - best) for _, point in simplex[1:]]
            simplex[1:] = [(loss(point), point) for point in nearer]


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max())
    weights: Floats = powers / powers.sum()
    return weights
