"""Step times are collected where the launcher asks for them, and sent in few lists."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster_workers.jobs import gradient_volume
from tfcluster_workers.step_ends import MOST_STEPS, VARIABLE, StepEnds


class Rig:
    def __init__(self) -> None:
        self.now, self.sent = 100.0, list[dict[str, Any]]()
        self.times = StepEnds(lambda **fields: self.sent.append(fields), clock=lambda: self.now)

    def step(self, number: int, *, after_s: float) -> None:
        self.now += after_s
        self.times.note(number)


def test_nothing_is_collected_unless_the_launcher_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    rig = Rig()
    rig.step(1, after_s=1.0)
    rig.times.flush()
    assert rig.sent == []


def test_every_step_is_sent_once_in_a_few_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    rig = Rig()
    for number in range(1, 101):
        rig.step(number, after_s=0.01)
    rig.times.flush()
    assert [step for report in rig.sent for step in report["steps"]] == [*range(1, 101)]
    times = [time for report in rig.sent for time in report["times"]]
    assert times == pytest.approx([100 + 0.01 * number for number in range(1, 101)])
    assert len(rig.sent) < 10
    assert all(report["cpu_s"] > 0 for report in rig.sent)


def test_a_report_never_grows_too_long_for_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    rig = Rig()
    for number in range(3 * MOST_STEPS):
        rig.step(number, after_s=1e-6)
    assert max(len(report["steps"]) for report in rig.sent) <= MOST_STEPS


@pytest.mark.parametrize(("elements", "parts"), [(10, 3), (2, 4), (1_000_000, 4)])
def test_the_benchmark_splits_its_volume_exactly(elements: int, parts: int) -> None:
    sizes = gradient_volume.split(elements, parts)
    assert sum(sizes) == elements
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == min(parts, elements)


def test_the_benchmark_refuses_a_volume_of_nothing() -> None:
    with pytest.raises(SystemExit):
        gradient_volume.parse(["--megabytes", "0"])
