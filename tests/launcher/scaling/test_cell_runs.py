"""The steps of a cell are those after the warm-up."""

from __future__ import annotations

import pytest

from tfcluster.scaling.cell_runs import WARM_UP_S, Steps, Timed


def reported(steps: list[int], times: list[float], cpu_s: float = 0.0) -> dict[str, object]:
    return {
        "type": "step_ends", "task": "worker:0", "steps": steps, "times": times, "cpu_s": cpu_s,
    }  # fmt: skip


def every(seconds: float, count: int, *, start: float = 100.0) -> Steps:
    found = Steps("worker:0")
    for number in range(1, count + 1):
        found.note(reported([number], [start + number * seconds], cpu_s=number * seconds / 2))
    return found


def test_the_first_steps_do_not_count() -> None:
    steps = every(0.5, 20)
    timed = steps.timed()
    assert timed.step_s == pytest.approx([0.5] * 16)
    assert timed.lasted_s == pytest.approx(8.0)
    assert timed.cpu_s / timed.lasted_s == pytest.approx(0.5)
    assert every(0.5, 3).timed() == Timed(())


def test_short_steps_do_not_count_until_the_warm_up_is_over() -> None:
    timed = every(0.01, 300).timed()
    assert len(timed.step_s) == pytest.approx((3.0 - WARM_UP_S) / 0.01, abs=2)


def test_a_report_of_several_steps_divides_its_time() -> None:
    steps = Steps("worker:0")
    for number in range(1, 12):
        steps.note(reported([10 * number], [100.0 + number]))
    timed = steps.timed()
    assert timed.step_s == pytest.approx([0.1] * 70)


def test_another_training_that_begins_again_is_no_negative_step() -> None:
    steps = every(0.5, 10)
    for number in range(1, 11):
        steps.note(reported([number], [105.0 + number * 0.5]))
    assert min(steps.timed().step_s) > 0


def test_the_volume_and_the_batch_are_read() -> None:
    steps = Steps("worker:0")
    steps.note({**reported([1], [1.0]), "task": "worker:1"})
    steps.note({"type": "usage", "tasks": {}})
    assert steps.count == 0
    steps.note({**reported([1], [1.0]), "gradient_bytes": 400})
    steps.note(reported([2], [2.0]))
    speed = {"mean_examples_per_second": 959.8, "mean_steps_per_second": 10.0}
    steps.note({"type": "progress", "task": "worker:0", "step": 3, **speed})
    assert (steps.gradient_bytes, steps.global_batch) == (400, 96.0)
