"""How everything here is measured: variants interleaved, medians with their spread, ratios.

Absolute times say more about the machine than about the code, so each metric names a baseline
and its result is a ratio. Variants alternate (A B C A B C …), because a shared machine drifts.
"""

from __future__ import annotations

import csv
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ratio:
    """(`above` − `above_noop`) : (`below` − `below_noop`); the second of each may be absent."""

    label: str
    above: str
    below: str
    above_noop: str | None = None
    below_noop: str | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """Variants by name, each a function that does it once and returns a number of `unit`."""

    title: str
    unit: str
    variants: Mapping[str, Callable[[], float]]
    ratios: Sequence[Ratio] = field(default=())


@dataclass(frozen=True, slots=True)
class Value:
    """One single measurement."""

    metric: str
    variant: str
    run: int
    value: float
    unit: str


def measure(name: str, metric: Metric, *, runs: int) -> list[Value]:
    """Each variant once to warm up, then all of them in turn, `runs` times."""
    values = []
    for run in range(runs + 1):
        for variant, do in metric.variants.items():
            value = do()
            print(f"{name} {variant} #{run}: {value:.3f} {metric.unit}", file=sys.stderr)
            if run:
                values.append(Value(name, variant, run, value, metric.unit))
    return values


def table(metric: Metric, values: Sequence[Value]) -> str:
    """Median, least and most of each variant, then the ratios, as plain text."""
    medians = {name: statistics.median(_of(name, values)) for name in metric.variants}
    lines = [f"{metric.title} ({metric.unit}; {_machine()})"]
    for name, median in medians.items():
        own = _of(name, values)
        lines.append(f"  {name:<32} {median:9.3f}   {min(own):.3f} to {max(own):.3f}")
    lines += [f"  {ratio.label:<32} {_ratio(ratio, medians):9.2f} ×" for ratio in metric.ratios]
    return "\n".join(lines)


def write_csv(path: Path, values: Sequence[Value]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["metric", "variant", "run", "value", "unit"])
        writer.writerows([v.metric, v.variant, v.run, f"{v.value:.6f}", v.unit] for v in values)


def _machine() -> str:
    """What the figures depend on, the load beside the measurement included."""
    load = os.getloadavg()[0]
    python = platform.python_version()
    return f"{platform.system()}, {os.cpu_count()} cores, Python {python}, load {load:.1f}"


def _of(variant: str, values: Sequence[Value]) -> list[float]:
    return [value.value for value in values if value.variant == variant]


def _ratio(ratio: Ratio, medians: Mapping[str, float]) -> float:
    """NaN where the baseline is lost in the noise of its no-op."""
    above = medians[ratio.above] - (medians[ratio.above_noop] if ratio.above_noop else 0)
    below = medians[ratio.below] - (medians[ratio.below_noop] if ratio.below_noop else 0)
    return above / below if below > 0 else float("nan")
