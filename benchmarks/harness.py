"""Measures a metric: interleaves its arms in random order and keeps every single value.

Absolute times say more about the machine than about the code, so a metric compares arms with each
other. A shared machine drifts: each round runs all arms in a new order, drawn from the seed. The
first round only warms up the caches and is discarded.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Taken: TypeAlias = Mapping[str, float | Sequence[float]]
"""The result of one run of an arm, by quantity; a quantity may have several values per run."""


class Failed(Exception):
    """One run of an arm did not work; the text holds its output."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the alternatives that a metric compares."""

    take: Callable[[], Taken]
    command: str
    """The published command, as a reader would type it."""
    version: str = ""
    """The peer's version, if the arm is a peer."""
    missing: str = ""
    """The reason why it cannot be measured here, or ""."""
    most_runs: int | None = None
    """The limit of runs of a slow arm whose result is always the same; it is not warmed up."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity that is measured in each run."""

    unit: str
    summary: Literal["median", "p90", "worst"] = "median"
    """The way to summarise its values; `worst` is the greatest."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The ratio `arm` : `beside`, or `arm` alone, with the project's bar for it, if any."""

    text: str
    quantity: str
    arm: str
    beside: str | None = None
    at_most: float | None = None
    at_least: float | None = None
    stretch: float | None = None
    is_paired: bool = False
    """True to compare round by round; the bar then applies to the interval's nearer end."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Arms by name, the quantities that each of them yields, and the claims about them."""

    title: str
    quantities: Mapping[str, Quantity]
    arms: Mapping[str, Arm]
    claims: Sequence[Claim] = field(default=())
    note: str = ""
    """Facts that a reader needs to read the figures correctly."""


@dataclass(frozen=True, slots=True)
class Value:
    """A single observation."""

    metric: str
    arm: str
    quantity: str
    run: int
    value: float
    unit: str
    commit: str = ""
    versions: str = ""
    command: str = ""


def order(arms: Sequence[str], *, rounds: int, seed: int) -> Iterator[Sequence[str]]:
    """Yield each round's arms, newly shuffled, so that no arm always follows the same busy one."""
    dice = random.Random(seed)
    for _ in range(rounds):
        yield dice.sample(arms, len(arms))


def measure(
    name: str, metric: Metric, *, runs: int, seed: int, warms_up: bool = True
) -> Iterator[list[Value]]:
    """Yield the values of each round. Raises `Failed` when an arm fails twice in a row."""
    for arm, what in metric.arms.items():
        if what.missing:
            say(f"{name}: {arm} is left out: {what.missing}")
    present = [arm for arm, what in metric.arms.items() if not what.missing]
    first = 0 if warms_up else 1
    for run, arms in enumerate(order(present, rounds=runs + 1 - first, seed=seed), first):
        values = []
        for arm in arms:
            most = metric.arms[arm].most_runs
            if most is None or 0 < run <= most:
                values += _observed(name, metric, arm, run)
        if run:
            yield values


def _observed(name: str, metric: Metric, arm: str, run: int) -> list[Value]:
    taken = _twice(name, arm, metric.arms[arm].take)
    values = []
    for quantity, found in taken.items():
        unit = metric.quantities[quantity].unit
        several = [found] if isinstance(found, int | float) else found
        values += [Value(name, arm, quantity, run, float(one), unit) for one in several]
        shown = " ".join(f"{one:.4g}" for one in several[:8])
        say(f"{name} #{run} {arm}: {quantity} {shown} {unit}")
    return values


def _twice(name: str, arm: str, take: Callable[[], Taken]) -> Taken:
    """Run an arm; report a failure and repeat it once, as a busy machine makes a peer give up."""
    try:
        return take()
    except Failed as error:
        say(f"{name}: {arm} failed and is repeated: {error}")
        return take()


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)
