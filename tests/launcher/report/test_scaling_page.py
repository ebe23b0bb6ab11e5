"""A scaling study as a page and as text: every cell is there, also on a narrow screen."""

from __future__ import annotations

import re
from itertools import product

import pytest

from tfcluster.report.scaling_page import figures_of, render_study
from tfcluster.report.scaling_tables import format_ms, study_parts
from tfcluster.scaling.study import Measured, Study, analyse
from tfcluster.ui.render import part_lines


def study(name: str = "demo") -> Study:
    alone = Measured(1, None, None, (0.05, 0.051), 4_000_000, 8.0, 0.2)
    cells = [
        Measured(n, "RING", rate, (0.06 + n * 3e7 / rate, 0.1), 4_000_000, 8.0 * n, 0.3)
        for n, rate in product((2, 3), (1e8, 1e9))
    ]
    return analyse(name, [alone, *cells], cores=2, predict=(8,))


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
