"""The clock of the parts of a step: exclusive times, entries at common steps, few reports."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tfcluster_workers import step_parts
from tfcluster_workers.step_parts import GraphTimes, StepParts


class Rig:
    def __init__(self) -> None:
        self.now, self.sent, self.graphs = 0.0, list[dict[str, Any]](), GraphTimes()
        self.parts = StepParts(lambda **fields: self.sent.append(fields), clock=lambda: self.now)
        self.parts.is_on = True
        self.parts.read_graphs = lambda: self.graphs

    def spend(self, part: str, seconds: float) -> None:
        with self.parts.of(part):
            self.now += seconds

    def step(self, number: int) -> None:
        self.now += 0.01  # Python's own
        self.parts.note(number)

    def total(self, name: str) -> float:
        return sum(sum(report[name]) for report in self.sent)


def test_parts_are_exclusive_and_add_up_to_the_step() -> None:
    rig = Rig()
    rig.step(1)
    for number in range(2, 102):
        with rig.parts.of(step_parts.FUNCTION):
            rig.now += 0.10
            g = rig.graphs
            rig.graphs = GraphTimes(g.input_s + 0.03, g.collective_s + 0.02, g.reduced_bytes + 8)
        with rig.parts.of(step_parts.CALLBACKS):
            rig.now += 0.04
            with rig.parts.of(step_parts.EVALUATION):  # a callback that evaluates
                rig.graphs = rig.graphs - GraphTimes(-5, -5, 0)
                with rig.parts.of(step_parts.FUNCTION):
                    rig.now += 10
        rig.step(number)
    rig.parts.flush()
    assert rig.total("seconds") == pytest.approx(100 * 0.15)
    assert rig.total("input_s") == pytest.approx(100 * 0.03)
    assert rig.total("collective_s") == pytest.approx(100 * 0.02)
    assert rig.total("compute_s") == pytest.approx(100 * 0.05)
    assert rig.total("callbacks_s") == pytest.approx(100 * 0.04)
    assert sum(report["reduced_bytes"] for report in rig.sent) == 800


def test_what_python_measures_counts_beside_the_graphs() -> None:
    rig = Rig()
    rig.step(1)
    for number in range(2, 12):
        rig.spend(step_parts.INPUT, 0.3)
        rig.spend(step_parts.COLLECTIVE, 0.2)
        rig.step(number)
    rig.parts.flush()
    assert rig.total("input_s") == pytest.approx(3)
    assert rig.total("collective_s") == pytest.approx(2)


def test_short_steps_share_entries_that_end_at_the_same_steps_in_all_tasks() -> None:
    ends = []
    for seconds in (0.001, 0.004):
        rig = Rig()
        for number in range(1, 4001):
            rig.now += seconds - 0.01
            rig.step(number)
        rig.parts.flush()
        ends.append({step for report in rig.sent for step in report["steps"]})
        assert len(ends[-1]) < 4000 * seconds / step_parts.ENTRY_S * 2 + 10
        assert all(len(report["steps"]) <= step_parts.MOST_ENTRIES for report in rig.sent)
    assert len(ends[0] & ends[1]) > len(ends[0]) / 2


def test_reports_follow_each_other_without_a_gap() -> None:
    rig = Rig()
    for number in range(1, 400):
        rig.now += 0.1
        rig.step(number)
    rig.parts.flush()
    ends = [1, *(report["steps"][-1] for report in rig.sent)]
    assert [report["after"] for report in rig.sent] == ends[:-1]
    assert 5 < len(rig.sent) < 20


def test_a_new_training_leaves_out_its_first_step_and_other_threads_do_not_count() -> None:
    rig = Rig()
    for number in range(1, 5):
        rig.now += 1
        rig.step(number)
    rig.parts.restart()
    rig.spend(step_parts.FUNCTION, 100)
    rig.step(5)
    thread = threading.Thread(target=rig.spend, args=(step_parts.FUNCTION, 1))
    thread.start()
    thread.join()
    rig.step(6)
    rig.parts.flush()
    assert rig.total("seconds") == pytest.approx(3 * 1.01 + 1.01)
    assert rig.total("compute_s") == 0
