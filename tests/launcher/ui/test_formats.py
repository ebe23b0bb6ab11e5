"""Durations, sizes, exits and rates are formatted for people."""

from __future__ import annotations

import math

import pytest

from tfcluster.ui.figure_text import format_metric, format_metrics
from tfcluster.ui.formats import (
    cut_to_columns,
    format_bytes,
    format_duration,
    format_exit,
    format_rate,
    format_value,
)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1, "0.0 s"),
        (0.84, "0.8 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
        (275_000, "3 d 4 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (812_000_000, "812 MB"), (12.4e9, "12 GB")],
)
def test_a_size_has_the_largest_fitting_unit(count: float, shown: str) -> None:
    assert format_bytes(count) == shown


@pytest.mark.parametrize(
    ("exit_code", "signal", "shown"),
    [(0, None, "exit 0"), (None, 9, "SIGKILL"), (None, 63, "signal 63"), (None, None, "")],
)
def test_an_exit_is_shown_as_exit_code_or_signal(
    exit_code: int | None, signal: int | None, shown: str
) -> None:
    assert format_exit(exit_code, signal) == shown


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("損失 0.5", 20, "損失 0.5"),
        ("損失関数", 5, "損失…"),
        ("e\u0301e\u0301", 2, "e\u0301e\u0301"),
        ("abc", 0, ""),
    ],
)
def test_cutting_counts_cells_of_the_screen(text: str, columns: int, shown: str) -> None:
    assert cut_to_columns(text, columns) == shown


def test_a_rate_has_at_most_two_decimals() -> None:
    assert [format_rate(rate) for rate in (None, 0.123, 41.23)] == ["", "0.12", "41.2"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.03125, "0.03125"),
        (12_345.0, "12.35k"),
        (2_500_000.0, "2.5M"),
        (-3e9, "-3G"),
        (4e20, "4e+20"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
    ],
)
def test_a_value_of_a_metric_is_short(value: float, text: str) -> None:
    assert format_value(value) == text


def test_metrics_are_as_short_everywhere() -> None:
    metrics = {"loss": 12_345.0, "lr": math.nan, "more": 1.0}
    assert format_metrics(metrics, 2) == "loss 12.35k, lr NaN"
    assert format_metric("loss", 12_345.0) == "loss 12.35k"
    assert format_bytes(math.nan) == "NaN"
