"""Benchmark results: ratios, their intervals, and the condition under which a bar is reached."""

from __future__ import annotations

import math

import pytest
from benchmarks.figures import judge, p90, paired_ratio, spread
from benchmarks.harness import Claim, Quantity, Value
from tests.benchmarks.observed import observed

SECONDS = Quantity("s")
RATIO = Claim("ours : theirs", "start", "ours", "theirs", at_most=0.5, stretch=0.25)
PAIRS = Claim("pairs", "start", "ours", "theirs", at_least=0.97, stretch=1.0, is_paired=True)


def test_a_ratio_is_that_of_the_medians() -> None:
    values = observed("ours", [1, 2, 9]) + observed("theirs", [4, 8, 8])
    verdict = judge(RATIO, values, SECONDS)
    assert verdict is not None
    assert verdict.figure == 0.25
    assert (verdict.bar, verdict.stretch) == (True, True)


def test_an_interval_stays_within_the_ratios_of_single_rounds() -> None:
    values = observed("ours", [1, 1.1, 1.2, 0.9, 1]) + observed("theirs", [4, 4.4, 3.6, 4, 4.2])
    verdict = judge(RATIO, values, SECONDS)
    assert verdict is not None
    assert 0.9 / 4.4 <= verdict.low < verdict.figure < verdict.high <= 1.2 / 3.6


@pytest.mark.parametrize(
    ("ours", "bar", "stretch"), [(3.0, False, False), (2.0, True, False), (1.0, True, True)]
)
def test_a_bar_is_reached_by_a_value_equal_to_it(ours: float, bar: bool, stretch: bool) -> None:
    verdict = judge(RATIO, observed("ours", [ours]) + observed("theirs", [4]), SECONDS)
    assert verdict is not None
    assert (verdict.bar, verdict.stretch) == (bar, stretch)


def test_a_claim_about_an_unmeasured_arm_has_no_verdict() -> None:
    assert judge(RATIO, observed("ours", [1, 2]), SECONDS) is None
    assert judge(RATIO, observed("theirs", [1, 2]), SECONDS) is None


def test_pairs_are_compared_round_by_round() -> None:
    """A machine that is three times slower in one round does not change the ratio."""
    values = observed("ours", [100, 33, 102, 98]) + observed("theirs", [101, 33.2, 103, 99])
    verdict = judge(PAIRS, values, SECONDS)
    assert verdict is not None
    assert 0.98 < verdict.low < verdict.figure < 1.0
    assert (verdict.bar, verdict.stretch) == (True, False)


def test_a_paired_bar_applies_to_the_lower_end_of_the_interval() -> None:
    values = observed("ours", [90, 110, 104, 96]) + observed("theirs", [100, 100, 100, 100])
    verdict = judge(PAIRS, values, SECONDS)
    assert verdict is not None
    assert verdict.figure > 0.99
    assert verdict.bar is False


def test_a_round_that_only_one_arm_has_is_left_out() -> None:
    values = [*observed("ours", [2, 2, 50]), *observed("theirs", [1, 1])]
    verdict = judge(PAIRS, values, SECONDS)
    assert verdict is not None
    assert verdict.figure == pytest.approx(2.0)


def test_the_interval_of_a_paired_ratio_is_student_s() -> None:
    figure, low, high = paired_ratio([(1.0, 1.0), (math.e, 1.0)])
    assert math.log(figure) == pytest.approx(0.5)
    assert math.log(high) - math.log(low) == pytest.approx(2 * 12.706 * 0.5, rel=1e-3)


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (10, 9), (11, 10), (20, 18)])
def test_p90_is_an_observed_value(count: int, rank: int) -> None:
    assert p90([*range(count, 0, -1)]) == rank


def test_a_quantity_is_summarised_by_its_own_summary() -> None:
    values = [*range(1, 11)]
    assert spread(values, Quantity("s")).summary == 5.5
    assert spread(values, Quantity("s", "p90")).summary == 9
    assert spread(values, Quantity("s", "worst")).summary == 10


def test_observations_of_one_round_are_resampled_together() -> None:
    """Two rounds of ten equal waits are two observations, not twenty."""
    values = [Value("m", "ours", "wait", run, run, "s") for run in (1, 2) for _ in range(10)]
    verdict = judge(Claim("p90", "wait", "ours"), values, Quantity("s", "p90"))
    assert verdict is not None
    assert (verdict.figure, verdict.low, verdict.high) == (2, 1, 2)


def test_a_claim_without_a_bar_is_neither_reached_nor_missed() -> None:
    claim = Claim("ours", "start", "ours")
    verdict = judge(claim, observed("ours", [1, 2, 3]), SECONDS)
    assert verdict is not None
    assert (verdict.figure, verdict.bar, verdict.stretch) == (2, None, None)


def test_one_pair_has_no_interval() -> None:
    figure, low, high = paired_ratio([(3.0, 2.0)])
    assert figure == pytest.approx(1.5)
    assert math.isnan(low)
    assert math.isnan(high)
