"""The fit finds the parameters of cells that follow the model, and says how sure it is."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tfcluster.scaling.ring_fit import Point, fit

COMPUTE_S, LATENCY_S, BITS = 0.05, 0.002, 32e6
RATES = (1e8, 3e8, 1e9)


def step_s(workers: int, rate: float | None, load: float = 1.0) -> float:
    if workers == 1 or rate is None:
        return COMPUTE_S * load
    share = 2 * (workers - 1) / workers
    return COMPUTE_S * load + LATENCY_S * 2 * (workers - 1) + share * BITS / rate


def points(
    workers: tuple[int, ...] = (2, 3), rates: tuple[float, ...] = RATES, noise: float = 0.0
) -> list[Point]:
    cells: list[tuple[int, float | None]] = [(1, None), *product(workers, rates)]
    return [Point(n, r, step_s(n, r) * (1 + random.gauss(0, noise))) for n, r in cells]


def test_exact_cells_give_the_parameters_and_no_residuals() -> None:
    found = fit(points())
    assert found is not None
    assert (found.compute_s, found.latency_s, found.bits) == pytest.approx(
        (COMPUTE_S, LATENCY_S, BITS), rel=1e-6
    )
    assert found.residuals == pytest.approx([0.0] * 7, abs=1e-9)
    assert found.is_determined
    assert found.freedom == 4


def test_cells_of_one_and_two_workers_predict_four() -> None:
    found = fit(points((2,)))
    assert found is not None
    for rate in RATES:
        predicted = found.predict(4, rate)
        assert predicted.seconds == pytest.approx(step_s(4, rate), rel=1e-6)


def test_the_load_of_a_cell_multiplies_its_compute_time_only() -> None:
    loaded = [*points((2,)), Point(4, 1e9, step_s(4, 1e9, load=2.0), load=2.0)]
    found = fit(loaded)
    assert found is not None
    assert found.compute_s == pytest.approx(COMPUTE_S, rel=1e-6)
    assert found.seconds(4, 1e9, load=2.0) == pytest.approx(step_s(4, 1e9, load=2.0), rel=1e-6)


def test_no_parameter_is_negative() -> None:
    """Faster than the compute time of one worker: the best latency would be below zero."""
    fast = [Point(1, None, 0.05), Point(2, 1e8, 0.36), Point(2, 1e9, 0.060), Point(3, 1e9, 0.055)]
    found = fit(fast)
    assert found is not None
    assert min(found.compute_s, found.latency_s, found.bits) >= 0
    assert found.latency_s == 0
    assert found.kept == (0, 2)


@pytest.mark.parametrize("cells", [points((2,), (1e9,)), points((), ()), points((2,), (1e9, 1e9))])
def test_cells_that_cannot_tell_parameters_apart_are_named_so(cells: list[Point]) -> None:
    found = fit(cells)
    assert found is not None
    assert not found.is_determined
    assert found.latency_s == 0, "without two rates everything counts as transfer"


def test_there_is_no_fit_without_cells() -> None:
    assert fit([]) is None
    assert fit([Point(1, None, 0.0)]) is None


def test_without_more_cells_than_parameters_there_is_no_interval() -> None:
    found = fit(points((2,), (1e8, 1e9)))
    assert found is not None
    assert found.spread is None
    predicted = found.predict(4, 1e9)
    assert (predicted.low, predicted.high) == (None, None)


def test_nine_of_ten_intervals_cover_the_next_measurement() -> None:
    random.seed(7)
    covered = trials = 0
    for _ in range(400):
        found = fit(points((2, 3, 4), noise=0.04))
        assert found is not None
        for rate in RATES:
            predicted = found.predict(8, rate)
            assert predicted.low is not None
            assert predicted.high is not None
            measured = step_s(8, rate) * (1 + random.gauss(0, 0.04))
            covered += predicted.low <= measured <= predicted.high
            trials += 1
    assert 0.86 < covered / trials < 0.95


def test_a_long_step_counts_as_much_as_a_short_one() -> None:
    """The slow cell is 10 % off: with absolute errors it alone would decide the fit."""
    wrong = [*points()[:-1], Point(3, 1e9, step_s(3, 1e9)), Point(2, 1e6, step_s(2, 1e6) * 1.1)]
    found = fit(wrong)
    assert found is not None
    assert found.compute_s == pytest.approx(COMPUTE_S, rel=0.1)
