"""The figures of a training as text; `Trend` is what a view remembers of its speed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import starmap
from math import isfinite
from typing import Final

from tfcluster.rundir.figures import Figures, figures_of
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.ui.formats import (
    cut_to_columns,
    format_duration,
    format_large_rate,
    format_ms,
    format_value,
)
from tfcluster.ui.lines import sanitize_text

SAMPLES: Final = 30
SAMPLE_S: Final = 2.0
"""Shortest time between two samples of a trend."""
_BARS: Final = "▁▂▃▄▅▆▇█"
_LONGEST_METRIC: Final = 24
_MOST_METRICS: Final = 6


def format_step(
    figures: Figures, open_end: str = ", total unknown", *, label: str = "step "
) -> str:
    """Return ``step 120 of 4,000``, or ``step 120, total unknown``; empty before the first."""
    if figures.step is None:
        return ""
    total = figures.total_steps
    return f"{label}{figures.step:,}" + (open_end if total is None else f" of {total:,}")


def format_epoch(figures: Figures, *, label: str = "epoch ") -> str:
    """Return ``epoch 3/10``, ``epoch 3``, or an empty string."""
    if figures.epoch is None:
        return ""
    return f"{label}{figures.epoch:,}" + (f"/{figures.epochs:,}" if figures.epochs else "")


def format_metric(name: str, value: float) -> str:
    return f"{cut_to_columns(sanitize_text(name), _LONGEST_METRIC)} {format_value(value)}"


def format_metrics(metrics: Mapping[str, float], most: int = _MOST_METRICS, gap: str = ", ") -> str:
    """Return ``loss 0.31, accuracy 0.9``: the first `most` metrics."""
    return gap.join(starmap(format_metric, list(metrics.items())[:most]))


def describe_results(snapshot: RunSnapshot) -> tuple[tuple[str, str], ...]:
    """Return how far the training is or came, its metrics and its speed, as facts."""
    figures, lead = figures_of(snapshot), snapshot.leader
    if lead is None:
        return ()
    progress = [format_epoch(figures), format_step(figures, open_end="")]
    speed = []
    if figures.mean_rate is not None:
        speed.append(f"{format_large_rate(figures.mean_rate)} {figures.unit}/s on average")
    if lead.first_step_s is not None:
        speed.append(f"first step after {format_duration(lead.first_step_s)}")
    evaluators = [task.metrics for task in snapshot.tasks if task.task.startswith("evaluator")]
    return (
        ("progress", ", ".join(filter(None, progress))),
        ("metrics", format_metrics(figures.metrics)),
        ("evaluator", ", ".join(map(format_metrics, evaluators))),
        ("speed", ", ".join(speed)),
        ("step", _describe_step(snapshot)),
        ("verdict", _describe_verdict(snapshot)),
        ("try", (snapshot.step_verdict or {}).get("fix", "")),
    )


def _describe_verdict(snapshot: RunSnapshot) -> str:
    verdict = snapshot.step_verdict or {}
    message, since = verdict.get("message"), verdict.get("since")
    if not message or since is None:
        return message or ""
    return f"{message}, since {time.strftime('%H:%M:%S', time.localtime(since))}"


def _describe_step(snapshot: RunSnapshot) -> str:
    """Return ``83 ms: input 63%, compute 20%, transfer 15%``: the parts of the slowest task.

    That is the one that waits least for the others. Parts below a hundredth are left out.
    """
    known = [task for task in snapshot.tasks if sum(task.step_parts.values()) > 0]
    if not known:
        return ""
    slowest = min(known, key=lambda task: task.step_parts.get("waiting", 0.0))
    seconds = sum(slowest.step_parts.values())
    shares = ((part / seconds, name) for name, part in slowest.step_parts.items())
    shown = [f"{name} {share:.0%}" for share, name in sorted(shares, reverse=True) if share >= 0.01]
    where = f" in {slowest.task}" if len(known) > 1 else ""
    return f"{format_ms(seconds)}{where}: {', '.join(shown)}"


def draw_trend(samples: Sequence[float], columns: int) -> str:
    """Return the newest samples as a sparkline, between the lowest and the highest of them."""
    shown = list(samples)[-columns:] if columns > 0 else []
    if len(shown) < 2:
        return ""
    low, high = min(shown), max(shown)
    if high - low < 0.02 * max(abs(high), 1e-12):  # noise must not look like a change
        return _BARS[3] * len(shown)
    scale = (len(_BARS) - 1) / (high - low)
    return "".join(_BARS[round((value - low) * scale)] for value in shown)


class Trend:
    """The speed of a run over the last minute."""

    def __init__(self) -> None:
        self.samples: deque[float] = deque(maxlen=SAMPLES)
        self._sampled_at = 0.0
        self._step: int | None = None

    def note(self, figures: Figures, now: float) -> None:
        """Remember the speed, unless it is that of the step that was noted last."""
        if figures.step is None or (self._step or 0) > figures.step:
            self.samples.clear()  # another attempt
        is_due = now - self._sampled_at >= SAMPLE_S and figures.step != self._step
        if not is_due or figures.rate is None or not isfinite(figures.rate):
            return
        self._step, self._sampled_at = figures.step, now
        self.samples.append(figures.rate)
