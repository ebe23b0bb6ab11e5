"""Alerts: what a user must know of a run's result although its tasks go on, or have ended with 0.

All functions are pure: they return the event, or None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite, isnan
from typing import Final

from tfcluster.agent import catalogue as msg
from tfcluster.rundir import events as ev

_LOSS: Final = re.compile(r"(?:^|[_/ .-])loss(?:$|[_/ .-])|^(?:loss|cost)", re.IGNORECASE)
"""Names of losses: ``loss``, ``val_loss``, ``decoder/loss``, ``loss_1``; not ``closs``."""


class Alert(StrEnum):
    """The kinds of alerts; a run has at most one of each, the newest."""

    DIVERGED = "diverged"
    """A loss is not a number."""


@dataclass(slots=True)
class Losses:
    """The losses of one attempt that are not numbers."""

    since: dict[str, tuple[str, int, float]] = field(default_factory=dict)
    """Unit (a task, or a gang that trains together) → metric, step and value when it began."""
    _recovered: set[str] = field(default_factory=set)
    """Units whose loss was a number again: it may change with every step, which is said once."""

    def note(
        self, task: str, attempt: int, report: msg.Progress, *, together: bool
    ) -> ev.Alert | None:
        """Return the alert that a report gives: a loss has become NaN or infinite, or is back.

        `together`: the tasks of the gang train together, so one stands for all.
        """
        unit = "" if together else task
        if unit in self._recovered:
            return None
        before = self.since.get(unit)
        if before is None:
            bad = (item for item in report.metrics.items() if not isfinite(item[1]))
            found = next((item for item in bad if _LOSS.search(item[0])), None)
            if found is None:
                return None
            metric, value = found
            self.since[unit] = metric, report.step, value
            message = f"{metric} is {_name_of(value)} since step {report.step:,} ({task})"
        else:
            metric, step, value = before
            if not isfinite(report.metrics.get(metric, value)):
                return None
            self._recovered.add(unit)
            del self.since[unit]
            until = f"from step {step:,} to {report.step:,}"
            message = f"{metric} was {_name_of(value)} {until} ({task})"
        return ev.Alert(
            kind=str(Alert.DIVERGED), message=message, task=task, attempt=attempt, step=report.step
        )


def _name_of(value: float) -> str:
    return "NaN" if isnan(value) else "infinite" if value > 0 else "-infinite"
