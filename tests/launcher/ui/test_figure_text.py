"""The figures of a training come from its tasks; what is not known stays unknown."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster.rundir.figures import Figures, figures_of
from tfcluster.rundir.states import Status
from tfcluster.ui.figure_text import Trend, draw_trend

from .frames import START, run_of, worker


@pytest.mark.parametrize(
    ("facts", "status", "expected"),
    [
        ({}, Status.RUNNING, {"total_steps": 4000, "eta_s": 70.0}),
        (
            {"total_steps": None, "steps_per_epoch": 400},
            Status.RUNNING,
            {"total_steps": None, "done": 0.3},
        ),
        ({"step": 5000}, Status.RUNNING, {"eta_s": 0.0}),
        ({"mean_examples_per_second": 50.0}, Status.RUNNING, {"mean_rate": 50.0}),
        ({"examples_per_second": None}, Status.RUNNING, {"mean_rate": 40.0}),
        ({}, Status.STALLED, {"rate": None, "mean_rate": None, "eta_s": None, "step": 1200}),
        ({}, Status.SUCCEEDED, {"rate": None, "eta_s": None, "mean_steps_per_second": 40.0}),
    ],
    ids=str,
)
def test_a_figure_is_one_that_a_task_reports_and_that_says_something_now(
    facts: dict[str, Any], status: Status, expected: dict[str, Any]
) -> None:
    found = figures_of(run_of(worker(0, **facts), status=status))
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_run_without_a_step_has_no_figures_but_the_sums() -> None:
    found = figures_of(run_of(worker(0, step=None), worker(1, step=None, cores=0.5)))
    assert found == Figures(rss_bytes=1_624_000_000, cores=2.4)


@pytest.mark.parametrize(
    ("samples", "shown"),
    [
        ([], ""),
        ([1.0], ""),
        ([0.0, 50.0, 100.0], "▁▅█"),
        ([100.0, 101.0, 100.5], "▄▄▄"),
        ([0.0, 0.0], "▄▄"),
    ],
)
def test_a_trend_is_drawn_between_its_extremes_and_noise_is_flat(
    samples: list[float], shown: str
) -> None:
    assert draw_trend(samples, 10) == shown


def test_a_trend_keeps_the_newest_samples_of_one_attempt() -> None:
    trend = Trend()
    for second in range(100):
        run = run_of(worker(0, step=second, examples_per_second=float(second)))
        trend.note(figures_of(run), START + second)
    assert list(trend.samples) == [float(second) for second in range(40, 100, 2)]
    run = run_of(worker(0, step=1))
    trend.note(figures_of(run), START + 101)
    assert list(trend.samples) == [1312.0]
