"""A task checks the weights that it trains: seldom, and without keeping them alive."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster_workers.hooks.weights import MOST_BYTES, SHARE, SHORTEST_S, Weights


class Variable:
    """A variable of so many bytes."""

    def __init__(self, value: float = 0.0, size: int = 4) -> None:
        self.value = value
        self.shape = SimpleNamespace(num_elements=lambda: size // 4)
        self.dtype = SimpleNamespace(size=4)


class Checked:
    """Weights that are read in a given time, and what is reported about them."""

    def __init__(self, *variables: Variable, cost_s: float = 0.0) -> None:
        self.now, self.cost_s = 0.0, cost_s
        self.reported, self.read = list[float](), list[Variable]()
        self.weights = Weights(self.reported.append, self._read, clock=lambda: self.now)
        self.note([*variables])

    def note(self, variables: list[Variable]) -> None:
        self.weights.note(variables, list)

    def _read(self, variable: Any) -> float:
        self.now += self.cost_s
        self.read.append(variable)
        return float(variable.value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_weights_are_reported_once_and_once_more_when_they_are_good(value: float) -> None:
    variable = Variable()
    checked = Checked(Variable(), variable)
    for variable.value in (0.0, value, value, 0.0, value):
        checked.weights.check()
    assert list(map(math.isfinite, checked.reported)) == [False, True]


def test_nan_says_more_than_infinity() -> None:
    variables = Variable(math.inf), Variable(math.nan)
    checked = Checked(*variables)
    checked.weights.check()
    assert list(map(math.isnan, checked.reported)) == [True]


@pytest.mark.parametrize(("cost_s", "pause_s"), [(0.0, SHORTEST_S), (0.5, 0.5 / SHARE)])
def test_checks_between_steps_take_a_small_share_of_the_time(cost_s: float, pause_s: float) -> None:
    variable = Variable()
    checked = Checked(variable, cost_s=cost_s)
    checked.weights.check_if_due()
    due = checked.now + pause_s
    for checked.now in (due - 0.1, due, due):
        checked.weights.check_if_due()
    assert len(checked.read) == 2


def test_the_smallest_variables_are_read_up_to_a_number_of_bytes() -> None:
    small, large = Variable(), Variable(size=MOST_BYTES)
    checked = Checked(large, small)
    checked.weights.check()
    assert checked.read == [small]


def test_variables_that_are_gone_are_forgotten() -> None:
    kept, gone = Variable(), Variable(math.nan)
    checked = Checked(kept, gone)
    del gone
    checked.weights.check()
    assert checked.read == [kept]
    assert checked.reported == []
    checked.note([kept, new := Variable()])  # a list that looks like the first one
    checked.weights.check()
    assert new in checked.read
