"""A metric's figures as plain text, printed after measuring."""

from __future__ import annotations

import os
from collections.abc import Sequence

from benchmarks.figures import Verdict, judge, rounds, spread
from benchmarks.harness import Claim, Metric, Value


def table(metric: Metric, values: Sequence[Value]) -> str:
    """Return the summary of each arm with quartiles and extremes, then the claims."""
    lines = [f"{metric.title} (load {os.getloadavg()[0]:.1f})"]
    for name, quantity in metric.quantities.items():
        lines.append(f"  {name}, {quantity.unit}, {quantity.summary}")
        for arm in metric.arms:
            if by_round := rounds(values, arm, name):
                seen = spread([one for several in by_round.values() for one in several], quantity)
                line = f"    {arm:<28} {number(seen.summary):>8}"
                if seen.least != seen.most:
                    line += f"   quartiles {number(seen.low)} {number(seen.high)}"
                    line += f"   all {number(seen.least)} to {number(seen.most)}"
                lines.append(line)
    for claim in metric.claims:
        if verdict := judge(claim, values, metric.quantities[claim.quantity]):
            lines.append(f"  {claim.text:<36} {said(claim, verdict)}")
    return "\n".join(lines)


def said(claim: Claim, verdict: Verdict) -> str:
    """Return a claim's figure, its interval, and its target if it has one."""
    sign = " ×" if claim.beside else ""
    text = f"{number(verdict.figure)}{sign}"
    if verdict.low != verdict.high:
        text += f" ({number(verdict.low)} to {number(verdict.high)})"
    bar = claim.at_most if claim.at_most is not None else claim.at_least
    if bar is not None:
        relation = "≤" if claim.at_most is not None else "≥"
        reached = "reached" if verdict.bar else "MISSED"
        if verdict.stretch:
            reached = f"stretch target {claim.stretch:g} reached"
        text += f"; target {relation} {bar:g}: {reached}"
    return text


def number(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
