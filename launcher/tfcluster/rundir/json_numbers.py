"""Numbers as JSON can hold them: it has none for a loss that has become no number."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, isnan


def spell(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """`metrics` for JSON.

    A value that is no number is text as protobuf's JSON has it, ``"NaN"`` or ``"-Infinity"``:
    Python's float() and JavaScript's Number() read it back.
    """
    return {name: value if isfinite(value) else _spelling(value) for name, value in metrics.items()}


def _spelling(value: float) -> str:
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
