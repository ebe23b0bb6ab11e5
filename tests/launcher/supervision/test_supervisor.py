"""What becomes of a run: histories of inputs with their times, replayed without a clock."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import COLLATERAL, Story, story

from tfcluster.plan.plan import Supervision
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.attempt_state import AGENT_SLACK_S, FAILURE_GRACE_S
from tfcluster.supervision.deadlines import STACKS_S
from tfcluster.supervision.decisions import Stop
from tfcluster.supervision.supervisor import EVALUATOR_S, Supervisor
from tfcluster.supervision.verdicts import CAUSE_WAIT_S, FROZEN_S


def test_a_killed_worker_restarts_the_gang_from_the_newest_step() -> None:
    told = story().after(5).exits("worker:1", killed=signal.SIGKILL)
    assert told.stopped() == ["worker:0"]
    assert told.orders[0].grace_s == FAILURE_GRACE_S  # type: ignore[union-attr]
    assert not any(isinstance(event, ev.Restarting) for event in told.events)

    told.ended("worker:0").home(1200)

    again = told.supervisor.again
    assert again is not None
    assert (again.number, again.delay_s, len(again.members)) == (2, 1.0, 2)
    restarting = told.last(ev.Restarting)
    assert (restarting.attempt, restarting.of, restarting.from_step) == (2, 4, 1200)
    assert "worker:1" in restarting.reason
    assert "SIGKILL" in restarting.reason
    assert told.cause()["task"] == "worker:1"
    told.begin(2)
    told.exits("worker:0").exits("worker:1")
    assert told.outcome() == (Status.SUCCEEDED, 0)


def test_the_budget_ends_and_the_pause_doubles() -> None:
    told = story(max_restarts=2)
    pauses = []
    for number in (2, 3):
        told.exits("worker:1", killed=signal.SIGKILL).ended("worker:0").home()
        assert told.supervisor.again is not None
        pauses.append(told.supervisor.again.delay_s)
        told.begin(number)
    told.exits("worker:1", killed=signal.SIGKILL).ended("worker:0").home()
    assert pauses == [1.0, 2.0]
    assert told.outcome() == (Status.FAILED, 1)
    assert "max_restarts = 2 is used up" in told.cause()["not_restarted"]


def test_an_exception_is_not_restarted_without_a_newer_checkpoint() -> None:
    error = {"exception": "ValueError", "message": "bad", "file": "main.py", "line": 3}
    told = story().exits("worker:1", 1, error=error).ended("worker:0").home()
    assert told.outcome() == (Status.FAILED, 1)
    assert told.supervisor.again is None

    told = story()
    told.supervisor.gathered(10, told.now)
    told.exits("worker:1", 1, error=error).ended("worker:0").home(10)
    assert told.supervisor.again is not None


def test_a_restart_from_a_checkpoint_whose_step_is_not_known_names_the_checkpoint() -> None:
    told = story().exits("worker:1", killed=signal.SIGKILL).ended("worker:0").home(name="ckpt-2")
    restarting = told.last(ev.Restarting)
    assert (restarting.from_step, restarting.from_checkpoint) == (None, "ckpt-2")
    told.begin(2).exits("worker:1", killed=signal.SIGKILL).ended("worker:0").home(40, name="c")
    restarting = told.last(ev.Restarting)
    assert (restarting.from_step, restarting.from_checkpoint) == (40, None)


@pytest.mark.parametrize(("after", "again"), [("ckpt-2", False), ("ckpt-3", True)])
def test_in_shared_storage_another_checkpoint_is_a_newer_one(after: str, again: bool) -> None:
    told = story().exits("worker:1", killed=signal.SIGKILL).ended("worker:0").home(name="ckpt-2")
    told.begin(2).exits("worker:1", 3).ended("worker:0").home(name=after)
    assert (told.supervisor.again is not None) is again


def test_collateral_waits_for_its_cause_and_then_blames_who_lives() -> None:
    told = story().exits("worker:0", 1, last=COLLATERAL)
    assert told.stopped() == []
    told.after(CAUSE_WAIT_S + 0.1)
    assert told.stopped() == ["worker:1"]
    told.exits("worker:1", killed=signal.SIGKILL, by="tfcluster").home()
    assert (told.cause()["task"], told.cause()["kind"]) == ("worker:1", "late")
    assert told.last(ev.Diagnosis).collateral == ("worker:0",)


def test_a_frozen_task_is_killed_after_what_its_peers_bear() -> None:
    told = story().after(5)
    told.supervisor.froze("worker:1", 1, signal.SIGSTOP, told.now)
    told.after(FROZEN_S - 0.1)
    assert told.stopped() == []
    told.after(0.2)
    assert told.stopped() == ["worker:1", "worker:0"]
    assert told.orders[0].grace_s == 0.0  # type: ignore[union-attr]
    told.exits("worker:1", killed=signal.SIGKILL, by="tfcluster").ended("worker:0").home()
    assert told.cause()["kind"] == "frozen"
    assert "SIGSTOP" in told.cause()["reason"]
    assert told.supervisor.again is not None


def test_a_task_that_goes_on_in_time_is_left_alone() -> None:
    told = story()
    told.supervisor.froze("worker:1", 1, signal.SIGSTOP, told.now)
    told.after(FROZEN_S - 1)
    told.supervisor.thawed("worker:1", 1)
    told.after(60)
    assert told.stopped() == []


def test_who_is_frozen_is_the_cause_as_soon_as_the_others_have_died_of_it() -> None:
    told = story()
    told.supervisor.froze("worker:1", 1, signal.SIGSTOP, told.now)
    told.after(3).exits("worker:0", 1, last=COLLATERAL)
    assert told.stopped() == ["worker:1"]


def test_the_start_deadline_names_who_is_missing() -> None:
    told = story(start_deadline_s=300)
    told.after(1000)  # a download: nobody waits yet
    told.says("worker:0", "waiting_for_peers").after(299)
    assert told.orders == []
    told.after(1.1)
    assert [type(order) for order in told.orders] == [do.DumpStacks]
    told.after(STACKS_S)
    assert sorted(told.stopped()) == ["worker:0", "worker:1"]
    told.ended("worker:0", "worker:1")
    assert told.outcome() == (Status.TIMED_OUT, 4)
    assert told.supervisor.outcome is not None
    text = str(told.supervisor.outcome.error)
    assert "worker:1 has not joined, 1300 s after its start" in text
    assert "last of worker:1" in text
    assert told.cause()["task"] == "worker:1"


def test_once_all_have_joined_there_is_no_start_deadline() -> None:
    told = story(start_deadline_s=10)
    for task in ("worker:0", "worker:1"):
        told.says(task, "waiting_for_peers").after(3).says(task, "ready")
    told.after(500)
    assert told.orders == []


def test_a_stall_leads_to_stacks_and_a_restart_and_at_last_to_a_deadline_error() -> None:
    told = story(stall_deadline_s=60, max_restarts=1)
    told.after(500).says("worker:0", "progress", step=7).says("worker:1", "progress", step=6)
    told.after(61)
    assert told.last(ev.Stalled).deadline_s == 60
    assert isinstance(told.orders[0], do.DumpStacks)
    told.after(STACKS_S).ended("worker:0", "worker:1").home(None)
    assert told.supervisor.again is not None
    assert (told.cause()["task"], told.cause()["kind"]) == ("worker:1", "stalled")
    told.begin(2)
    told.says("worker:0", "progress", step=7).after(62).ended("worker:0", "worker:1").home()
    assert told.outcome() == (Status.TIMED_OUT, 4)


def test_a_stall_is_the_fault_of_a_task_that_is_stopped() -> None:
    told = story(stall_deadline_s=5).says("worker:0", "progress", step=7)
    told.supervisor.froze("worker:1", 1, signal.SIGSTOP, told.now)
    told.after(5 + STACKS_S).ended("worker:0", "worker:1").home(None)
    assert (told.cause()["task"], told.cause()["kind"]) == ("worker:1", "frozen")


def test_without_a_stall_deadline_silence_is_told_once_and_nothing_ends() -> None:
    told = story().says("worker:0", "progress", step=1).after(3000)
    assert [type(event) for event in told.events].count(ev.Stalled) == 1
    assert [type(order) for order in told.orders] == [do.DumpStacks]


def test_lines_and_evaluation_and_long_executions_are_signs_of_life() -> None:
    told = story(stall_deadline_s=60).says("worker:0", "progress", step=1).after(50)
    told.heard_at = told.now
    told.after(50).says("worker:0", "alive").after(50)
    assert told.orders == []

    told = story(stall_deadline_s=10)
    told.says("worker:0", "ready").after(30)
    told.says("worker:0", "progress", step=100, steps_per_execution=100).after(30)
    told.says("worker:0", "progress", step=200, steps_per_execution=100).after(80)
    assert told.orders == []


def test_the_run_deadline_stops_as_a_user_would() -> None:
    told = story(run_deadline_s=100).says("worker:0", "saves_on_sigterm").after(100)
    graces = {o.tasks: o.grace_s for o in told.orders if isinstance(o, do.StopTasks)}
    assert graces == {("worker:0",): 30.0, ("worker:1",): 2.0}
    told.ended("worker:0", "worker:1")
    assert told.outcome() == (Status.TIMED_OUT, 4)


def test_a_stop_is_never_followed_by_a_restart() -> None:
    told = story()
    told.supervisor.stop(Stop("Ctrl-C", 130), told.now)
    told._take()
    told.exits("worker:0", 42, by="tfcluster").exits("worker:1", 42, by="tfcluster")
    assert told.outcome() == (Status.INTERRUPTED, 130)
    assert told.supervisor.again is None


def test_a_stop_in_the_pause_before_a_restart_ends_at_once() -> None:
    told = story().exits("worker:1", killed=signal.SIGKILL).ended("worker:0").home()
    told.supervisor.stop(Stop("Ctrl-C", 130), told.now)
    assert told.outcome() == (Status.INTERRUPTED, 130)
    assert told.supervisor.again is None


def test_a_second_stop_kills() -> None:
    told = story().says("worker:0", "saves_on_sigterm")
    told.supervisor.stop(Stop("Ctrl-C", 130), told.now)
    told.supervisor.stop(Stop("Ctrl-C", 130), told.now)
    told._take()
    assert [o.grace_s for o in told.orders if isinstance(o, do.StopTasks)] == [30.0, 2.0, 0.0]


def test_preemption_costs_nothing_but_is_not_endless() -> None:
    told = story(max_restarts=0)
    for number in (2, 3, 4):
        told.exits("worker:0", 42).exits("worker:1", 42).home()
        assert told.supervisor.again is not None, number
        told.begin(number)
    told.exits("worker:0", 42).exits("worker:1", 42).home()
    assert told.outcome() == (Status.FAILED, 1)
    assert "3 times in a row" in told.cause()["not_restarted"]


def test_who_still_saves_while_the_others_leave_preempted_is_let_save() -> None:
    told = story(grace_s=30)
    for task in ("worker:0", "worker:1"):
        told.says(task, "saves_on_sigterm")
    told.exits("worker:1", 42).after(20)
    assert told.stopped() == []
    told.exits("worker:0", 42).home(9)
    assert told.supervisor.again is not None

    told = story(grace_s=30)
    told.says("worker:0", "saves_on_sigterm").exits("worker:1", 42).after(31)
    assert told.stopped() == ["worker:0"]


def test_a_stolen_port_is_restarted_at_once_with_fresh_ports() -> None:
    told = story().exits("worker:1", 1, last="UnknownError: Could not start gRPC server")
    told.ended("worker:0").home()
    again = told.supervisor.again
    assert again is not None
    assert (again.fresh_ports, again.delay_s) == (True, 0.0)


def test_a_lost_node_is_restarted_and_without_restarts_ends_with_3() -> None:
    told = story()
    told.supervisor.node_lost("local", "its agent went away", told.now)
    told._take()
    told.home(5)
    assert told.supervisor.again is not None

    told = story(max_restarts=0)
    told.supervisor.node_lost("local", "its agent went away", told.now)
    told._take()
    told.home()
    assert told.outcome() == (Status.FAILED, 3)


def test_an_agent_that_does_not_answer_is_dropped() -> None:
    told = story().exits("worker:1", killed=signal.SIGKILL)
    told.after(FAILURE_GRACE_S + AGENT_SLACK_S + 0.1)
    assert do.DropNode("local") in told.orders
    assert told.last(ev.NodeLost).node == "local"
    assert do.GatherCheckpoints() in told.orders


def test_an_evaluator_restarts_alone_and_its_end_is_not_the_run_s() -> None:
    told = story("worker:0", "worker:1", "evaluator:0")
    told.exits("evaluator:0", killed=signal.SIGSEGV)
    assert told.last(ev.Restarting).task == "evaluator:0"
    told.after(1.1)
    assert do.StartAlone(told.plan.tasks[2].id, 2) in told.orders
    told.supervisor.started("evaluator:0", 2, told.now)
    assert told.supervisor.again is None
    told.exits("evaluator:0", 0).exits("worker:0").exits("worker:1")
    assert told.outcome() == (Status.SUCCEEDED, 0)


def test_an_evaluator_stays_when_the_gang_restarts() -> None:
    told = story("worker:0", "worker:1", "evaluator:0")
    told.exits("worker:1", killed=signal.SIGKILL)
    assert told.stopped() == ["worker:0"]
    told.ended("worker:0").home(3)
    told.begin(2)
    attempts = {str(member.id): member.attempt for member in told.supervisor.gang}
    assert attempts == {"worker:0": 2, "worker:1": 2, "evaluator:0": 1}


def test_an_evaluator_that_has_seen_the_last_checkpoint_is_ended() -> None:
    told = story("worker:0", "worker:1", "evaluator:0")
    told.supervisor.gathered(300, told.now)
    told.exits("worker:0").exits("worker:1")
    assert told.stopped() == []
    told.says("evaluator:0", "evaluated", step=200)
    assert told.stopped() == []
    told.says("evaluator:0", "evaluated", step=300)
    assert told.stopped() == [], "it may leave by itself"
    told.after(EVALUATOR_S)
    assert told.stopped() == ["evaluator:0"]
    told.ended("evaluator:0")
    assert told.outcome() == (Status.SUCCEEDED, 0)


def test_a_tuner_restarts_alone_and_a_chief_without_tuners_is_ended() -> None:
    told = story("chief:0", "worker:0", "worker:1", kind="tuner", max_restarts=1)
    told.exits("worker:0", killed=signal.SIGKILL).after(1.1)
    assert told.last(ev.Restarting).task == "worker:0"
    told.supervisor.started("worker:0", 2, told.now)
    told.exits("worker:0", killed=signal.SIGKILL).exits("worker:1", 1)
    told.after(5)
    assert told.stopped() == ["chief:0"]
    told.ended("chief:0")
    assert told.outcome() == (Status.FAILED, 1)


def test_a_search_in_which_every_trial_failed_is_a_failure() -> None:
    told = story("chief:0", "worker:0", kind="tuner")
    told.says("chief:0", "verdict", ok=False, reason="every trial failed")
    told.exits("worker:0").exits("chief:0").home()
    assert told.outcome() == (Status.FAILED, 1)
    assert "every trial failed" in told.cause()["reason"]


def test_late_errors_after_the_chief_s_success_are_no_failure() -> None:
    told = story().exits("worker:0", 0).after(10).exits("worker:1", 1, last=COLLATERAL)
    assert told.outcome() == (Status.SUCCEEDED, 0)


GONE = {
    "exception": "tensorflow.python.framework.errors_impl.UnavailableError",
    "message": "Collective ops is aborted by: Task /job:worker/replica:0/task:1 heartbeat timeout.",
    "file": "/job/train.py",
    "line": 27,
}


def test_a_chief_that_saves_alone_after_all_have_left_is_told_so_and_not_started_again() -> None:
    """TensorFlow 2.15's `model.save` under `if index == 0:`; it blames the peer's heartbeat."""
    told = story("worker:0", "worker:1", "worker:2").exits("worker:1").exits("worker:2")
    told.after(8).exits("worker:0", 1, error=GONE).home()
    assert told.outcome() == (Status.FAILED, 1)
    cause = told.cause()
    assert (cause["task"], cause["kind"], cause["line"]) == ("worker:0", "permanent", 27)
    assert cause["reason"] == (
        "worker:0 did alone what all workers must do (train.py:27): worker:1, worker:2 had ended"
        " before"
    )
    assert cause["docs"] == "docs/failures.md#chief-alone"


def test_a_chief_whose_peer_is_still_there_blames_it_as_before() -> None:
    told = story("worker:0", "worker:1", "worker:2").exits("worker:1")
    told.exits("worker:0", 1, error=GONE)
    assert told.stopped() == [], "worker:2 may have failed first"
    told.exits("worker:2", killed=signal.SIGKILL).home()
    assert (told.cause()["task"], told.cause()["kind"]) == ("worker:2", "signal")


def test_a_gang_may_shrink_when_a_task_s_budget_is_used_up() -> None:
    told = story("worker:0", "worker:1", "worker:2", max_restarts=0, min_workers=2)
    told.exits("worker:0", killed=signal.SIGKILL).ended("worker:1", "worker:2").home(40)
    again = told.supervisor.again
    assert again is not None
    assert [str(task) for task in again.members] == ["worker:1", "worker:2"]
    assert told.last(ev.Restarting).members == ("worker:1", "worker:2")
    told.begin(2)
    assert str(told.supervisor.chief) == "worker:1"
    told.exits("worker:1", killed=signal.SIGKILL).ended("worker:2").home(50)
    assert told.outcome() == (Status.FAILED, 1)


def test_a_node_that_does_not_come_back_leaves_a_smaller_gang_or_ends_the_run() -> None:
    plan = plan_of("worker:0", "worker:1", "worker:2")
    spread = tuple(
        replace(task, node="far" if task.id.index == 0 else "local") for task in plan.tasks
    )
    for least, expected in ((2, ["worker:1", "worker:2"]), (3, None)):
        policy = Supervision(min_workers=least)
        told = Story(replace(plan, tasks=spread, supervision=policy))
        told.supervisor.node_lost("far", "no route", told.now)
        told._take()
        told.ended("worker:1", "worker:2").home(7)
        told.supervisor.gone("far", "no route to host", told.now)
        told._take()
        again = told.supervisor.again
        if expected is None:
            assert again is None
            assert told.outcome() == (Status.FAILED, 3)
        else:
            assert again is not None
            assert [str(task) for task in again.members] == expected
            told.begin(again.number)
            told.exits("worker:1").exits("worker:2")
            assert told.outcome() == (Status.SUCCEEDED, 0)


def test_a_task_whose_start_crosses_the_stop_is_stopped_too() -> None:
    """The order to start was on its way when Ctrl-C came: its task must not be forgotten."""
    told = Story.__new__(Story)
    told.plan, told.now, told.events, told.orders = plan_of(), 100.0, [], []
    told.supervisor = Supervisor(told.plan)
    told.supervisor.begin(1, tuple(task.id for task in told.plan.tasks))
    told.supervisor.started("worker:0", 1, 100.0)
    told.supervisor.stop(Stop("Ctrl-C", 130), 100.0)
    told.supervisor.started("worker:1", 1, 100.1)
    told._take()
    assert told.stopped() == ["worker:0", "worker:1"]


@pytest.mark.parametrize("attempt", [1, 3])
def test_words_of_another_attempt_are_not_heard(attempt: int) -> None:
    told = story().exits("worker:1", killed=signal.SIGKILL).ended("worker:0").home()
    told.begin(2)
    stale = ev.TaskExited(task="worker:0", attempt=attempt, exit_code=1)
    told.supervisor.exited(stale, told.now)
    told.supervisor.reported("worker:0", attempt, {"type": "progress", "step": 5}, told.now)
    assert told.supervisor.again is None
    assert told.supervisor.orders.take() == []
