"""Converts metrics for JSON, which has no NaN and no infinity."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, isnan


def to_json_numbers(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """Return `metrics` with NaN and infinities as the strings of protobuf's JSON.

    Python's float() and JavaScript's Number() can read ``"NaN"`` and ``"-Infinity"`` back.
    """
    return {name: value if isfinite(value) else _name_of(value) for name, value in metrics.items()}


def _name_of(value: float) -> str:
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
