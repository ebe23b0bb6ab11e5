"""A KerasTuner search as the supervisor sees it: who restarts, who is waited for, how it ends."""

from __future__ import annotations

import signal

from tests.launcher.supervision.story import Story, story

from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Status
from tfcluster.supervision.verdicts import LAST_WORD_S

SEARCH = ("chief:0", "worker:0", "worker:1")
PREEMPTED = 42


def search(*tasks: str, **supervision: float) -> Story:
    return story(*(tasks or SEARCH), kind="tuner", **supervision)


def restarted(told: Story, task: str) -> Story:
    """`task` has been started again, after its pause."""
    told.after(120)
    attempt = told.last(ev.Restarting).attempt
    told.supervisor.started(task, attempt, told.now)
    return told


def ends_a_trial(told: Story, task: str, name: str = "0") -> Story:
    told.says("chief:0", "trial", id=name, status="COMPLETED")
    return told.says(task, "trial_ended", id=name)


# -- the end


def test_when_the_tuners_have_left_their_chief_may_go_on_for_as_long_as_it_likes() -> None:
    told = search(finish_grace_s=60).says("chief:0", "search_ended")
    told.exits("worker:0").exits("worker:1").after(3600)
    assert told.stopped() == [], "it trains the best trial once more"
    told.exits("chief:0")
    assert told.outcome() == (Status.SUCCEEDED, 0)


def test_a_chief_that_still_searches_without_any_tuner_gets_the_grace_time_and_no_more() -> None:
    told = search(finish_grace_s=60).exits("worker:0").exits("worker:1").after(59)
    assert told.stopped() == []
    told.after(2)
    assert told.stopped() == ["chief:0"]


def test_a_chief_whose_tuners_have_all_failed_for_good_has_a_last_word_and_no_more() -> None:
    told = search(finish_grace_s=60, max_restarts=0).exits("worker:0", 1).after(30)
    assert told.stopped() == [], "the other one goes on"
    told.exits("worker:1", 1).after(LAST_WORD_S - 1)
    assert told.stopped() == [], "it may say that all trials failed"
    told.after(2)
    assert told.stopped() == ["chief:0"]
    told.ended("chief:0")
    assert told.outcome() == (Status.FAILED, 1)
    assert told.cause()["task"] == "worker:0"


def test_a_tuner_that_is_due_again_is_hope_enough() -> None:
    told = search("chief:0", "worker:0", backoff_s=50).exits("worker:0", killed=signal.SIGKILL)
    assert told.after(20).stopped() == []
    assert told.last(ev.Restarting).task == "worker:0"


def test_one_tuner_that_left_well_gives_the_chief_its_grace_time() -> None:
    told = search(finish_grace_s=60, max_restarts=0).exits("worker:0").exits("worker:1", 1)
    assert told.after(59).stopped() == [], "it may be about to end its search"


def test_a_search_that_ends_within_the_grace_time_is_out_of_danger() -> None:
    told = search(finish_grace_s=60).exits("worker:0").exits("worker:1").after(30)
    told.says("chief:0", "search_ended").after(600)
    assert told.stopped() == []


def test_a_tuner_that_came_too_late_is_ended_with_the_chief() -> None:
    told = search(start_deadline_s=300).says("worker:0", "waiting_for_peers")
    told.says("worker:0", "ready").says("worker:1", "waiting_for_peers")
    told.says("chief:0", "search_ended").exits("worker:0").after(3600)
    assert told.stopped() == [], "it waits in vain, and disturbs nobody"
    told.exits("chief:0")
    assert told.stopped() == ["worker:1"]
    told.ended("worker:1")
    assert told.outcome() == (Status.SUCCEEDED, 0)


def test_a_tuner_that_is_still_at_work_has_time_to_leave() -> None:
    told = search(finish_grace_s=60).says("worker:1", "waiting_for_peers").says("worker:1", "ready")
    told.exits("worker:0").exits("chief:0").after(59)
    assert told.stopped() == []
    told.exits("worker:1")
    assert told.outcome() == (Status.SUCCEEDED, 0)


def test_what_a_failed_search_says_of_itself_is_the_cause_whatever_comes_of_it() -> None:
    told = search("chief:0", "worker:0").exits("worker:0")
    told.says("chief:0", "verdict", ok=False, reason="all 3 trials of the search failed")
    told.exits("chief:0", 1, error={"exception": "IndexError", "message": "no best trial"}).home()
    assert told.outcome() == (Status.FAILED, 1)
    assert "all 3 trials" in told.cause()["reason"]


# -- restarts


def test_a_tuner_killed_in_mid_trial_comes_back_and_nobody_else_is_disturbed() -> None:
    told = search().exits("worker:1", killed=signal.SIGKILL).after(2)
    assert told.last(ev.Restarting).task == "worker:1"
    assert told.stopped() == []


def test_a_tuner_that_is_preempted_again_and_again_without_a_trial_is_given_up() -> None:
    told = search()
    for _ in range(3):
        told.says("worker:0", "progress", step=500).exits("worker:0", PREEMPTED)
        restarted(told, "worker:0")
    told.says("worker:0", "progress", step=900).exits("worker:0", PREEMPTED)
    assert "without progress" in told.last(ev.Warned).message


def test_a_preempted_tuner_that_ends_trials_between_is_started_for_ever() -> None:
    told = search()
    for number in range(10):
        ends_a_trial(told, "worker:0", str(number)).exits("worker:0", PREEMPTED)
        restarted(told, "worker:0")
    assert told.last(ev.Restarting).attempt == 11


def test_a_chief_that_is_preempted_between_trials_starts_again_with_all_its_tuners() -> None:
    told = search()
    for number in range(5):
        ends_a_trial(told, "worker:0", str(number)).exits("chief:0", PREEMPTED)
        told.ended("worker:0", "worker:1").home()
        assert told.supervisor.again is not None
        told.begin(number + 2)


def test_a_chief_that_is_preempted_without_any_trial_is_given_up() -> None:
    told = search()
    for number in range(4):
        assert told.supervisor.outcome is None
        told.says("worker:0", "progress", step=500 + number).exits("chief:0", PREEMPTED)
        told.ended("worker:0", "worker:1").home()
        told.begin(number + 2) if told.supervisor.again else None
    assert told.outcome() == (Status.FAILED, 1)
