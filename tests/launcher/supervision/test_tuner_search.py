"""The supervisor restarts the tuners of a KerasTuner search, and decides when the search ends."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from tests.launcher.supervision.story import Replay, replay_of

from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision.verdicts import LAST_WORD_S

SEARCH = ("chief:0", "worker:0", "worker:1")
PREEMPTED = 42


def search(*tasks: str, **supervision: float) -> Replay:
    return replay_of(*(tasks or SEARCH), kind="tuner", **supervision)


def restarted(replay: Replay, task: str) -> Replay:
    """Let the delay pass, and report that `task` was restarted."""
    replay.after(120)
    attempt = replay.last(ev.Restarting).attempt
    replay.supervisor.started(task, attempt, replay.now)
    return replay


def ends_a_trial(replay: Replay, task: str, name: str = "0") -> Replay:
    replay.says("chief:0", "trial", id=name, status="COMPLETED")
    return replay.says(task, "trial_ended", id=name)


# -- the end of a search


def test_after_the_search_the_chief_may_run_on_without_tuners() -> None:
    replay = search(finish_grace_s=60).says("chief:0", "search_ended")
    replay.exits("worker:0").exits("worker:1").after(3600)
    assert replay.stopped() == [], "it trains the best trial once more"
    replay.exits("chief:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_a_chief_that_still_searches_without_tuners_is_stopped_after_the_grace() -> None:
    replay = search(finish_grace_s=60).exits("worker:0").exits("worker:1").after(59)
    assert replay.stopped() == []
    replay.after(2)
    assert replay.stopped() == ["chief:0"]


def test_a_chief_whose_tuners_all_failed_gets_seconds_to_report_why() -> None:
    replay = search(finish_grace_s=60, max_restarts=0).exits("worker:0", 1).after(30)
    assert replay.stopped() == [], "the other tuner still runs"
    replay.exits("worker:1", 1).after(LAST_WORD_S - 1)
    assert replay.stopped() == [], "it may say that all trials failed"
    replay.after(2)
    assert replay.stopped() == ["chief:0"]
    replay.ended("chief:0")
    assert replay.outcome() == (Status.FAILED, 1)
    assert replay.cause()["task"] == "worker:0"


def test_a_chief_is_not_stopped_while_a_tuner_is_about_to_restart() -> None:
    replay = search("chief:0", "worker:0", backoff_s=50).exits("worker:0", killed=signal.SIGKILL)
    assert replay.after(20).stopped() == []
    assert replay.last(ev.Restarting).task == "worker:0"


def test_one_tuner_that_succeeded_gives_the_chief_the_full_grace() -> None:
    replay = search(finish_grace_s=60, max_restarts=0).exits("worker:0").exits("worker:1", 1)
    assert replay.after(59).stopped() == [], "it may be about to end its search"


def test_a_search_that_ends_within_the_grace_succeeds() -> None:
    replay = search(finish_grace_s=60).exits("worker:0").exits("worker:1").after(30)
    replay.says("chief:0", "search_ended").after(600)
    assert replay.stopped() == []


def test_a_tuner_that_joins_too_late_is_stopped_with_the_chief() -> None:
    replay = search(start_deadline_s=300).says("worker:0", "waiting_for_peers")
    replay.says("worker:0", "task_ready").says("worker:1", "waiting_for_peers")
    replay.says("chief:0", "search_ended").exits("worker:0").after(3600)
    assert replay.stopped() == [], "it waits in vain, but does no harm"
    replay.exits("chief:0")
    assert replay.stopped() == ["worker:1"]
    replay.ended("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_a_tuner_that_still_works_has_time_to_end() -> None:
    replay = search(finish_grace_s=60).joined("worker:1")
    replay.exits("worker:0").exits("chief:0").after(59)
    assert replay.stopped() == []
    replay.exits("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


@pytest.mark.parametrize(
    ("code", "error"),
    [(0, None), (1, {"exception": "IndexError", "message": "no best trial"})],
)
def test_the_reason_for_a_failed_search_is_reported_as_the_cause(
    code: int, error: dict[str, Any] | None
) -> None:
    replay = search("chief:0", "worker:0").exits("worker:0")
    replay.says("chief:0", "verdict", ok=False, reason="all 3 trials of the search failed")
    replay.exits("chief:0", code, error=error).gather()
    assert replay.outcome() == (Status.FAILED, 1)
    assert "all 3 trials" in replay.cause()["reason"]


# -- restarts


def test_a_tuner_preempted_repeatedly_without_a_trial_is_given_up() -> None:
    replay = search()
    for _ in range(3):
        replay.says("worker:0", "progress", step=500).exits("worker:0", PREEMPTED)
        restarted(replay, "worker:0")
    replay.says("worker:0", "progress", step=900).exits("worker:0", PREEMPTED)
    assert "without progress" in replay.last(ev.Warned).message


def test_a_preempted_tuner_that_ends_trials_is_always_restarted() -> None:
    replay = search()
    for number in range(10):
        ends_a_trial(replay, "worker:0", str(number)).exits("worker:0", PREEMPTED)
        restarted(replay, "worker:0")
    assert replay.last(ev.Restarting).attempt == 11


def test_a_chief_preempted_between_trials_always_restarts_with_its_tuners() -> None:
    replay = search()
    for number in range(5):
        ends_a_trial(replay, "worker:0", str(number)).exits("chief:0", PREEMPTED)
        replay.ended("worker:0", "worker:1").gather()
        assert replay.supervisor.next_attempt is not None
        replay.begin(number + 2)


def test_a_chief_preempted_without_any_trial_is_given_up() -> None:
    replay = search()
    for number in range(4):
        assert replay.supervisor.outcome is None
        replay.says("worker:0", "progress", step=500 + number).exits("chief:0", PREEMPTED)
        replay.ended("worker:0", "worker:1").gather()
        replay.begin(number + 2) if replay.supervisor.next_attempt else None
    assert replay.outcome() == (Status.FAILED, 1)
