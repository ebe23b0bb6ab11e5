"""The supervisor handles events that coincide.

Examples: a start and an end, the restart of one task and of the gang, two deadlines.
"""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from tests.launcher.conftest import moved, plan_of
from tests.launcher.supervision.story import COLLATERAL, Replay, replay_of

from tfcluster.plans.plan import Supervision, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.endings import AGENT_SLACK_S, STACKS_S
from tfcluster.supervision.member import BOOT_GRACE_S
from tfcluster.supervision.supervisor import START_ANSWER_S
from tfcluster.supervision.verdicts import FROZEN_S

EVALUATED = ("worker:0", "worker:1", "evaluator:0")
SEARCH = ("chief:0", "worker:0", "worker:1")


def test_a_deadline_that_ends_the_run_silences_the_others_of_the_same_late_moment() -> None:
    """After a suspend, `finish_grace_s` stopped the tasks again, with a shorter grace."""
    plan = plan_of("worker:0", "worker:1", "worker:2")
    replay = Replay(replace(plan, supervision=Supervision(run_deadline_s=50, finish_grace_s=60)))
    replay.exits("worker:0")
    replay.now = 400
    replay.supervisor.tick(replay.now)
    replay._take()
    stopping = [event for event in replay.events if isinstance(event, ev.TaskStopping)]
    assert [event.task for event in stopping] == ["worker:1", "worker:2"]


# -- evaluators and restarts of the gang


def test_an_evaluator_that_fails_while_the_gang_is_stopped_restarts_with_it() -> None:
    replay = replay_of(*EVALUATED).exits("worker:1", killed=signal.SIGKILL)
    replay.exits("evaluator:0", killed=signal.SIGSEGV).ended("worker:0").gather(3).begin(2)
    assert [m.attempt for m in replay.supervisor.gang] == [2, 2, 2]


