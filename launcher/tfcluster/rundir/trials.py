"""What is known of a search: its trials, folded from what oracle and tuners tell of them (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfcluster.rundir.events import Trial

_ONGOING = "RUNNING"
_DONE = "COMPLETED"


def apply(trials: list[dict[str, Any]], event: Trial, now: float) -> None:
    """Enter one event. Nothing that is known of a trial is lost by an event without it.

    A trial that is handed out again (its tuner was killed, or it failed and is tried again) is
    the same trial, begun anew.
    """
    trial = next((known for known in trials if known["id"] == event.id), None)
    if trial is None:
        trial = {"id": event.id}
        trials.append(trial)
    facts = event.to_json()
    trial |= {name: facts[name] for name in facts.keys() - {"type", "task", "attempt"}}
    if event.status == _ONGOING:
        for name in ("score", "best_step", "message", "ended_at"):
            trial.pop(name, None)
        trial["started_at"] = now
    elif event.status is not None:
        trial["ended_at"] = now


def best(trials: Iterable[Mapping[str, Any]]) -> str | None:
    """The id of the best one, by KerasTuner's own rule (Oracle.get_best_trials): of those that
    were completed, and of equal ones the first."""
    done = [trial for trial in trials if is_done(trial)]
    if not done:
        return None
    sign = -1 if done[0].get("direction") == "max" else 1
    return str(min(done, key=lambda trial: sign * float(trial["score"]))["id"])


def is_done(trial: Mapping[str, Any]) -> bool:
    """Whether it was completed, and has a score."""
    return trial.get("status") == _DONE and isinstance(trial.get("score"), int | float)
