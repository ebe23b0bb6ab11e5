"""The numbers of a training as a whole, from its tasks: step, epoch, totals, metrics, rate, ETA.

The functions are pure; `Trend` is what a view remembers between two looks at a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.ui.formats import cut_to_columns, format_count, format_duration, format_value
from tfcluster.ui.lines import sanitize_text

SAMPLES: Final = 30
SAMPLE_S: Final = 2.0
"""Shortest time between two samples of a trend."""
_LONGEST_ETA_S: Final = 1e9
_BARS: Final = "▁▂▃▄▅▆▇█"
_LONGEST_METRIC: Final = 24
_MOST_METRICS: Final = 6


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers of a training; those that nobody reported are None or empty."""

    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    done: float | None = None
    """The part of the training that is done, 0 to 1, where a total is known."""
    eta_s: float | None = None
    metrics: Mapping[str, float] | None = None
    """Name → value, the loss first."""
    rate: float | None = None
    """The speed, in `unit` per second."""
    mean_rate: float | None = None
    """The speed of the present attempt since its first step."""
    unit: str = "steps"
    """``examples`` where a task knows them."""
    rss_bytes: int | None = None
    """The memory of all tasks together, and the `cores` that they use."""
    cores: float | None = None


def figures_of(snapshot: RunSnapshot) -> Figures:
    """Return the figures of a run: those of its leading task, and the sums of all tasks."""
    memory = [task.rss_bytes for task in snapshot.tasks if task.rss_bytes is not None]
    cores = [task.cores for task in snapshot.tasks if task.cores is not None]
    sums = (sum(memory) if memory else None, sum(cores) if cores else None)
    lead = snapshot.leader
    if lead is None:
        return Figures(rss_bytes=sums[0], cores=sums[1])
    done = _part_done(lead)
    examples = lead.examples_per_second
    return Figures(
        step=lead.step,
        total_steps=lead.total_steps,
        epoch=lead.epoch,
        epochs=lead.epochs,
        done=done,
        eta_s=_remaining_s(lead),
        metrics=loss_first(_metrics(snapshot.tasks, lead)),
        rate=lead.steps_per_second if examples is None else examples,
        mean_rate=_mean_rate(lead),
        unit="steps" if examples is None else "examples",
        rss_bytes=sums[0],
        cores=sums[1],
    )


def mean_examples_per_second(task: TaskSnapshot) -> float | None:
    """Return the speed of a task's present attempt since its first step."""
    mean, present = task.mean_steps_per_second, task.steps_per_second
    if mean is None or task.examples_per_second is None or not present:
        return None
    return task.examples_per_second * mean / present


def loss_first(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return `metrics` with the loss before the others, and validation metrics last."""
    return dict(sorted(metrics.items(), key=lambda item: (item[0] != "loss", _is_late(item[0]))))


def format_step(figures: Figures, open_end: str = ", total unknown") -> str:
    """Return ``step 120 of 4,000``, or ``step 120, total unknown``; empty before the first."""
    if figures.step is None:
        return ""
    total = figures.total_steps
    return f"step {figures.step:,}" + (open_end if total is None else f" of {total:,}")


def format_epoch(figures: Figures) -> str:
    """Return ``epoch 3/10``, ``epoch 3``, or an empty string."""
    if figures.epoch is None:
        return ""
    return f"epoch {figures.epoch:,}" + (f"/{figures.epochs:,}" if figures.epochs else "")


def format_metric(name: str, value: float) -> str:
    return f"{cut_to_columns(sanitize_text(name), _LONGEST_METRIC)} {format_value(value)}"


def describe_results(snapshot: RunSnapshot) -> tuple[tuple[str, str], ...]:
    """Return how far the training is or came, its metrics and its speed, as facts."""
    figures, lead = figures_of(snapshot), snapshot.leader
    if lead is None:
        return ()
    progress = [format_epoch(figures), format_step(figures, open_end="")]
    metrics = list((figures.metrics or {}).items())[:_MOST_METRICS]
    speed = []
    if figures.mean_rate is not None:
        speed.append(f"{format_count(figures.mean_rate)} {figures.unit}/s on average")
    if lead.first_step_s is not None:
        speed.append(f"first step after {format_duration(lead.first_step_s)}")
    evaluated = [task.metrics for task in snapshot.tasks if task.task.startswith("evaluator")]
    evaluation = [format_metric(*item) for metrics in evaluated for item in metrics.items()]
    return (
        ("progress", ", ".join(filter(None, progress))),
        ("metrics", ", ".join(format_metric(*item) for item in metrics)),
        ("evaluator", ", ".join(evaluation[:_MOST_METRICS])),
        ("speed", ", ".join(speed)),
    )


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


def _mean_rate(task: TaskSnapshot) -> float | None:
    if task.examples_per_second is None:
        return task.mean_steps_per_second
    return mean_examples_per_second(task)


def _remaining_s(task: TaskSnapshot) -> float | None:
    total = task.total_steps
    speed = task.mean_steps_per_second or task.steps_per_second
    if not total or not speed or task.step is None or task.step == total:
        return None
    left_s = max((total - task.step) / speed, 0.0)
    return left_s if left_s < _LONGEST_ETA_S else None


def _part_done(task: TaskSnapshot) -> float | None:
    if task.total_steps and task.step is not None:
        return min(max(task.step / task.total_steps, 0.0), 1.0)
    if task.epochs and task.epoch is not None:
        return min(max(task.epoch - 1, 0) / task.epochs, 1.0)
    return None


def _metrics(tasks: Sequence[TaskSnapshot], lead: TaskSnapshot) -> Mapping[str, float]:
    others = (task.metrics for task in tasks if not task.task.startswith(("ps:", "evaluator:")))
    return lead.metrics or next(filter(None, others), {})


def _is_late(name: str) -> bool:
    return name.startswith(("val_", "lr", "learning_rate"))
