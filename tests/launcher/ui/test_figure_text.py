"""The figures of a training come from its tasks; what is not known stays unknown."""

from __future__ import annotations

import pytest

from tfcluster.rundir.figures import Figures, figures_of
from tfcluster.rundir.states import Status
from tfcluster.ui.figure_text import Trend, draw_trend

from .frames import START, run_of, worker


def test_a_run_without_a_step_has_no_figures_but_the_sums() -> None:
    found = figures_of(run_of(worker(0, step=None), worker(1, step=None, cores=0.5)))
    assert found == Figures(rss_bytes=1_624_000_000, cores=2.4)


def test_a_total_is_one_that_a_task_has_reported() -> None:
    assert figures_of(run_of(worker(0))).total_steps == 4000
    resumed = figures_of(run_of(worker(0, total_steps=None, steps_per_epoch=400)))
    assert (resumed.total_steps, resumed.done) == (None, 0.3)


def test_the_remaining_time_uses_the_mean_speed_and_is_never_negative() -> None:
    assert figures_of(run_of(worker(0))).eta_s == 70.0
    assert figures_of(run_of(worker(0, step=5000))).eta_s == 0.0


def test_the_mean_speed_is_in_examples_where_a_task_knows_them() -> None:
    assert figures_of(run_of(worker(0, mean_examples_per_second=50.0))).mean_rate == 50.0
    assert figures_of(run_of(worker(0, examples_per_second=None))).mean_rate == 40.0


def test_a_stalled_run_has_no_speed_and_no_remaining_time() -> None:
    found = figures_of(run_of(worker(0), status=Status.STALLED))
    assert (found.rate, found.mean_rate, found.eta_s) == (None, None, None)
    assert found.step == 1200


def test_a_run_that_has_ended_has_only_its_mean_speed() -> None:
    found = figures_of(run_of(worker(0), status=Status.SUCCEEDED))
    assert (found.rate, found.eta_s) == (None, None)
    assert found.mean_steps_per_second == 40.0


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
