"""The numbers of a training as a whole, from its tasks: step, totals, metrics, speed, time left.

All views show these, and ``state.json`` has them as `figures`, so that they agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from tfcluster.rundir.snapshot import (
    SERVERS,
    RunSnapshot,
    TaskSnapshot,
    Training,
    to_json_numbers,
)
from tfcluster.rundir.states import Status

_LONGEST_ETA_S: Final = 1e9
_STANDS_STILL: Final = (Status.STALLED, Status.SUSPENDED)
SPEEDS: Final = (
    *("steps_per_second", "examples_per_second"),
    *("mean_steps_per_second", "mean_examples_per_second"),
)
"""The fields of a task, and of its progress, with its speed."""


@dataclass(slots=True, kw_only=True)
class Figures(Training):
    """The numbers of a run: those of its leading task, with the memory and cores of all tasks.

    It has a present speed while it moves: not while it is stalled, nor after its end.
    """

    task: str | None = None
    """The task whose numbers these are (`RunSnapshot.leader`)."""
    done: float | None = None
    """The part of the training that is done, 0 to 1, where a total is known."""
    eta_s: float | None = None
    """The time until it is over, at its mean speed; None while it is stalled."""

    @property
    def unit(self) -> str:
        """``examples`` where a task knows them, else ``steps``."""
        known = self.examples_per_second, self.mean_examples_per_second
        return "steps" if known == (None, None) else "examples"

    @property
    def rate(self) -> float | None:
        """The present speed, in `unit` per second."""
        return self.steps_per_second if self.unit == "steps" else self.examples_per_second

    @property
    def mean_rate(self) -> float | None:
        """The mean speed, in `unit` per second."""
        is_steps = self.unit == "steps"
        return self.mean_steps_per_second if is_steps else self.mean_examples_per_second

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"metrics": to_json_numbers(self.metrics)}


def moves(snapshot: RunSnapshot) -> bool:
    """Return whether a run has a present speed: not while it is stalled, nor after its end."""
    return not (snapshot.status.is_final or snapshot.status in _STANDS_STILL)


def figures_of(snapshot: RunSnapshot) -> Figures:
    """Return the figures of a run: those of its leading task, and the sums of all tasks."""
    memory = [task.rss_bytes for task in snapshot.tasks if task.rss_bytes is not None]
    cores = [task.cores for task in snapshot.tasks if task.cores is not None]
    rss_bytes, used = sum(memory) if memory else None, sum(cores) if cores else None
    lead = snapshot.leader
    if lead is None:
        return Figures(rss_bytes=rss_bytes, cores=used)
    of_lead = {field.name: getattr(lead, field.name) for field in fields(Training)}
    figures = Figures(**of_lead, task=lead.task, done=_part_done(lead))
    trainers = (task for task in snapshot.tasks if not task.task.startswith(SERVERS))
    metrics = lead.metrics or next(filter(None, (task.metrics for task in trainers)), {})
    figures.metrics = loss_first(metrics)
    figures.rss_bytes, figures.cores = rss_bytes, used
    if moves(snapshot):
        figures.eta_s = _remaining_s(lead)
    else:
        figures.steps_per_second = figures.examples_per_second = None
    if snapshot.status in _STANDS_STILL:
        figures.mean_steps_per_second = figures.mean_examples_per_second = None
    return figures


def state_json(snapshot: RunSnapshot) -> dict[str, Any]:
    """Return a run's state for JSON, with its figures; write it at once (see `to_json`)."""
    return snapshot.to_json() | {"figures": figures_of(snapshot).to_json()}


def share_speed(snapshot: RunSnapshot, task: TaskSnapshot) -> None:
    """Give tasks that take their steps together the speed of the leading one.

    To be called after a report of `task`.
    """
    lead = snapshot.leader
    if lead is None or not (snapshot.is_synchronous and lead.has_joined):
        return
    for other in snapshot.tasks if task is lead else (task,):
        is_known = other.step is None or other.mean_steps_per_second is not None
        if other is not lead and other.has_joined and not (other.ended_at is not None and is_known):
            for name in SPEEDS:
                setattr(other, name, getattr(lead, name))


def follows(snapshot: RunSnapshot, task: str) -> bool:
    """Return whether a task takes its steps together with another one, the leading task."""
    lead = snapshot.leader
    if lead is None or lead.task == task or not snapshot.is_synchronous:
        return False
    return lead.has_joined and snapshot.task(task).has_joined


def loss_first(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return `metrics` with the loss before the others, and those of epochs' ends last."""
    order = sorted(metrics.items(), key=lambda item: (item[0] != "loss", is_of_epoch_end(item[0])))
    return dict(order)


def is_of_epoch_end(metric: str) -> bool:
    """Return whether a metric is reported at the end of an epoch only."""
    return metric.startswith(("val_", "lr", "learning_rate"))


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
