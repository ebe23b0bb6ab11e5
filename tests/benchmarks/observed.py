"""Values as a benchmark writes them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import Value


def observed(arm: str, values: Sequence[float], *, quantity: str = "start") -> list[Value]:
    """Return one value per round, beginning with round 1."""
    return [Value("start", arm, quantity, run, one, "s") for run, one in enumerate(values, 1)]
