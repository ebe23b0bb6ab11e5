"""Durations, sizes, exits and rates are formatted for people."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tfcluster.ui.figure_text import format_metric, format_metrics
from tfcluster.ui.formats import (
    cut_to_columns,
    format_bytes,
    format_duration,
    format_exit,
    format_rate,
    format_value,
    keep_whole,
    wrap_words,
)


# Durations have at most two units, sizes the largest that fits; rates have two decimals at most;
# a cut counts the cells of the screen.
@pytest.mark.parametrize(
    ("formats", "rows"),
    [
        (format_duration, {-1: "0.0 s", 0.84: "0.8 s", 9.96: "10 s", 59.4: "59 s"}),
        (format_duration, {59.6: "1 min 00 s", 185: "3 min 05 s", 7620: "2 h 07 min"}),
        (format_duration, {275_000: "3 d 4 h"}),
        (format_bytes, {0: "0 B", 999: "999 B", 1500: "1.5 kB", 812e6: "812 MB", 12.4e9: "12 GB"}),
        (format_bytes, {math.nan: "NaN"}),
        (format_rate, {None: "", 0.123: "0.12", 41.23: "41.2"}),
        (lambda end: format_exit(*end), {(0, None): "exit 0", (None, 9): "SIGKILL"}),
        (lambda end: format_exit(*end), {(None, 63): "signal 63", (None, None): ""}),
        (lambda text: cut_to_columns(text, 3), {"abc": "abc", "abcd": "ab…", "損失 0.5": "損…"}),
        (lambda text: cut_to_columns(text, 2), {"e\u0301e\u0301": "e\u0301e\u0301"}),
        (lambda text: cut_to_columns(text, 0), {"abc": ""}),
    ],
)
def test_values_are_formatted_for_people(
    formats: Callable[[Any], str], rows: dict[Any, str]
) -> None:
    assert {value: formats(value) for value in rows} == rows


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


def test_lines_are_broken_between_words_and_never_in_a_path_or_a_command() -> None:
    text = f"see {keep_whole('/my runs/a b')} or `tfcluster attach k7f3`, or --set a.b=c, or retry"
    assert wrap_words(text, 14, indent="  ") == [
        "see",
        "  /my runs/a b",
        "  or",
        "  `tfcluster attach k7f3`,",
        "  or",
        "  --set a.b=c,",
        "  or retry",
    ]
