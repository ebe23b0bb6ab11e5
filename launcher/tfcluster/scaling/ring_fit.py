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

    def predict(self, workers: int, rate: float | None, load: float = 1.0) -> Prediction:
        """Return the time of a step with the prediction interval of the regression.

        Its half width is t · s · sqrt(1 + h): t is Student's quantile, s the `spread`, h the
        leverage of the predicted cell, which grows with its distance from the measured ones (for
        example Draper and Smith, "Applied regression analysis", section 3.1).
        """
        seconds, spread = self.seconds(workers, rate, load), self.spread
        if spread is None or seconds <= 0:
            return Prediction(seconds, None, None)
        features = _features(workers, rate, load)
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
    best: tuple[float, tuple[int, ...], list[float]] | None = None
    for kept in _SETS:
        found = _solve_least_squares(rows, kept, scales)
        if found is None or min(found) < 0:
            continue
        error = math.fsum((1 - _dot(found, [row[p] for p in kept])) ** 2 for row in rows)
        if best is None or error < best[0] * (1 - 1e-6) - 1e-15:
            best = error, kept, found
    return None if best is None else _as_fit(points, rows, scales, best[1], best[2])


def _as_fit(
    points: Sequence[Point],
    rows: Sequence[Sequence[float]],
    scales: Sequence[float],
    kept: tuple[int, ...],
    found: Sequence[float],
) -> Fit:
    parameters = [0.0, 0.0, 0.0]
    for place, value in zip(kept, found, strict=True):
        parameters[place] = value
    used = tuple(place for place in range(3) if scales[place] > 0)
    compute_s, latency_s, bits = parameters
    return Fit(
        compute_s=compute_s,
        latency_s=latency_s,
        bits=bits,
        residuals=tuple(1 - _dot(parameters, row) for row in rows),
        freedom=len(points) - len(kept),
        is_determined=_solve_least_squares(rows, used, scales) is not None and len(used) == 3,
        inverse=_inverse(rows, kept, scales),
        kept=kept,
    )


def _features(workers: int, rate: float | None, load: float) -> tuple[float, float, float]:
    """Return the factors of C, L and S."""
    if workers == 1 or rate is None:
        return load, 0.0, 0.0
    return load, 2.0 * (workers - 1), ring_share(workers) / rate


def ring_share(workers: int) -> float:
    """Return 2(N-1)/N: the part of the volume that each worker sends, and receives."""
    return 2.0 * (workers - 1) / workers


def _solve_least_squares(
    rows: Sequence[Sequence[float]], kept: tuple[int, ...], scales: Sequence[float]
) -> list[float] | None:
    """Return the parameters `kept` that fit a target of 1 in every row; None if singular."""
    matrix = _gram(rows, kept, scales)
    if matrix is None:
        return None
    target = [math.fsum(row[p] for row in rows) / scales[p] for p in kept]
    solved = _solve(matrix, target)
    return None if solved is None else [x / scales[p] for x, p in zip(solved, kept, strict=True)]


def _gram(
    rows: Sequence[Sequence[float]], kept: tuple[int, ...], scales: Sequence[float]
) -> list[list[float]] | None:
    """Return X'X of the columns `kept`, each scaled to length 1; None if one of them is zero."""
    if len(rows) < len(kept) or any(scales[place] == 0 for place in kept):
        return None
    return [
        [math.fsum(row[p] * row[q] for row in rows) / (scales[p] * scales[q]) for q in kept]
        for p in kept
    ]


def _inverse(
    rows: Sequence[Sequence[float]], kept: tuple[int, ...], scales: Sequence[float]
) -> tuple[tuple[float, ...], ...]:
    matrix = _gram(rows, kept, scales)
    assert matrix is not None
    columns = []
    for place in range(len(kept)):
        solved = _solve(matrix, [float(other == place) for other in range(len(kept))])
        assert solved is not None
        columns.append(solved)
    return tuple(
        tuple(columns[j][i] / (scales[p] * scales[q]) for j, q in enumerate(kept))
        for i, p in enumerate(kept)
    )


def _solve(matrix: Sequence[Sequence[float]], target: Sequence[float]) -> list[float] | None:
    """Return x with matrix · x = target, by elimination with pivots; None if singular."""
    rows = [[*row, value] for row, value in zip(matrix, target, strict=True)]
    for place in range(len(rows)):
        pivot = max(range(place, len(rows)), key=lambda other: abs(rows[other][place]))
        rows[place], rows[pivot] = rows[pivot], rows[place]
        if abs(rows[place][place]) < _SINGULAR:
            return None
        for other in range(place + 1, len(rows)):
            factor = rows[other][place] / rows[place][place]
            rows[other] = [x - factor * y for x, y in zip(rows[other], rows[place], strict=True)]
    found = [0.0] * len(rows)
    for place in reversed(range(len(rows))):
        rest = math.fsum(rows[place][p] * found[p] for p in range(place + 1, len(rows)))
        found[place] = (rows[place][-1] - rest) / rows[place][place]
    return found


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(one, other, strict=True))


def _quantile(freedom: int) -> float:
    return _QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else _NORMAL_QUANTILE
