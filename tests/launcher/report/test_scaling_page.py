"""A scaling study as a page and as text: every cell is there, also on a narrow screen."""

from __future__ import annotations

import re
from itertools import product

import pytest

from tfcluster.report.scaling_page import figures_of, render_study
from tfcluster.report.scaling_tables import format_ms, study_parts
from tfcluster.scaling.study import Measured, Study, analyse
from tfcluster.ui.render import part_lines


def study(name: str = "demo", predict: tuple[int, ...] = (8,)) -> Study:
    alone = Measured(1, None, None, (0.05, 0.051), 4_000_000, 8.0, 0.2)
    cells = [
        Measured(n, "RING", rate, (0.06 + n * 3e7 / rate, 0.1), 4_000_000, 8.0 * n, 0.3)
        for n, rate in product((2, 3), (1e8, 1e9))
    ]
    return analyse(name, [alone, *cells], cores=2, predict=predict)


def test_the_page_loads_nothing_and_has_a_row_for_each_cell() -> None:
    page = render_study(study(), ["tfcluster", "scale", "x.json"])
    assert page.startswith("<!doctype html>")
    assert page.count("<td") > 30
    assert "tfcluster scale x.json" in page
    assert "Predicted for hosts" in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert "<script" not in page


def test_a_hostile_name_is_escaped() -> None:
    page = render_study(study("<img src=x>"), ["tfcluster", "scale"])
    assert "<img" not in page


def test_the_charts_have_a_line_for_each_rate_over_the_workers() -> None:
    step, *_ = figures_of(study())
    assert [line.label for line in step.lines] == ["RING, 100 Mbit/s", "RING, 1 Gbit/s"]
    assert [x for x, _ in step.lines[0].points] == [1.0, 2.0, 3.0]
    assert ">workers</text>" in step.charts[0].to_svg("x")


def test_the_charts_show_cells_with_quartiles_their_fit_and_predictions_with_intervals() -> None:
    found = study()
    step, collective, efficiency = figures_of(found)

    slow = next(c for c in found.cells if (c.measured.workers, c.measured.rate) == (2, 1e8))
    dots = [spot for spot in step.charts[0].spots if not spot.is_predicted]
    assert (2.0, slow.median_s, slow.low_s, slow.high_s) in [
        (s.x, s.y, s.low, s.high) for s in dots
    ]
    assert step.lines[0].points[1] == (2.0, slow.fitted_s)
    rings = [spot for spot in step.charts[0].spots if spot.is_predicted]
    assert [spot.x for spot in rings] == [8.0, 8.0]
    predicted = found.predictions[0].prediction
    assert (rings[0].low, rings[0].y, rings[0].high) == (
        predicted.low,
        predicted.seconds,
        predicted.high,
    )
    for figure in (step, collective, efficiency):
        assert all(spot.low <= spot.y <= spot.high for spot in figure.charts[0].spots)
        assert len(figure.charts[0].spots) == 2 * (1 + 2) + 2
    svg = step.charts[0].to_svg("x")
    assert svg.count('class="measured') == 6
    assert svg.count('class="predicted') == 2
    assert "RING, 100 Mbit/s, 8 workers: predicted " in step.charts[0].summary
    assert "Rings are predictions with their 90 % intervals." in step.note


@pytest.mark.parametrize("predict", [(), (8,), (3,)])
def test_there_is_no_part_of_a_worker_on_an_axis(predict: tuple[int, ...]) -> None:
    (chart,) = figures_of(study(predict=predict))[0].charts
    labels = re.findall(r'<text class="tick middle"[^>]*>([^<]*)<', chart.to_svg("x"))
    assert len(labels) >= 2
    assert all(label.isdigit() for label in labels), labels


@pytest.mark.parametrize("width", [30, 60, 200])
def test_the_text_fits_the_screen(width: int) -> None:
    lines = [line for part in study_parts(study()) for line in part_lines(part, width)]
    assert max(map(len, lines)) <= width
    assert "100 Mbit/s" in " ".join(lines)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.00342, "3.42 ms"),
        (0.182, "182 ms"),
        (1.25, "1.25 s"),
        (12.0, "12 s"),
        (0.99996, "1.00 s"),
    ],
)
def test_a_time_has_three_digits(seconds: float, shown: str) -> None:
    assert format_ms(seconds) == shown
