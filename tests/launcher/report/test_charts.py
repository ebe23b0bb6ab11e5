"""Charts: round ticks, gaps where values are missing, and no text that could be markup."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcluster.report import charts
from tfcluster.report.charts import (
    MOST_LINES,
    Chart,
    Line,
    Mark,
    format_ticks,
    format_time,
    ticks,
    time_ticks,
)

SVG = "{http://www.w3.org/2000/svg}"


def elements(chart: Chart, name: str) -> list[ET.Element]:
    svg = chart.to_svg("c").replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return list(ET.fromstring(svg).iter(SVG + name))


def paths(chart: Chart, kind: str) -> list[str]:
    found = elements(chart, "path")
    return [e.attrib["d"] for e in found if kind in e.attrib["class"].split()]


def texts(chart: Chart) -> list[str]:
    return [element.text or "" for element in elements(chart, "text")]


def chart(*ys: float, xs: tuple[float, ...] = (), marks: tuple[Mark, ...] = ()) -> Chart:
    points = tuple(zip(xs or map(float, range(len(ys))), ys, strict=True))
    return Chart("loss", (Line("loss", points),), "step", marks=marks)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 375, [0, 100, 200, 300]),
        (-0.3, 0.3, [-0.2, 0, 0.2]),
        (10_000, 10_001, [10_000, 10_000.2, 10_000.4, 10_000.6, 10_000.8, 10_001]),
        (5, 5, [5]),
        (0, math.inf, [0]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (3, ["0 s", "0.5 s", "1 s", "1.5 s", "2 s", "2.5 s", "3 s"]),
        (100, ["0 s", "30 s", "1:00", "1:30"]),
        (7200, ["0 s", "30:00", "1:00:00", "1:30:00", "2:00:00"]),
        (864_000, ["0 s", "48:00:00", "96:00:00", "144:00:00", "192:00:00", "240:00:00"]),
    ],
)
def test_time_ticks_are_round_times(high: float, expected: list[str]) -> None:
    assert [format_time(value) for value in time_ticks(0, high)] == expected


def test_bytes_have_their_unit() -> None:
    assert format_ticks([1.5e9], "bytes") == ["1.5 GB"]


def test_labels_that_would_be_equal_get_more_digits() -> None:
    assert format_ticks([10_869.80, 10_869.85, 10_869.90], "number") == [
        "10.8698k",
        "10.86985k",
        "10.8699k",
    ]


def test_a_value_that_is_not_finite_is_a_gap_with_a_cross() -> None:
    drawn = chart(1.0, 0.9, math.nan, 0.7, 0.6)
    (line,) = paths(drawn, "line")
    assert line.count("M") == 2
    assert len(paths(drawn, "cross")) == 1
    assert "values that are not finite" in drawn.summary


def test_a_single_point_is_a_dot() -> None:
    drawn = chart(5.0)
    assert paths(drawn, "line") == []
    assert len(paths(drawn, "dot")) == 1


def test_a_restart_begins_a_new_line_where_it_resumes() -> None:
    (line,) = paths(chart(3.0, 2.0, 1.0, 2.0, 1.0, xs=(1, 2, 3, 2, 3)), "line")
    assert line.count("M") == 2


def test_only_values_that_are_not_finite_still_make_a_chart() -> None:
    drawn = chart(math.nan, math.inf)
    assert paths(drawn, "line") == []
    assert len(paths(drawn, "cross")) == 1


def test_a_wide_range_has_a_logarithmic_scale() -> None:
    assert "step (logarithmic scale)" in texts(chart(1e5, 10.0, 0.1))
    assert "step" in texts(chart(100.0, 10.0, 1.0))
    assert "step" in texts(chart(1e5, 10.0, 0.0))


@pytest.mark.parametrize("least", [5e-324, 1e-323, 1e-310])
def test_the_least_numbers_have_a_logarithmic_scale_too(least: float) -> None:
    assert "step (logarithmic scale)" in texts(chart(least, 1e-300, 0.1))
    assert paths(chart(least, least * 2000), "line")


def test_a_rate_begins_at_zero_on_a_linear_scale() -> None:
    line = Line("worker:0", ((0.0, 0.001), (1.0, 5000.0)))
    shown = texts(Chart("Steps per second", (line,), "step", "rate"))
    assert {"0", "step"} < set(shown)
    line = Line("worker:0", ((0.0, 4900.0), (1.0, 5000.0)))
    assert "0" in texts(Chart("Steps per second", (line,), "time", "rate"))


def test_marks_outside_of_the_lines_are_left_out() -> None:
    marks = (
        Mark(1.0, "restart", "attempt 2: worker:1 died"),
        Mark(1.5, "checkpoint", "checkpoint gathered: step 1"),
        Mark(99.0, "restart", "attempt 3: later"),
    )
    drawn = chart(1.0, 2.0, 3.0, marks=marks)
    assert len(paths(drawn, "restart")) == 1
    assert len(paths(drawn, "checkpoint")) == 1
    assert "attempt 2" in texts(drawn)


def test_many_restarts_have_no_names_and_some_lines() -> None:
    marks = tuple(Mark(i / 1000, "restart", f"attempt {i}: x") for i in range(1000))
    drawn = chart(1.0, 2.0, marks=marks)
    assert 30 < len(paths(drawn, "restart")) <= 60
    assert not any(text.startswith("attempt") for text in texts(drawn))


def test_lines_that_share_a_lightness_differ_in_their_dashes() -> None:
    lines = tuple(Line(str(i), ((0.0, i), (1.0, i)), i) for i in range(MOST_LINES))
    found = elements(Chart("x", lines, "time"), "path")
    styles = {
        (e.attrib["class"], e.attrib.get("stroke-dasharray"))
        for e in found
        if "line" in e.attrib["class"]
    }
    assert len(styles) == MOST_LINES


@pytest.mark.parametrize(
    "text", ["</title><script>alert(1)</script>", "\x1b[31m\x00 \u202e", "]]>"]
)
def test_no_text_is_markup_or_a_control(text: str) -> None:
    line = Line(text, ((0.0, 1.0), (1.0, 2.0)))
    svg = Chart(text, (line,), "time", marks=(Mark(0.5, "restart", text),)).to_svg("c")
    assert "<script" not in svg
    assert not set(svg) & {"\x1b", "\x00", "\u202e"}


values = st.floats(allow_nan=True, allow_infinity=True)
points = st.lists(st.tuples(st.floats(0, 1e12), values), min_size=1, max_size=20).map(tuple)


@given(
    lines=st.lists(points, min_size=1, max_size=3),
    label=st.text(),
    unit=st.sampled_from(("number", "bytes")),
    axis=st.sampled_from(("time", "step")),
)
def test_any_values_make_a_well_formed_picture(
    lines: list[tuple[tuple[float, float], ...]],
    label: str,
    unit: charts.Unit,
    axis: charts.Axis,
) -> None:
    found = tuple(Line(label, line, index) for index, line in enumerate(lines))
    drawn = Chart(label, found, axis, unit)
    assert "nan" not in "".join(paths(drawn, "line"))
    assert "inf" not in "".join(paths(drawn, "line"))
