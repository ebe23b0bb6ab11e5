"""The steps of a block are those after a change of the rate and its warm-up."""

from __future__ import annotations

import pytest

from tfcluster.scaling.gang_steps import WARM_UP_S, Block, Steps


def reported(steps: list[int], times: list[float], cpu_s: float = 0.0) -> dict[str, object]:
    return {
        "type": "step_times", "task": "worker:0", "steps": steps, "times": times, "cpu_s": cpu_s,
    }  # fmt: skip


def every(seconds: float, count: int, *, start: float = 100.0) -> Steps:
    found = Steps("worker:0")
    for number in range(1, count + 1):
        found.note(reported([number], [start + number * seconds], cpu_s=number * seconds / 2))
    return found


def test_steps_before_the_change_and_the_first_ones_after_it_do_not_count() -> None:
    steps = every(0.5, 20)
    block = steps.since(105.0)
    assert block.step_s == pytest.approx([0.5] * 7)
    assert block.lasted_s == pytest.approx(3.5)


def test_short_steps_do_not_count_until_the_warm_up_is_over() -> None:
    block = every(0.01, 300).since(100.0)
    assert len(block.step_s) == pytest.approx((3.0 - WARM_UP_S) / 0.01, abs=2)


def test_a_report_of_several_steps_divides_its_time() -> None:
    steps = Steps("worker:0")
    for number in range(1, 12):
        steps.note(reported([10 * number], [100.0 + number]))
    block = steps.since(100.0)
    assert block.step_s == pytest.approx([0.1] * 70)


def test_another_training_that_begins_again_is_no_negative_step() -> None:
    steps = every(0.5, 10)
    for number in range(1, 11):
        steps.note(reported([number], [105.0 + number * 0.5]))
    assert min(steps.since(100.0).step_s) > 0


def test_the_processor_time_is_that_of_the_block() -> None:
    block = every(0.5, 20).since(100.0)
    assert block.cpu_s / block.lasted_s == pytest.approx(0.5)


def test_without_steps_the_block_is_empty() -> None:
    assert Steps("worker:0").since(0.0) == Block(())
    assert every(0.5, 3).since(100.0) == Block(())


def test_other_tasks_and_events_are_ignored() -> None:
    steps = Steps("worker:0")
    steps.note({**reported([1], [1.0]), "task": "worker:1"})
    steps.note({"type": "usage", "tasks": {}})
    assert steps.count == 0


def test_the_volume_and_the_batch_are_read() -> None:
    steps = Steps("worker:0")
    steps.note({**reported([1], [1.0]), "gradient_bytes": 400})
    steps.note(reported([2], [2.0]))
    speed = {"mean_examples_per_second": 959.8, "mean_steps_per_second": 10.0}
    steps.note({"type": "progress", "task": "worker:0", "step": 3, **speed})
    assert (steps.gradient_bytes, steps.global_batch) == (400, 96.0)
