"""Values as a benchmark would have written them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import Value


def observed(arm: str, values: Sequence[float], *, quantity: str = "start") -> list[Value]:
    """One a round, from round 1 on."""
    return [Value("start", arm, quantity, run, one, "s") for run, one in enumerate(values, 1)]
