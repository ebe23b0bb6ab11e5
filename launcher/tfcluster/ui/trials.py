"""The table of a search's trials, best first: a pure function of the run's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfcluster.run.snapshot import RunSnapshot
from tfcluster.run.trials import is_done
from tfcluster.ui.formats import format_duration, plural
from tfcluster.ui.render import Facts, Grid, Part

_MOST_LISTED = 12
_LONGEST_REASON = 60


def parts(snapshot: RunSnapshot, *, now: float | None = None) -> list[Part]:
    """Best trial and table; nothing for a run that searches nothing. `now`: while it runs."""
    if not snapshot.trials:
        return []
    ranked = _ranked(snapshot.trials)
    shown = ranked[:_MOST_LISTED]
    found: list[Part] = [_grid(shown, now)]
    if more := len(ranked) - len(shown):
        found.append(f"and {plural(more, 'trial')} more: `tfcluster status --json`")
    return [*found, Facts((("best", _best(snapshot)),))]


def line(trial: Mapping[str, Any]) -> str | None:
    """A trial's end in one line of talk; None while it runs, and where nothing new is said."""
    status = str(trial.get("status"))
    if status == "COMPLETED" and trial.get("score") is not None:
        return f"trial {trial['id']} is done: {trial.get('objective')} {trial['score']:.5g}"
    if status in ("FAILED", "INVALID"):
        return f"trial {trial['id']} failed"
    return None


def describe_values(values: Mapping[str, Any]) -> str:
    """``learning_rate 0.001, units 64``; KerasTuner's own entries (``tuner/epochs``) left out."""
    own = {name: value for name, value in values.items() if not name.startswith("tuner/")}
    return ", ".join(f"{name} {_short(own[name])}" for name in sorted(own))


def _best(snapshot: RunSnapshot) -> str:
    trial = next((t for t in snapshot.trials if t["id"] == snapshot.best_trial), None)
    if trial is None:
        return "none: no trial was completed"
    values = describe_values(trial.get("values") or {})
    score = f"trial {trial['id']}, {trial.get('objective')} {trial['score']:.5g}"
    return f"{score}: {values}" if values else score


def _ranked(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those with a score from the best on, then the others as they came."""
    done = [trial for trial in trials if is_done(trial)]
    sign = -1 if done and done[0].get("direction") == "max" else 1
    done.sort(key=lambda trial: sign * float(trial["score"]))
    return done + [trial for trial in trials if not is_done(trial)]


def _grid(trials: list[dict[str, Any]], now: float | None) -> Grid:
    objective = next((str(t["objective"]) for t in trials if t.get("objective")), "score")
    rows = tuple(
        (
            str(trial["id"]),
            _state(trial, is_over=now is None),
            str(trial.get("tuner") or ""),
            "" if trial.get("score") is None else f"{trial['score']:.5g}",
            _ran(trial, now),
            _why(trial),
        )
        for trial in trials
    )
    headers = ("trial", "state", "tuner", objective, "ran", "why")
    return Grid(headers, rows, frozenset({objective, "ran"})).without_empty_columns()


def _state(trial: Mapping[str, Any], *, is_over: bool) -> str:
    status = str(trial.get("status", "")).lower()
    return "unfinished" if status == "running" and is_over else status


def _ran(trial: Mapping[str, Any], now: float | None) -> str:
    since, ended = trial.get("started_at"), trial.get("ended_at") or now
    return format_duration(ended - since) if since is not None and ended is not None else ""


def _why(trial: Mapping[str, Any]) -> str:
    lines = str(trial.get("message") or "").strip().splitlines()
    return lines[-1][:_LONGEST_REASON] if lines else ""


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
