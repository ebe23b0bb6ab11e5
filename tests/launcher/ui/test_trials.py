"""The summary and `status` show a search's trials in a table, best first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.ui import panels
from tfcluster.ui.event_lines import format_event
from tfcluster.ui.render import part_lines

LOSS = {"objective": "val_loss", "direction": "min"}
DONE = {"status": "COMPLETED", "started_at": 100.0, "ended_at": 130.0, **LOSS}


@dataclass
class Searched:
    trials: list[dict[str, Any]]
    best_trial: str | None = None
    ended_at: float | None = None
    more: dict[str, Any] = field(default_factory=dict)


def shown(*found: dict[str, Any], best: str | None = None, now: float | None = None) -> list[str]:
    snapshot = cast(RunSnapshot, Searched(list(found), best))
    return [
        line for part in panels.trial_table(snapshot, now=now) for line in part_lines(part, 100)
    ]


def test_trials_are_listed_best_first_and_the_best_with_its_hyperparameters() -> None:
    values = {"units": 64, "rate": 0.00123456, "tuner/epochs": 3}
    lines = shown(
        {"id": "0", "tuner": "worker:0", "score": 0.51, **DONE},
        {"id": "1", "tuner": "worker:1", "status": "RUNNING", "started_at": 120.0, **LOSS},
        {"id": "2", "tuner": "worker:0", "score": 0.312345678, "values": values, **DONE},
        best="2",
        now=140.0,
    )
    assert lines == [
        "trial  state      tuner     val_loss   ran",
        "2      completed  worker:0   0.31235  30 s",
        "0      completed  worker:0      0.51  30 s",
        "1      running    worker:1            20 s",
        "best  trial 2, val_loss 0.31235: rate 0.001235, units 64",
    ]


def test_a_trial_cut_short_by_the_end_of_the_run_is_unfinished() -> None:
    lines = shown({"id": "0", "status": "RUNNING", "started_at": 120.0})
    assert lines[1].split() == ["0", "unfinished"]


def test_a_higher_score_is_better_if_the_objective_is_maximized() -> None:
    high = {"objective": "val_accuracy", "direction": "max"}
    lines = shown(
        {"id": "0", "score": 0.5, **DONE, **high}, {"id": "1", "score": 0.9, **DONE, **high}
    )
    assert [line.split()[0] for line in lines[1:3]] == ["1", "0"]


def test_a_failed_trial_shows_the_last_line_of_its_message() -> None:
    message = "Traceback …\n  File x\nValueError: no such layer\n"
    lines = shown({"id": "0", "status": "FAILED", "message": message})
    assert lines[1].endswith("ValueError: no such layer")
    assert lines[-1] == "best  none: no trial has completed"


def test_only_the_best_of_many_trials_are_listed() -> None:
    lines = shown(*({"id": str(n), "score": float(n), **DONE} for n in range(40)), best="0")
    assert len(lines) == 1 + 12 + 2
    assert "and 28 more trials: `tfcluster status --json`" in lines


def test_a_trial_s_end_is_shown_during_the_run() -> None:
    event = {"type": "trial", "task": "chief:0", "id": "2", "score": 0.25, **DONE}
    line = format_event(event)
    assert line is not None
    assert line.text == "trial 2 is done: val_loss 0.25"
    assert format_event(event | {"status": "RUNNING"}) is None
    failed = format_event({"type": "trial", "id": "2", "status": "FAILED"})
    assert failed is not None
    assert failed.text == "trial 2 failed"
