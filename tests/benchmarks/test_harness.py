"""The benchmark harness: rounds, their order, and arms that fail or cannot be measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from benchmarks.harness import Arm, Failed, Metric, Quantity, Taken, Value, measure, order


class Takes:
    """Arms that record the order of their runs."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def arm(self, name: str) -> Arm:
        def take() -> Taken:
            self.order.append(name)
            return {"start": float(len(self.order))}

        return Arm(take, name)


def _metric(**arms: Arm) -> Metric:
    return Metric("a title", {"start": Quantity("s"), "waits": Quantity("s")}, arms)


def _values(metric: Metric, *, runs: int = 3, warms_up: bool = True) -> list[Value]:
    rounds = measure("name", metric, runs=runs, seed=7, warms_up=warms_up)
    return [value for values in rounds for value in values]


def test_each_round_runs_every_arm_once() -> None:
    rounds = [*order(["a", "b", "c", "d"], rounds=50, seed=1)]
    assert all(sorted(one) == ["a", "b", "c", "d"] for one in rounds)


def test_the_seed_determines_the_order() -> None:
    assert [*order("abcd", rounds=9, seed=5)] == [*order("abcd", rounds=9, seed=5)]
    assert [*order("abcd", rounds=9, seed=5)] != [*order("abcd", rounds=9, seed=6)]


def test_the_first_round_is_discarded() -> None:
    takes = Takes()
    values = _values(_metric(a=takes.arm("a"), b=takes.arm("b")))
    assert len(takes.order) == 8
    assert min(value.value for value in values) > 2
    assert [value.run for value in values if value.arm == "a"] == [1, 2, 3]


def test_a_quantity_may_have_several_values_per_run() -> None:
    metric = _metric(a=Arm(lambda: {"waits": [1.0, 2.0]}, "a"))
    assert [value.value for value in _values(metric, runs=1)] == [1.0, 2.0]


def test_an_arm_that_is_not_installed_is_left_out_and_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    takes = Takes()
    there, gone = takes.arm("there"), replace(takes.arm("gone"), missing="no such program")
    values = _values(_metric(there=there, gone=gone))
    assert {value.arm for value in values} == {"there"}
    assert "gone is left out: no such program" in capsys.readouterr().err


def test_an_arm_with_most_runs_is_run_less_often() -> None:
    takes = Takes()
    values = _values(_metric(a=takes.arm("a"), slow=replace(takes.arm("slow"), most_runs=1)))
    assert [value.run for value in values if value.arm == "slow"] == [1]
    assert takes.order.count("slow") == 1


def _fails(times: int) -> Callable[[], Taken]:
    left = [times]

    def take() -> Taken:
        left[0] -= 1
        if left[0] >= 0:
            raise Failed("no")
        return {"start": 1.0}

    return take


def test_a_run_that_failed_is_repeated_once(capsys: pytest.CaptureFixture[str]) -> None:
    values = _values(_metric(a=Arm(_fails(1), "a")), runs=2)
    assert [value.value for value in values] == [1.0, 1.0]
    assert "failed and is repeated: no" in capsys.readouterr().err


def test_an_arm_that_fails_twice_in_a_row_ends_the_metric() -> None:
    with pytest.raises(Failed):
        _values(_metric(a=Arm(_fails(2), "a")))


def test_a_smoke_run_has_no_warm_up_round() -> None:
    takes = Takes()
    assert len(_values(_metric(a=takes.arm("a")), runs=1, warms_up=False)) == 1
    assert takes.order == ["a"]
