"""How everything here is measured: arms interleaved in random order, every single value kept.

Absolute times say more about the machine than about the code, so a metric compares arms with each
other. A shared machine drifts: each round runs all arms, in an order drawn anew from the seed, and
the first round only warms caches up and is thrown away.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Taken: TypeAlias = Mapping[str, float | Sequence[float]]
"""What one run of an arm yields, by quantity; a quantity may be observed several times a run."""


class Failed(Exception):
    """One run of an arm did not do what it was to do; the text tells what was seen."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to do what a metric compares."""

    take: Callable[[], Taken]
    command: str
    """As it is published: what a reader would type."""
    version: str = ""
    """Of the peer, where the arm is one."""
    missing: str = ""
    """Why it cannot be measured here; empty where it can."""
    most_runs: int | None = None
    """For an arm that is slow and always says the same; it is not warmed up either."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is read off each run."""

    unit: str
    summary: Literal["median", "p90", "worst"] = "median"
    """`worst` is the greatest."""


@dataclass(frozen=True, slots=True)
class Claim:
    """`arm` divided by `beside`, or `arm` alone, and where the project set itself a bar, that."""

    text: str
    quantity: str
    arm: str
    beside: str | None = None
    at_most: float | None = None
    at_least: float | None = None
    stretch: float | None = None
    is_paired: bool = False
    """Compared round by round; the bar is held against the near end of the interval."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Arms by name, the quantities each of them yields, and what is claimed about them."""

    title: str
    quantities: Mapping[str, Quantity]
    arms: Mapping[str, Arm]
    claims: Sequence[Claim] = field(default=())
    note: str = ""
    """Whatever a reader must know to read the figures rightly."""


@dataclass(frozen=True, slots=True)
class Value:
    """One single observation."""

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
    """The arms of each round, shuffled anew: no arm is always the one after a busy one."""
    dice = random.Random(seed)
    for _ in range(rounds):
        yield dice.sample(arms, len(arms))


def measure(
    name: str, metric: Metric, *, runs: int, seed: int, warms_up: bool = True
) -> Iterator[list[Value]]:
    """The values of each round. Raises `Failed` when an arm fails twice in a row."""
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
    """A run that failed is told, and repeated once: a busy machine makes a peer give up."""
    try:
        return take()
    except Failed as error:
        say(f"{name}: {arm} failed and is repeated: {error}")
        return take()


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)
