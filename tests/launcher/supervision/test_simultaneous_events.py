"""What crosses what: a start and an end, a lone restart and one of the gang, two deadlines."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import COLLATERAL, Story, story

from tfcluster.plan.plan import NodePlan, Plan, Supervision, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.attempt_state import AGENT_SLACK_S, FAILURE_GRACE_S
from tfcluster.supervision.deadlines import STACKS_S
from tfcluster.supervision.decisions import Stop
from tfcluster.supervision.supervisor import EVALUATOR_S, START_ANSWER_S
from tfcluster.supervision.verdicts import FROZEN_S

EVALUATED = ("worker:0", "worker:1", "evaluator:0")
SEARCH = ("chief:0", "worker:0", "worker:1")


def spread(plan: Plan, *far: str) -> Plan:
    """With these tasks on a node of their own."""
    tasks = tuple(replace(t, node="far" if str(t.id) in far else t.node) for t in plan.tasks)
    return replace(plan, tasks=tasks, nodes=(*plan.nodes, NodePlan("far", "ssh", None, "/job")))


def begun_without_starts(plan: Plan) -> Story:
    """All are to start, but no agent has been told yet."""
    told = Story.__new__(Story)
    told.plan, told.now, told.heard_at, told.events, told.orders = plan, 100.0, 0.0, [], []
    told.supervisor = told.make_supervisor()
    told.supervisor.begin_run(100.0)
    told.supervisor.begin(1, tuple(task.id for task in plan.tasks))
    return told


# -- evaluators and restarts of the gang


def test_an_evaluator_that_fails_while_the_gang_is_ended_starts_with_it_again() -> None:
    told = story(*EVALUATED).exits("worker:1", killed=signal.SIGKILL)
    told.exits("evaluator:0", killed=signal.SIGSEGV).ended("worker:0").home(3).begin(2)
    assert [m.attempt for m in told.supervisor.gang] == [2, 2, 2]


def test_an_evaluator_that_was_due_when_the_gang_failed_starts_with_it() -> None:
    told = story(*EVALUATED).exits("evaluator:0", killed=signal.SIGSEGV)
    told.exits("worker:1", killed=signal.SIGKILL).after(5).ended("worker:0").home(3).begin(2)
    assert [m.attempt for m in told.supervisor.gang] == [2, 2, 2]
    told.exits("worker:0").exits("worker:1").exits("evaluator:0")
    assert told.outcome() == (Status.SUCCEEDED, 0)


def test_an_evaluator_whose_start_crosses_the_end_of_the_gang_stays() -> None:
    told = story(*EVALUATED).exits("evaluator:0", killed=signal.SIGSEGV).after(1.1)
    told.supervisor.order([TaskId("evaluator", 0)], 2, told.now)
    told.exits("worker:1", killed=signal.SIGKILL)
    told.supervisor.started("evaluator:0", 2, told.now)
    told._take()
    assert told.stopped() == ["worker:0"]
    told.ended("worker:0").home(3).begin(3)
    assert [m.attempt for m in told.supervisor.gang] == [3, 3, 2]


def test_a_frozen_evaluator_is_not_the_cause_of_the_gang_s_failure() -> None:
    told = story(*EVALUATED)
    told.supervisor.froze("evaluator:0", 1, signal.SIGSTOP, told.now)
    told.exits("worker:1", 1, last=COLLATERAL)
    assert told.stopped() == []


def test_an_evaluator_is_not_ended_before_it_has_seen_what_the_chief_said_it_saved() -> None:
    told = story(*EVALUATED)
    told.supervisor.gathered(200, told.now)
    told.says("evaluator:0", "evaluated", step=200)
    told.says("worker:0", "saved", path="ckpt-300", step=300)
    told.exits("worker:0").exits("worker:1")
    assert told.stopped() == []
    told.says("evaluator:0", "evaluated", step=300)
    assert told.stopped() == [], "it may leave by itself"
    told.after(EVALUATOR_S)
    assert told.stopped() == ["evaluator:0"]


def test_with_only_an_evaluator_left_there_is_no_stall() -> None:
    told = story(*EVALUATED, stall_deadline_s=5, finish_grace_s=60)
    told.says("worker:0", "progress", step=1).exits("worker:0").exits("worker:1").after(59)
    assert told.orders == []
    told.exits("evaluator:0")
    assert told.outcome() == (Status.SUCCEEDED, 0)


# -- a chief and its lone hands


def test_a_chief_that_fails_is_not_waited_on_for_hands_that_never_end() -> None:
    told = story(*SEARCH, kind="tuner").exits("chief:0", 1, last=COLLATERAL)
    assert told.stopped() == ["worker:0", "worker:1"]
    told.ended("worker:0", "worker:1").home()
    assert told.cause()["task"] == "chief:0"


def test_a_chief_that_finishes_ends_the_run_although_a_hand_was_due_again() -> None:
    told = story("chief:0", "worker:0", kind="tuner").exits("worker:0", killed=signal.SIGKILL)
    told.exits("chief:0")
    assert told.outcome() == (Status.SUCCEEDED, 0)


def test_who_failed_is_to_blame_and_not_the_chief_that_was_left_alone() -> None:
    told = story(*SEARCH, kind="tuner").exits("worker:0", 3).exits("worker:1", 3).after(61)
    assert told.stopped() == ["chief:0"]
    told.ended("chief:0")
    assert told.outcome() == (Status.FAILED, 1)
    assert told.cause()["task"] == "worker:0"


def test_a_failure_that_was_cured_is_not_the_cause_of_a_later_end() -> None:
    plan = spread(plan_of(*SEARCH, kind="tuner"), "worker:1")
    told = Story(plan).exits("worker:0", killed=signal.SIGSEGV).after(1.1)
    told.supervisor.started("worker:0", 2, told.now)
    told.supervisor.node_lost("far", "no route", told.now)
    told._take()
    told.ended("chief:0", "worker:0").home()
    assert (told.cause()["task"], told.cause()["kind"]) == ("worker:1", "node_lost")


def test_who_starts_alone_late_in_a_run_waits_anew_and_the_dead_wait_no_more() -> None:
    told = story(*SEARCH, kind="tuner", start_deadline_s=300)
    told.says("worker:0", "waiting_for_peers").says("worker:0", "ready").after(1000)
    told.says("worker:1", "waiting_for_peers").exits("worker:1", 3).after(1000)
    told.exits("worker:0", killed=signal.SIGKILL).after(1.1)
    told.supervisor.started("worker:0", 2, told.now)
    told.says("worker:0", "waiting_for_peers").after(299)
    assert told.stopped() == []
    told.after(2 + STACKS_S)
    assert told.stopped() == ["chief:0", "worker:0"]


# -- starts and ends


def test_what_is_not_told_to_start_yet_is_not_started_when_its_attempt_has_ended() -> None:
    told = begun_without_starts(plan_of())
    everybody = [task.id for task in told.plan.tasks]
    told.supervisor.node_lost("local", "killed", told.now)
    assert told.supervisor.order(everybody, 1, told.now) == []


def test_a_gang_has_not_ended_while_the_answer_to_a_start_is_awaited() -> None:
    told = begun_without_starts(plan_of())
    told.supervisor.order([task.id for task in told.plan.tasks], 1, told.now)
    told.supervisor.started("worker:0", 1, told.now)
    told.exits("worker:0", killed=signal.SIGKILL)
    assert do.GatherCheckpoints() not in told.orders
    told.supervisor.started("worker:1", 1, told.now)
    told._take()
    assert told.stopped() == ["worker:1"]
    told.exits("worker:1", killed=signal.SIGKILL, by="tfcluster")
    assert do.GatherCheckpoints() in told.orders


def test_an_agent_that_does_not_answer_to_a_start_is_dropped() -> None:
    told = begun_without_starts(plan_of())
    told.supervisor.order([task.id for task in told.plan.tasks], 1, told.now)
    told.after(START_ANSWER_S + 1)
    assert do.DropNode("local") in told.orders
    told.home()
    assert told.supervisor.again is not None


def test_a_task_that_starts_late_takes_no_grace_from_those_that_save() -> None:
    told = begun_without_starts(plan_of())
    told.supervisor.order([task.id for task in told.plan.tasks], 1, told.now)
    told.supervisor.started("worker:0", 1, told.now)
    told.says("worker:0", "saves_on_sigterm")
    told.supervisor.stop(Stop("Ctrl-C", 130), told.now)
    told.supervisor.started("worker:1", 1, told.now)
    told.exits("worker:1", killed=signal.SIGKILL, by="tfcluster").after(29 + AGENT_SLACK_S)
    assert do.DropNode("local") not in told.orders
    told.after(2)
    assert do.DropNode("local") in told.orders


def test_a_task_started_alone_that_cannot_be_leaves_the_others_alone() -> None:
    told = story(*EVALUATED).exits("evaluator:0", killed=signal.SIGSEGV).after(1.1)
    told.supervisor.order([TaskId("evaluator", 0)], 2, told.now)
    told.supervisor.start_failed("evaluator:0", 2, "no such file", told.now)
    told._take()
    assert told.stopped() == []
    assert "evaluator:0 is not started again" in told.last(ev.Warned).message


# -- deadlines and ends


def test_a_deadline_of_an_attempt_does_not_decide_how_the_next_ends() -> None:
    told = story(start_deadline_s=10, backoff_s=0.0)
    told.says("worker:0", "waiting_for_peers").after(10)
    told.supervisor.node_lost("local", "killed", told.now)
    told._take()
    told.home().begin(2)
    told.exits("worker:0").exits("worker:1")
    assert told.outcome() == (Status.SUCCEEDED, 0)


def test_who_is_stopped_after_the_chief_s_success_is_late_and_no_failure() -> None:
    told = story(finish_grace_s=60)
    told.says("worker:1", "waiting_for_peers").says("worker:1", "ready").exits("worker:0")
    told.supervisor.froze("worker:1", 1, signal.SIGSTOP, told.now)
    told.after(FROZEN_S + 1)
    assert told.stopped() == []
    told.after(60).ended("worker:1")
    assert told.outcome() == (Status.SUCCEEDED, 0)


# -- nodes that do not come back


def test_tasks_that_stand_alone_on_a_node_that_is_gone_end_the_run_with_3() -> None:
    plan = replace(plan_of(kind="plain"), supervision=Supervision(backoff_s=5.0))
    told = Story(plan)
    told.supervisor.node_lost("local", "killed", told.now)
    told._take()
    told.supervisor.gone("local", "cannot start", told.now)
    told.after(20)
    assert told.outcome() == (Status.FAILED, 3)
    assert not [order for order in told.orders if isinstance(order, do.StartAlone)]


@pytest.mark.parametrize("before_the_gang_fails", [True, False])
def test_a_gang_goes_on_without_an_evaluator_whose_node_is_gone(
    before_the_gang_fails: bool,
) -> None:
    told = Story(spread(plan_of(*EVALUATED), "evaluator:0"))
    told.supervisor.node_lost("far", "no route", told.now)
    if before_the_gang_fails:
        told.supervisor.gone("far", "no route", told.now)
    told.exits("worker:1", killed=signal.SIGKILL).ended("worker:0").home()
    if not before_the_gang_fails:
        told.supervisor.gone("far", "no route", told.now)
        told._take()
    again = told.supervisor.again
    assert again is not None
    assert [str(task) for task in again.members] == ["worker:0", "worker:1"]
    assert told.last(ev.Restarting).members == ("worker:0", "worker:1")


def test_a_smaller_gang_that_restarts_names_its_members() -> None:
    """Else views would wait for ever for those that are no members any more."""
    told = story("worker:0", "worker:1", "worker:2", max_restarts=0, min_workers=2)
    told.exits("worker:2", killed=signal.SIGKILL).ended("worker:0", "worker:1").home().begin(2)
    told.exits("worker:1", 42).ended("worker:0").home()
    assert told.last(ev.Restarting).members == ("worker:0", "worker:1")


def test_an_agent_is_dropped_only_for_tasks_that_it_should_have_ended() -> None:
    told = story().exits("worker:1", killed=signal.SIGKILL)
    told.after(FAILURE_GRACE_S + AGENT_SLACK_S - 0.1)
    assert do.DropNode("local") not in told.orders
