"""Medians, spreads, ratios and their intervals: pure functions of the observations."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from benchmarks.harness import Claim, Quantity, Value

_RESAMPLES = 4000
# Student's t, two-sided 95 %, by degrees of freedom 1, 2, …; beyond the table the last value is
# used, which widens the interval a little.
_T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]
_T += [2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086]


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of one quantity of one arm."""

    summary: float
    least: float
    low: float
    """The first quartile."""
    high: float
    """The third quartile."""
    most: float
    count: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim's figure with its 95 % interval, and whether its bars are reached (None: no bar)."""

    figure: float
    low: float
    high: float
    bar: bool | None
    stretch: bool | None


def summary(values: Sequence[float], quantity: Quantity) -> float:
    match quantity.summary:
        case "median":
            return statistics.median(values)
        case "p90":
            return p90(values)
        case "worst":
            return max(values)


def p90(values: Sequence[float]) -> float:
    """Return the 90th percentile by nearest rank, so it is an observed value."""
    return sorted(values)[max(0, math.ceil(0.9 * len(values)) - 1)]


def spread(values: Sequence[float], quantity: Quantity) -> Spread:
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else None
    low, _, high = quartiles or (values[0],) * 3
    return Spread(summary(values, quantity), min(values), low, high, max(values), len(values))


def rounds(values: Sequence[Value], arm: str, quantity: str) -> dict[int, list[float]]:
    """Return a quantity's observations by round."""
    own = sorted((v for v in values if (v.arm, v.quantity) == (arm, quantity)), key=_run)
    return {run: [v.value for v in several] for run, several in groupby(own, key=_run)}


def _run(value: Value) -> int:
    return value.run


def judge(claim: Claim, values: Sequence[Value], quantity: Quantity) -> Verdict | None:
    """Return the claim's verdict, or None if one of its arms was not measured."""
    above = rounds(values, claim.arm, claim.quantity)
    below = rounds(values, claim.beside, claim.quantity) if claim.beside else None
    if not above or (claim.beside and not below):
        return None
    if below is None:
        figure, low, high = _interval(above, lambda got: summary(got, quantity))
    elif claim.is_paired:
        figure, low, high = paired_ratio(
            [
                (summary(above[r], quantity), summary(below[r], quantity))
                for r in above
                if r in below
            ]
        )
    else:
        figure, low, high = _ratio_interval(above, below, quantity)
    held = (low if claim.at_least is not None else high) if claim.is_paired else figure
    return Verdict(figure, low, high, _reached(claim, held, stretch=False), _stretched(claim, held))


def _reached(claim: Claim, figure: float, *, stretch: bool) -> bool | None:
    if claim.at_most is not None:
        return figure <= (claim.stretch if stretch and claim.stretch is not None else claim.at_most)
    if claim.at_least is not None:
        return figure >= (
            claim.stretch if stretch and claim.stretch is not None else claim.at_least
        )
    return None


def _stretched(claim: Claim, figure: float) -> bool | None:
    return None if claim.stretch is None else _reached(claim, figure, stretch=True)


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the geometric mean of the rounds' ratios and its 95 % interval.

    The interval is Student's, of the logarithms: they make a ratio and its inverse equally far
    from 1.
    """
    logs = [math.log(above / below) for above, below in pairs]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), float("nan"), float("nan")
    half = _T[min(len(logs) - 1, len(_T)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def _ratio_interval(
    above: dict[int, list[float]], below: dict[int, list[float]], quantity: Quantity
) -> tuple[float, float, float]:
    """Return the ratio of the summaries and its 95 % interval, bootstrapped over rounds.

    The interval is the percentile bootstrap's.
    """
    dice = random.Random(1)
    figure = divide(summary(_flat(above), quantity), summary(_flat(below), quantity))
    drawn = [
        divide(summary(_draw(above, dice), quantity), summary(_draw(below, dice), quantity))
        for _ in range(_RESAMPLES)
    ]
    return figure, *_middle(drawn)


def _interval(
    above: dict[int, list[float]], reduce: Callable[[Sequence[float]], float]
) -> tuple[float, float, float]:
    dice = random.Random(1)
    drawn = [reduce(_draw(above, dice)) for _ in range(_RESAMPLES)]
    return reduce(_flat(above)), *_middle(drawn)


def divide(above: float, below: float) -> float:
    """Return the ratio, or NaN if the other arm is not above the noise of its no-op."""
    return above / below if below > 0 else float("nan")


def _flat(by_round: dict[int, list[float]]) -> list[float]:
    return [value for several in by_round.values() for value in several]


def _draw(by_round: dict[int, list[float]], dice: random.Random) -> list[float]:
    """Draw whole rounds with replacement, since values of one round are correlated."""
    several = [*by_round.values()]
    return [value for one in dice.choices(several, k=len(several)) for value in one]


def _middle(drawn: list[float]) -> tuple[float, float]:
    finite = sorted(one for one in drawn if math.isfinite(one))
    if not finite:
        return float("nan"), float("nan")
    return finite[int(0.025 * (len(finite) - 1))], finite[round(0.975 * (len(finite) - 1))]
