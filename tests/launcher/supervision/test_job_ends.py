"""Runs whose scheduler ends their job, and starts it again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.launcher.supervision.story import Replay, replay_of

from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.decisions import Stop

TASKS = ("worker:0", "worker:1")
ANNOUNCED = Stop("SIGTERM from the scheduler", 143, is_announced=True)


def graces(replay: Replay) -> list[float]:
    return [order.grace_s for order in replay.orders if isinstance(order, do.StopTasks)]


def stop(replay: Replay, request: Stop) -> list[float]:
    replay.orders.clear()
    replay.supervisor.stop(request, replay.now)
    replay._take()
    return graces(replay)


def test_only_a_user_can_have_tasks_killed_that_save_before_the_job_ends() -> None:
    replay = replay_of(*TASKS, grace_s=30.0).says("worker:0", "saves_on_sigterm")
    assert max(stop(replay, ANNOUNCED)) == 30.0
    assert stop(replay, ANNOUNCED) == []
    assert max(stop(replay, Stop("Ctrl-C", 130))) == 0.0


@pytest.mark.parametrize(
    ("end", "by"),
    [
        ({"code": 42}, "tfcluster"),
        ({"code": 143}, "tfcluster"),
        ({"killed": 15}, "tfcluster"),
        ({"code": 1}, "itself"),
        ({"killed": 9}, "itself"),
    ],
)
def test_a_task_that_obeys_the_scheduler_was_stopped(end: dict[str, int], by: str) -> None:
    replay = replay_of(*TASKS)
    killed = end.get("killed")
    code = end.get("code")
    event = ev.TaskExited(task="worker:1", attempt=1, exit_code=code, signal=killed)
    assert replay.supervisor.gang.attributed(event, None).ended_by == "itself"
    stop(replay, ANNOUNCED)
    assert replay.supervisor.gang.attributed(event, None).ended_by == by


def lose_node(replay: Replay, **facts: Any) -> Replay:
    """Lose the node of worker:1 for good."""
    for name, value in facts.items():
        setattr(replay.supervisor, name, value)
    node = replay.supervisor.gang["worker:1"].node
    replay.supervisor.node_lost(node, "its agent went away", replay.now)
    replay._take()
    for task in ("worker:0", "worker:2"):
        if replay.supervisor.gang.get(task) and not replay.supervisor.gang[task].is_over:
            replay.ended(task)
    replay.gather(20)
    replay.supervisor.node_gone(node, "it is down", replay.now)
    replay._take()
    return replay


def test_a_lost_node_is_replaced_by_a_requeue_that_counts() -> None:
    replay = lose_node(replay_of(*TASKS), can_come_back=True)
    outcome = replay.supervisor.outcome
    assert outcome is not None
    assert "another node in the place of" in outcome.comes_back
    (restart,) = [event for event in replay.events if isinstance(event, ev.Restarting)]
    assert (restart.attempt, restart.counts) == (2, None)


def test_without_a_way_back_a_lost_node_ends_the_run() -> None:
    replay = lose_node(replay_of(*TASKS))
    assert replay.outcome()[0] is Status.FAILED


def test_the_next_start_of_a_job_counts_the_restarts_and_the_time_of_the_former() -> None:
    restarts: list[dict[str, Any]] = [
        {"attempt": 2, "of": 3},
        {"attempt": 4, "of": 4, "counts": False},
        {"attempt": 5, "of": 4},
        {"attempt": 2, "of": 3, "task": "evaluator:0"},
    ]
    replay = replay_of(*TASKS, max_restarts=2, run_deadline_s=100.0)
    replay.supervisor.begin_run(replay.now, ran_s=90.0, restarts=restarts)
    history = replay.supervisor.restarts.history(None)
    assert (history.spent, history.free) == (2, 1)
    replay.exits("worker:1", killed=9).ended("worker:0").gather(5)
    assert replay.outcome()[0] is Status.FAILED
    assert replay.cause()["not_restarted"] == "supervision.max_restarts = 2 is used up"

    late = replay_of(*TASKS, run_deadline_s=100.0)
    late.supervisor.begin_run(late.now, ran_s=90.0)
    late.after(11).ended(*TASKS)
    assert late.outcome()[0] is Status.TIMED_OUT
