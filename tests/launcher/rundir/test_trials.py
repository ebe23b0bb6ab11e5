"""Reports about the trials of a search become records in the state of the run."""

from __future__ import annotations

from typing import Any

from tfcluster.agent.catalogue import TaskReport
from tfcluster.agent.message_fields import parse, replace
from tfcluster.agent.protocol import ProtocolError
from tfcluster.nodes.reports import event_of_task
from tfcluster.rundir.events import Trial
from tfcluster.rundir.fold import apply
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import to_line
from tfcluster.rundir.snapshot import RunSnapshot

FOUND = {"objective": "val_loss", "direction": "min"}


def trial(name: str, status: str | None, **facts: Any) -> Trial:
    return Trial(task="chief:0", attempt=1, id=name, status=status, **facts)


def replay(state: RunSnapshot, paths: RunPaths, *events: Trial) -> RunSnapshot:
    for second, event in enumerate(events):
        apply(state, event, 100.0 + second, paths)
    return state


def message(report: dict[str, Any], *, task: str = "chief:0") -> Any:
    try:
        found = parse(report, TaskReport)
    except ProtocolError:
        return None
    return found and event_of_task(replace(found, task=task, attempt=1))


# -- from reports to events


def test_the_oracle_s_report_becomes_an_event_with_the_tuner_s_task() -> None:
    values = {"units": 64, "rate": 1e-3}
    event = message({"type": "trial", "id": "3", "status": "RUNNING", "tuner": "worker-1", **FOUND,
                  "values": values, "score": None, "best_step": 0})  # fmt: skip
    assert (event.id, event.status, event.tuner) == ("3", "RUNNING", "worker:1")
    assert (event.values, event.score) == (values, None)
    assert b'"type":"trial"' in to_line(event, seq=1, time=0.0)
    alone = {"type": "trial", "id": "0", "status": "INVALID", "tuner": "tuner0"}
    event = message(alone | {"score": float("nan")}, task="worker:0")
    assert (event.tuner, event.score) == ("worker:0", None), "NaN is no score"
    assert message({"type": "trial", "status": "RUNNING"}) is None, "it has no id"


def test_a_tuner_s_report_is_recorded_if_it_has_a_message() -> None:
    assert message({"type": "trial_ended", "id": "0", "message": None}) is None
    event = message({"type": "trial_ended", "id": "0", "message": "ValueError: x"}, task="worker:0")
    assert (event.id, event.status, event.message) == ("0", None, "ValueError: x")


# -- from events to the state


def test_a_trial_is_recorded_from_its_start_to_its_score(
    state: RunSnapshot, paths: RunPaths
) -> None:
    started = trial("0", "RUNNING", tuner="worker:1", values={"units": 8}, **FOUND)
    replay(state, paths, started)
    assert state.trials == [
        {"id": "0", "status": "RUNNING", "tuner": "worker:1", "values": {"units": 8},
         "started_at": 100.0, **FOUND}
    ]  # fmt: skip
    assert state.best_trial is None
    replay(state, paths, trial("0", "COMPLETED", score=0.5, best_step=2))
    (known,) = state.trials
    assert (known["score"], known["tuner"], known["ended_at"]) == (0.5, "worker:1", 100.0)
    assert state.best_trial == "0"


def test_the_best_trial_follows_the_direction_of_the_objective(
    state: RunSnapshot, paths: RunPaths
) -> None:
    replay(state, paths, trial("4", "INVALID", score=0.1), trial("5", "RUNNING"))
    scores = {"0": 0.5, "1": 0.3, "2": 0.9, "3": 0.3}
    replay(state, paths, *(trial(n, "COMPLETED", score=s, **FOUND) for n, s in scores.items()))
    assert state.best_trial == "1"
    for known in state.trials:
        known["direction"] = "max"
    replay(state, paths, trial("6", "FAILED"))
    assert state.best_trial == "2"


def test_a_trial_that_restarts_replaces_its_earlier_record(
    state: RunSnapshot, paths: RunPaths
) -> None:
    failed = trial("0", "INVALID", message="ValueError: x", score=0.1)
    replay(state, paths, trial("0", "RUNNING", tuner="worker:0"), failed)
    replay(state, paths, trial("0", "RUNNING", tuner="worker:1"))
    assert state.trials == [
        {"id": "0", "status": "RUNNING", "tuner": "worker:1", "started_at": 100.0}
    ]


def test_the_reason_for_a_failed_trial_may_come_from_the_tuner(
    state: RunSnapshot, paths: RunPaths
) -> None:
    replay(state, paths, trial("0", "FAILED"), trial("0", None, message="ValueError: x"))
    (known,) = state.trials
    assert (known["status"], known["message"]) == ("FAILED", "ValueError: x")
