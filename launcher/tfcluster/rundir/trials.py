"""Folds the reports about the trials of a search into records, and finds the best one (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfcluster.rundir.events import Trial

_RUNNING = "RUNNING"
_COMPLETED = "COMPLETED"


def apply(trials: list[dict[str, Any]], event: Trial, now: float) -> None:
    """Fold `event` into `trials`; fields that it does not have keep their values.

    A trial that is handed out again, because its tuner was killed or because it failed and is
    tried again, is the same trial: it begins again.
    """
    trial = next((known for known in trials if known["id"] == event.id), None)
    if trial is None:
        trial = {"id": event.id}
        trials.append(trial)
    facts = event.to_json()
    trial |= {name: facts[name] for name in facts.keys() - {"type", "task", "attempt"}}
    if event.status == _RUNNING:
        for name in ("score", "best_step", "message", "ended_at"):
            trial.pop(name, None)
        trial["started_at"] = now
    elif event.status is not None:
        trial["ended_at"] = now


def best(trials: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the id of the best completed trial, or None; of equal ones the first.

    The rule is KerasTuner's (Oracle.get_best_trials).
    """
    done = [trial for trial in trials if is_done(trial)]
    if not done:
        return None
    sign = -1 if done[0].get("direction") == "max" else 1
    return str(min(done, key=lambda trial: sign * float(trial["score"]))["id"])


def is_done(trial: Mapping[str, Any]) -> bool:
    """Return whether `trial` was completed and has a score."""
    return trial.get("status") == _COMPLETED and isinstance(trial.get("score"), int | float)