def test_an_evaluator_that_was_due_to_restart_when_the_gang_failed_restarts_with_it() -> None:
    replay = replay_of(*EVALUATED).exits("evaluator:0", killed=signal.SIGSEGV)
    replay.exits("worker:1", killed=signal.SIGKILL).after(5).ended("worker:0").gather(3).begin(2)
    assert [m.attempt for m in replay.supervisor.gang] == [2, 2, 2]
    replay.exits("worker:0").exits("worker:1").exits("evaluator:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_an_evaluator_that_starts_while_the_gang_is_stopped_keeps_running() -> None:
    replay = replay_of(*EVALUATED).exits("evaluator:0", killed=signal.SIGSEGV).after(1.1)
    replay.supervisor.order([TaskId("evaluator", 0)], 2, replay.now)
    replay.exits("worker:1", killed=signal.SIGKILL).started("evaluator:0", 2)
    assert replay.stopped() == ["worker:0"]
    replay.ended("worker:0").gather(3).begin(3)
    assert [m.attempt for m in replay.supervisor.gang] == [3, 3, 2]


def test_a_frozen_evaluator_is_not_the_cause_of_the_gang_s_failure() -> None:
    replay = replay_of(*EVALUATED).froze("evaluator:0")
    replay.exits("worker:1", 1, last=COLLATERAL)
    assert replay.stopped() == []


def test_no_stall_is_reported_when_only_an_evaluator_runs() -> None:
    replay = replay_of(*EVALUATED, stall_deadline_s=5, finish_grace_s=60)
    replay.says("worker:0", "progress", step=1).exits("worker:0").exits("worker:1").after(59)
    assert replay.orders == []
    replay.exits("evaluator:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


# -- a chief and workers that restart alone


def test_a_failed_chief_of_a_search_stops_its_workers_at_once() -> None:
    replay = replay_of(*SEARCH, kind="tuner").exits("chief:0", 1, last=COLLATERAL)
    assert replay.stopped() == ["worker:0", "worker:1"]
    replay.ended("worker:0", "worker:1").gather()
    assert replay.cause()["task"] == "chief:0"


def test_a_chief_that_finishes_cancels_a_pending_restart() -> None:
    replay = replay_of("chief:0", "worker:0", kind="tuner").exits("worker:0", killed=signal.SIGKILL)
    replay.exits("chief:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_a_failure_before_a_restart_is_not_the_cause_of_a_later_one() -> None:
    plan = moved(plan_of(*SEARCH, kind="tuner"), "worker:1")
    replay = Replay(plan).exits("worker:0", killed=signal.SIGSEGV).after(1.1)
    replay.started("worker:0", 2).loses("far", "no route")
    replay.ended("chief:0", "worker:0").gather()
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:1", "node_lost")


def test_the_start_deadline_counts_only_tasks_that_wait_now() -> None:
    replay = replay_of(*SEARCH, kind="tuner", start_deadline_s=300)
    replay.joined("worker:0").after(1000)
    replay.says("worker:1", "waiting_for_peers").exits("worker:1", 3).after(1000)
    replay.exits("worker:0", killed=signal.SIGKILL).after(1.1).started("worker:0", 2)
    replay.says("worker:0", "waiting_for_peers").after(299)
    assert replay.stopped() == []
    replay.after(2 + STACKS_S)
    assert replay.stopped() == ["chief:0", "worker:0"]


# -- starts and ends


def test_a_task_not_yet_ordered_to_start_is_not_started_after_its_attempt_ended() -> None:
    replay = Replay(plan_of(), starts=False)
    all_tasks = [task.id for task in replay.plan.tasks]
    replay.loses("local", "killed")
    assert replay.supervisor.order(all_tasks, 1, replay.now) == []


def test_a_gang_with_an_unanswered_order_to_start_has_not_ended() -> None:
    replay = Replay(plan_of(), starts=False).order()
    replay.started("worker:0", 1).exits("worker:0", killed=signal.SIGKILL)
    assert do.GatherCheckpoints() not in replay.orders
    replay.started("worker:1", 1)
    assert replay.stopped() == ["worker:1"]
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster")
    assert do.GatherCheckpoints() in replay.orders


def test_an_agent_that_does_not_answer_an_order_to_start_is_dropped() -> None:
    replay = Replay(plan_of(), starts=False).order()
    replay.after(START_ANSWER_S + 1)
    assert do.DropNode("local") in replay.orders
    replay.gather()
    assert replay.supervisor.next_attempt is not None


def test_a_task_that_starts_late_does_not_shorten_the_grace_of_a_saving_task() -> None:
    replay = Replay(plan_of(), starts=False).order()
    replay.started("worker:0", 1).says("worker:0", "saves_on_sigterm").stop()
    replay.started("worker:1", 1)
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster").after(29 + AGENT_SLACK_S)
    assert do.DropNode("local") not in replay.orders
    replay.after(2)
    assert do.DropNode("local") in replay.orders


@pytest.mark.parametrize(("times", "grace_s"), [(1, BOOT_GRACE_S), (2, 0.0)])
def test_a_task_whose_start_is_heard_of_after_ctrl_c_has_the_same_grace(
    times: int, grace_s: float
) -> None:
    """Its first line may be on the terminal before its agent has said that it runs."""
    replay = Replay(plan_of(), starts=False).order()
    replay.stop(times).started("worker:0", 1)
    (order,) = (one for one in replay.orders if isinstance(one, do.StopTasks))
    assert (order.tasks, order.grace_s) == (("worker:0",), grace_s)


def test_a_run_that_is_stopped_waits_for_the_answers_to_its_order_to_start() -> None:
    replay = Replay(plan_of(), starts=False).order()
    replay.stop().after(START_ANSWER_S - 1)
    assert do.DropNode("local") not in replay.orders
    replay.after(2)
    assert do.DropNode("local") in replay.orders
    replay.loses("local", "it does not answer")
    assert replay.outcome() == (Status.INTERRUPTED, 130)


def test_a_second_ctrl_c_does_not_wait_for_the_answers_to_an_order_to_start() -> None:
    replay = Replay(plan_of(), starts=False).order()
    assert replay.stop(2).outcome() == (Status.INTERRUPTED, 130)


def test_a_failed_restart_of_one_task_does_not_affect_the_others() -> None:
    replay = replay_of(*EVALUATED).exits("evaluator:0", killed=signal.SIGSEGV).after(1.1)
    replay.supervisor.order([TaskId("evaluator", 0)], 2, replay.now)
    replay.supervisor.start_failed("evaluator:0", 2, "no such file", replay.now)
    replay._take()
    assert replay.stopped() == []
    assert "evaluator:0 is not restarted" in replay.last(ev.Warned).message


# -- deadlines and ends


def test_a_missed_deadline_of_one_attempt_does_not_fail_the_next() -> None:
    replay = replay_of(start_deadline_s=10, backoff_s=0.0)
    replay.says("worker:0", "waiting_for_peers").after(10).loses("local", "killed")
    replay.gather().begin(2).exits("worker:0").exits("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_a_task_frozen_after_the_chief_has_succeeded_does_not_fail_the_run() -> None:
    replay = replay_of(finish_grace_s=60).joined("worker:1").exits("worker:0")
    replay.froze("worker:1").after(FROZEN_S + 1)
    assert replay.stopped() == []
    replay.after(60).ended("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_a_stopped_process_is_the_cause_where_the_start_deadline_passes_at_the_same_moment() -> (
    None
):
    replay = replay_of("worker:0", "worker:1", start_deadline_s=FROZEN_S)
    replay.says("worker:0", "waiting_for_peers").froze("worker:1")
    replay.after(FROZEN_S).ended("worker:0", "worker:1").gather()
    assert replay.cause()["kind"] == "frozen"
    assert replay.supervisor.next_attempt is not None
