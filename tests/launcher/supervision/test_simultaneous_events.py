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
    replay = Story.__new__(Story)
    replay.plan, replay.now, replay.heard_at, replay.events, replay.orders = (
        plan,
        100.0,
        0.0,
        [],
        [],
    )
    replay.supervisor = replay.make_supervisor()
    replay.supervisor.begin_run(100.0)
    replay.supervisor.begin(1, tuple(task.id for task in plan.tasks))
    return replay


# -- evaluators and restarts of the gang


def test_an_evaluator_that_fails_while_the_gang_is_ended_starts_with_it_again() -> None:
    replay = story(*EVALUATED).exits("worker:1", killed=signal.SIGKILL)
    replay.exits("evaluator:0", killed=signal.SIGSEGV).ended("worker:0").home(3).begin(2)
    assert [m.attempt for m in replay.supervisor.gang] == [2, 2, 2]


def test_an_evaluator_that_was_due_when_the_gang_failed_starts_with_it() -> None:
    replay = story(*EVALUATED).exits("evaluator:0", killed=signal.SIGSEGV)
    replay.exits("worker:1", killed=signal.SIGKILL).after(5).ended("worker:0").home(3).begin(2)
    assert [m.attempt for m in replay.supervisor.gang] == [2, 2, 2]
    replay.exits("worker:0").exits("worker:1").exits("evaluator:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_an_evaluator_whose_start_crosses_the_end_of_the_gang_stays() -> None:
    replay = story(*EVALUATED).exits("evaluator:0", killed=signal.SIGSEGV).after(1.1)
    replay.supervisor.order([TaskId("evaluator", 0)], 2, replay.now)
    replay.exits("worker:1", killed=signal.SIGKILL)
    replay.supervisor.started("evaluator:0", 2, replay.now)
    replay._take()
    assert replay.stopped() == ["worker:0"]
    replay.ended("worker:0").home(3).begin(3)
    assert [m.attempt for m in replay.supervisor.gang] == [3, 3, 2]


def test_a_frozen_evaluator_is_not_the_cause_of_the_gang_s_failure() -> None:
    replay = story(*EVALUATED)
    replay.supervisor.froze("evaluator:0", 1, signal.SIGSTOP, replay.now)
    replay.exits("worker:1", 1, last=COLLATERAL)
    assert replay.stopped() == []


def test_an_evaluator_is_not_ended_before_it_has_seen_what_the_chief_said_it_saved() -> None:
    replay = story(*EVALUATED)
    replay.supervisor.gathered(200, replay.now)
    replay.says("evaluator:0", "evaluated", step=200)
    replay.says("worker:0", "saved", path="ckpt-300", step=300)
    replay.exits("worker:0").exits("worker:1")
    assert replay.stopped() == []
    replay.says("evaluator:0", "evaluated", step=300)
    assert replay.stopped() == [], "it may leave by itself"
    replay.after(EVALUATOR_S)
    assert replay.stopped() == ["evaluator:0"]


def test_with_only_an_evaluator_left_there_is_no_stall() -> None:
    replay = story(*EVALUATED, stall_deadline_s=5, finish_grace_s=60)
    replay.says("worker:0", "progress", step=1).exits("worker:0").exits("worker:1").after(59)
    assert replay.orders == []
    replay.exits("evaluator:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


# -- a chief and its lone hands


def test_a_chief_that_fails_is_not_waited_on_for_hands_that_never_end() -> None:
    replay = story(*SEARCH, kind="tuner").exits("chief:0", 1, last=COLLATERAL)
    assert replay.stopped() == ["worker:0", "worker:1"]
    replay.ended("worker:0", "worker:1").home()
    assert replay.cause()["task"] == "chief:0"


def test_a_chief_that_finishes_ends_the_run_although_a_hand_was_due_again() -> None:
    replay = story("chief:0", "worker:0", kind="tuner").exits("worker:0", killed=signal.SIGKILL)
    replay.exits("chief:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_who_failed_is_to_blame_and_not_the_chief_that_was_left_alone() -> None:
    replay = story(*SEARCH, kind="tuner").exits("worker:0", 3).exits("worker:1", 3).after(61)
    assert replay.stopped() == ["chief:0"]
    replay.ended("chief:0")
    assert replay.outcome() == (Status.FAILED, 1)
    assert replay.cause()["task"] == "worker:0"


def test_a_failure_that_was_cured_is_not_the_cause_of_a_later_end() -> None:
    plan = spread(plan_of(*SEARCH, kind="tuner"), "worker:1")
    replay = Story(plan).exits("worker:0", killed=signal.SIGSEGV).after(1.1)
    replay.supervisor.started("worker:0", 2, replay.now)
    replay.supervisor.node_lost("far", "no route", replay.now)
    replay._take()
    replay.ended("chief:0", "worker:0").home()
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:1", "node_lost")


def test_who_starts_alone_late_in_a_run_waits_anew_and_the_dead_wait_no_more() -> None:
    replay = story(*SEARCH, kind="tuner", start_deadline_s=300)
    replay.says("worker:0", "waiting_for_peers").says("worker:0", "ready").after(1000)
    replay.says("worker:1", "waiting_for_peers").exits("worker:1", 3).after(1000)
    replay.exits("worker:0", killed=signal.SIGKILL).after(1.1)
    replay.supervisor.started("worker:0", 2, replay.now)
    replay.says("worker:0", "waiting_for_peers").after(299)
    assert replay.stopped() == []
    replay.after(2 + STACKS_S)
    assert replay.stopped() == ["chief:0", "worker:0"]


# -- starts and ends


def test_what_is_not_told_to_start_yet_is_not_started_when_its_attempt_has_ended() -> None:
    replay = begun_without_starts(plan_of())
    everybody = [task.id for task in replay.plan.tasks]
    replay.supervisor.node_lost("local", "killed", replay.now)
    assert replay.supervisor.order(everybody, 1, replay.now) == []


def test_a_gang_has_not_ended_while_the_answer_to_a_start_is_awaited() -> None:
    replay = begun_without_starts(plan_of())
    replay.supervisor.order([task.id for task in replay.plan.tasks], 1, replay.now)
    replay.supervisor.started("worker:0", 1, replay.now)
    replay.exits("worker:0", killed=signal.SIGKILL)
    assert do.GatherCheckpoints() not in replay.orders
    replay.supervisor.started("worker:1", 1, replay.now)
    replay._take()
    assert replay.stopped() == ["worker:1"]
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster")
    assert do.GatherCheckpoints() in replay.orders


def test_an_agent_that_does_not_answer_to_a_start_is_dropped() -> None:
    replay = begun_without_starts(plan_of())
    replay.supervisor.order([task.id for task in replay.plan.tasks], 1, replay.now)
    replay.after(START_ANSWER_S + 1)
    assert do.DropNode("local") in replay.orders
    replay.home()
    assert replay.supervisor.next_attempt is not None


def test_a_task_that_starts_late_takes_no_grace_from_those_that_save() -> None:
    replay = begun_without_starts(plan_of())
    replay.supervisor.order([task.id for task in replay.plan.tasks], 1, replay.now)
    replay.supervisor.started("worker:0", 1, replay.now)
    replay.says("worker:0", "saves_on_sigterm")
    replay.supervisor.stop(Stop("Ctrl-C", 130), replay.now)
    replay.supervisor.started("worker:1", 1, replay.now)
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster").after(29 + AGENT_SLACK_S)
    assert do.DropNode("local") not in replay.orders
    replay.after(2)
    assert do.DropNode("local") in replay.orders


def test_a_task_started_alone_that_cannot_be_leaves_the_others_alone() -> None:
    replay = story(*EVALUATED).exits("evaluator:0", killed=signal.SIGSEGV).after(1.1)
    replay.supervisor.order([TaskId("evaluator", 0)], 2, replay.now)
    replay.supervisor.start_failed("evaluator:0", 2, "no such file", replay.now)
    replay._take()
    assert replay.stopped() == []
    assert "evaluator:0 is not restarted" in replay.last(ev.Warned).message


# -- deadlines and ends


def test_a_deadline_of_an_attempt_does_not_decide_how_the_next_ends() -> None:
    replay = story(start_deadline_s=10, backoff_s=0.0)
    replay.says("worker:0", "waiting_for_peers").after(10)
    replay.supervisor.node_lost("local", "killed", replay.now)
    replay._take()
    replay.home().begin(2)
    replay.exits("worker:0").exits("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_who_is_stopped_after_the_chief_s_success_is_late_and_no_failure() -> None:
    replay = story(finish_grace_s=60)
    replay.says("worker:1", "waiting_for_peers").says("worker:1", "ready").exits("worker:0")
    replay.supervisor.froze("worker:1", 1, signal.SIGSTOP, replay.now)
    replay.after(FROZEN_S + 1)
    assert replay.stopped() == []
    replay.after(60).ended("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


# -- nodes that do not come back


def test_tasks_that_stand_alone_on_a_node_that_is_gone_end_the_run_with_3() -> None:
    plan = replace(plan_of(kind="plain"), supervision=Supervision(backoff_s=5.0))
    replay = Story(plan)
    replay.supervisor.node_lost("local", "killed", replay.now)
    replay._take()
    replay.supervisor.node_gone("local", "cannot start", replay.now)
    replay.after(20)
    assert replay.outcome() == (Status.FAILED, 3)
    assert not [order for order in replay.orders if isinstance(order, do.StartAlone)]


@pytest.mark.parametrize("before_the_gang_fails", [True, False])
def test_a_gang_goes_on_without_an_evaluator_whose_node_is_gone(
    before_the_gang_fails: bool,
) -> None:
    replay = Story(spread(plan_of(*EVALUATED), "evaluator:0"))
    replay.supervisor.node_lost("far", "no route", replay.now)
    if before_the_gang_fails:
        replay.supervisor.node_gone("far", "no route", replay.now)
    replay.exits("worker:1", killed=signal.SIGKILL).ended("worker:0").home()
    if not before_the_gang_fails:
        replay.supervisor.node_gone("far", "no route", replay.now)
        replay._take()
    next_attempt = replay.supervisor.next_attempt
    assert next_attempt is not None
    assert [str(task) for task in next_attempt.members] == ["worker:0", "worker:1"]
    assert replay.last(ev.Restarting).members == ("worker:0", "worker:1")


def test_a_smaller_gang_that_restarts_names_its_members() -> None:
    """Else views would wait for ever for those that are no members any more."""
    replay = story("worker:0", "worker:1", "worker:2", max_restarts=0, min_workers=2)
    replay.exits("worker:2", killed=signal.SIGKILL).ended("worker:0", "worker:1").home().begin(2)
    replay.exits("worker:1", 42).ended("worker:0").home()
    assert replay.last(ev.Restarting).members == ("worker:0", "worker:1")


def test_an_agent_is_dropped_only_for_tasks_that_it_should_have_ended() -> None:
    replay = story().exits("worker:1", killed=signal.SIGKILL)
    replay.after(FAILURE_GRACE_S + AGENT_SLACK_S - 0.1)
    assert do.DropNode("local") not in replay.orders
