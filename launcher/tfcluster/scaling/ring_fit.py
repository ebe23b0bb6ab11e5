"""The model of a training step with a ring all-reduce, fitted to measured cells; pure.

    t(N, R) = C · load + L · 2(N-1) + S · 2(N-1)/N / R

C is the compute time, L the time of one of the ring's 2(N-1) messages beside their transfer, and S
the bits that the network would have to carry if it reached its whole rate R: the volume V of the
gradients divided by the part beta of the rate that is reached. Each worker sends 2(N-1)/N of the
volume (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
workstations").

The least squares are of relative errors, so that a cell of 10 ms counts as much as one of 1 s, and
no parameter is negative. With three parameters the exact solution is the best feasible one of the
seven sets of parameters that are not zero (Lawson and Hanson 1974, chapter 23).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_SINGULAR = 1e-9
"""The least pivot, relative to columns of length 1, of a system that can be solved."""
_SETS = ((0, 1, 2), (0, 2), (0, 1), (1, 2), (0,), (2,), (1,))
"""Sets of parameters that are not zero; of equally good ones the first is taken, so that without
two rates everything is counted as transfer."""
_QUANTILES = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
)
"""The 95 % quantiles of Student's t for 1 to 20 degrees of freedom: a two-sided 90 % interval."""
_NORMAL_QUANTILE = 1.645
LEVEL = 0.9
"""The probability of the intervals."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured cell."""

    workers: int
    rate: float | None
    """Bits per second; None for one worker, which sends nothing."""
    seconds: float
    """The time of a step."""
    load: float = 1.0
    """The compute time as a multiple of that of one worker alone."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted time of a step, and its 90 % interval, in seconds."""

    seconds: float
    low: float | None
    high: float | None
    """The interval; None if there are no more cells than parameters."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted parameters and how well they describe the cells."""

    compute_s: float
    latency_s: float
    """The time of one message of the ring, beside its transfer."""
    bits: float
    """S: the effective volume of the gradients."""
    residuals: tuple[float, ...]
    """(measured - fitted) / measured, for each point."""
    freedom: int
    """Cells minus parameters that are not zero."""
    is_determined: bool
    """False if the cells cannot tell the parameters apart, for example with one rate only."""
    inverse: tuple[tuple[float, ...], ...]
    """(X'X)^-1 of the relative design matrix, for the parameters in `kept`."""
    kept: tuple[int, ...]

    @property
    def spread(self) -> float | None:
        """The standard deviation of the relative residuals; None without a degree of freedom."""
        if self.freedom < 1:
            return None
        return math.sqrt(math.fsum(r * r for r in self.residuals) / self.freedom)

    def seconds(self, workers: int, rate: float | None, load: float = 1.0) -> float:
        """Return the time of a step of `workers` workers at `rate` bits per second."""
        parameters = (self.compute_s, self.latency_s, self.bits)
        return _dot(parameters, _features(workers, rate, load))

    def predict(self, workers: int, rate: float | None) -> Prediction:
        """Return the time of a step with the prediction interval of the regression.

        Its half width is t · s · sqrt(1 + h): t is Student's quantile, s the `spread`, h the
        leverage of the predicted cell, which grows with its distance from the measured ones (for
        example Draper and Smith, "Applied regression analysis", section 3.1).
        """
        seconds, spread = self.seconds(workers, rate), self.spread
        if spread is None or seconds <= 0:
            return Prediction(seconds, None, None)
        features = _features(workers, rate, 1.0)
        row = [features[place] / seconds for place in self.kept]
        leverage = _dot(row, [_dot(line, row) for line in self.inverse])
        half = _quantile(self.freedom) * spread * math.sqrt(1 + max(leverage, 0.0))
        return Prediction(seconds, seconds * max(0.0, 1 - half), seconds * (1 + half))


def fit(points: Sequence[Point]) -> Fit | None:
    """Return the fit of all points; None without a point of positive time."""
    points = [point for point in points if point.seconds > 0]
    rows = [
        [x / point.seconds for x in _features(point.workers, point.rate, point.load)]
        for point in points
    ]
    scales = [math.sqrt(math.fsum(row[place] ** 2 for row in rows)) for place in range(3)]
    best: tuple[float, _Solution] | None = None
    for kept in _SETS:
        solution = _solve(rows, kept, scales)
        if solution is None or min(solution.values) < 0:
            continue
        error = math.fsum((1 - _dot(solution.values, [row[p] for p in kept])) ** 2 for row in rows)
        if best is None or error < best[0] * (1 - 1e-6) - 1e-15:
            best = error, solution
    if best is None:
        return None
    solution = best[1]
    values = dict(zip(solution.kept, solution.values, strict=True))
    parameters = [values.get(place, 0.0) for place in range(3)]
    compute_s, latency_s, bits = parameters
    return Fit(
        compute_s=compute_s,
        latency_s=latency_s,
        bits=bits,
        residuals=tuple(1 - _dot(parameters, row) for row in rows),
        freedom=len(points) - len(solution.kept),
        is_determined=_solve(rows, (0, 1, 2), scales) is not None,
        inverse=solution.inverse,
        kept=solution.kept,
    )


def _features(workers: int, rate: float | None, load: float) -> tuple[float, float, float]:
    """Return the factors of C, L and S."""
    if workers == 1 or rate is None:
        return load, 0.0, 0.0
    return load, 2.0 * (workers - 1), ring_share(workers) / rate


def ring_share(workers: int) -> float:
    """Return 2(N-1)/N: the part of the volume that each worker sends, and receives."""
    return 2.0 * (workers - 1) / workers


@dataclass(frozen=True, slots=True)
class _Solution:
    """The parameters `kept` that fit a target of 1 in every row, and (X'X)^-1 for them."""

    kept: tuple[int, ...]
    values: tuple[float, ...]
    inverse: tuple[tuple[float, ...], ...]


def _solve(
    rows: Sequence[Sequence[float]], kept: tuple[int, ...], scales: Sequence[float]
) -> _Solution | None:
    """Return the least squares with the parameters `kept`; None if they are not determined.

    X'X, with columns of length 1, is inverted by elimination with pivots.
    """
    size = len(kept)
    if len(rows) < size or any(scales[place] == 0 for place in kept):
        return None
    matrix = [
        [math.fsum(row[p] * row[q] for row in rows) / (scales[p] * scales[q]) for q in kept]
        + [float(p == q) for q in kept]
        for p in kept
    ]
    for place in range(size):
        pivot = max(range(place, size), key=lambda other: abs(matrix[other][place]))
        matrix[place], matrix[pivot] = matrix[pivot], matrix[place]
        value = matrix[place][place]
        if abs(value) < _SINGULAR:
            return None
        matrix[place] = [x / value for x in matrix[place]]
        for other in range(size):
            factor = 0.0 if other == place else matrix[other][place]
            matrix[other] = [
                x - factor * y for x, y in zip(matrix[other], matrix[place], strict=True)
            ]
    inverse = tuple(
        tuple(x / (scales[p] * scales[q]) for x, q in zip(line[size:], kept, strict=True))
        for line, p in zip(matrix, kept, strict=True)
    )
    target = [math.fsum(row[p] for row in rows) for p in kept]
    return _Solution(kept, tuple(_dot(line, target) for line in inverse), inverse)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(left, right, strict=True))


def _quantile(freedom: int) -> float:
    return _QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else _NORMAL_QUANTILE
