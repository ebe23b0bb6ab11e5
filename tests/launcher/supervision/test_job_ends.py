"""Runs whose scheduler ends their job, and starts it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of, spread
from tests.launcher.supervision.story import Replay, replay_of

from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.plans.plan import NodePlan, Supervision
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.decisions import StopRequest
from tfcluster.supervision.supervisor import Supervisor

TASKS = ("worker:0", "worker:1")
ANNOUNCED = StopRequest("SIGTERM from the scheduler", 143, is_announced=True)


def graces(replay: Replay) -> list[float]:
    return [order.grace_s for order in replay.orders if isinstance(order, do.StopTasks)]


def stop(replay: Replay, request: StopRequest) -> list[float]:
    replay.orders.clear()
    replay.supervisor.stop(request, replay.now)
    replay._take()
    return graces(replay)


def test_only_a_user_can_have_tasks_killed_that_save_before_the_job_ends() -> None:
    replay = replay_of(*TASKS, grace_s=30.0).says("worker:0", "saves_on_sigterm")
    assert max(stop(replay, ANNOUNCED)) == 30.0
    assert stop(replay, ANNOUNCED) == []
    assert max(stop(replay, StopRequest("Ctrl-C", 130))) == 0.0


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
    assert replay.supervisor.gang.correct_ended_by(event, None).ended_by == "itself"
    stop(replay, ANNOUNCED)
    assert replay.supervisor.gang.correct_ended_by(event, None).ended_by == by


def lose_node(replay: Replay, **facts: Any) -> Replay:
    """Lose the node of worker:1 for good."""
    for name, value in facts.items():
        setattr(replay.supervisor.restarting, name, value)
    node = replay.supervisor.gang["worker:1"].node
    replay.loses(node, "its agent went away")
    for task in ("worker:0", "worker:2"):
        if replay.supervisor.gang.get(task) and not replay.supervisor.gang[task].is_over:
            replay.ended(task)
    replay.gather(20).gone(node, "it is down")
    return replay


def test_a_lost_node_is_replaced_by_a_requeue_that_counts() -> None:
    replay = lose_node(replay_of(*TASKS), can_come_back=True)
    outcome = replay.end()
    assert "another node in the place of" in outcome.comes_back
    (restart,) = [event for event in replay.events if isinstance(event, ev.Restarting)]
    assert (restart.attempt, restart.counts) == (2, None)


PREEMPTED = NodeLoss("the pod was deleted", LossNature.PREEMPTED)
SILENT = NodeLoss("its node n2 does not answer", LossNature.SILENT)
OUT_OF_MEMORY = NodeLoss("it used more memory than its limit", LossNature.OUT_OF_MEMORY)
AWAY = NodeLoss("its agent went away")
Start = tuple[Any, list[ev.Event]]


def start(
    happens: Callable[[Supervisor], None],
    *,
    attempt: int = 0,
    restarts: Sequence[ev.Event] = (),
    can_come_back: bool = True,
    **supervision: Any,
) -> Start:
    """Return the outcome and the events of a coordinator to which something happens at its start.

    `attempt` and `restarts`: the last attempt and the restarts of the earlier ones.
    """
    nodes = (NodePlan("local", "kubernetes", None, "/job"),)
    plan = replace(plan_of(*TASKS), nodes=nodes, supervision=Supervision(**supervision))
    supervisor = Supervisor(plan, jitter=lambda: 0.0)
    supervisor.restarting.can_come_back = can_come_back
    records = [event.facts() for event in restarts]
    supervisor.begin_run(100.0, attempt=attempt, restarts=records)
    happens(supervisor)
    orders = supervisor.take_orders()
    return supervisor.outcome, [one.event for one in orders if isinstance(one, do.Record)]


def start_losing(loss: NodeLoss, **history: Any) -> Start:
    return start(lambda one: one.node_lost("local", loss, 100.0), **history)


def start_unreached(loss: NodeLoss, **history: Any) -> Any:
    return start(lambda one: one.new_nodes_unreached({"local": loss}, 100.0), **history)[0]


@pytest.mark.parametrize(("loss", "counts"), [(PREEMPTED, False), (SILENT, None), (AWAY, None)])
def test_a_node_lost_before_the_first_attempt_is_replaced_by_a_requeue(
    loss: NodeLoss, counts: bool | None
) -> None:
    outcome, events = start_losing(loss, attempt=4)
    assert outcome.comes_back == "another node in the place of local, which is lost"
    lost, restart, stopping = events
    assert (lost, stopping.facts()["why"]) == (
        ev.NodeLost(node="local", reason=loss.reason, nature=loss.nature),
        f"it needs {outcome.comes_back}",
    )
    assert isinstance(restart, ev.Restarting)
    assert (restart.attempt, restart.counts, restart.reason) == (5, counts, f"local: {loss}")


@pytest.mark.parametrize(
    ("loss", "limits", "why"),
    [
        (PREEMPTED, {"max_restarts": 0}, "preempted 3 times in a row without progress"),
        (SILENT, {"max_restarts": 3}, "supervision.max_restarts = 3 is used up"),
    ],
)
def test_a_cluster_that_loses_a_node_at_each_start_ends_the_run(
    loss: NodeLoss, limits: dict[str, Any], why: str
) -> None:
    restarts: list[ev.Event] = []
    while True:
        outcome, events = start_losing(loss, attempt=4, restarts=restarts, **limits)
        if not outcome.comes_back:
            break
        restarts += [event for event in events if isinstance(event, ev.Restarting)]
    assert (len(restarts), outcome.status, outcome.exit_code) == (3, Status.FAILED, 3)
    assert f"lost before the tasks started: {loss} ({why})" in str(outcome.error)


def test_preemptions_before_an_attempt_that_began_do_not_end_a_later_start() -> None:
    free = [ev.Restarting(reason="preempted", attempt=n, of=9, counts=False) for n in (5, 5, 5)]
    outcome, _ = start_losing(PREEMPTED, attempt=5, restarts=free)
    assert outcome.comes_back
    planned = [ev.Restarting(reason="growing", attempt=6, of=9, counts=False, planned=True)] * 3
    outcome, _ = start_losing(PREEMPTED, attempt=5, restarts=planned)
    assert outcome.comes_back


@pytest.mark.parametrize(
    ("loss", "can_come_back", "why"),
    [
        (OUT_OF_MEMORY, True, "same way"),
        (NodeLoss("it cannot run the command", LossNature.PERMANENT), True, "same way"),
        (PREEMPTED, False, "the pod was deleted"),
        (AWAY, False, "its agent went away"),
    ],
)
def test_a_loss_before_the_first_attempt_that_a_requeue_cannot_fix_ends_the_run_with_its_reason(
    loss: NodeLoss, can_come_back: bool, why: str
) -> None:
    outcome, events = start_losing(loss, can_come_back=can_come_back)
    assert (outcome.status, outcome.exit_code, outcome.comes_back) == (Status.FAILED, 3, "")
    assert loss.reason in str(outcome.error)
    assert why in str(outcome.error)
    assert outcome.error.fix
    assert not [event for event in events if isinstance(event, ev.Restarting)]


@pytest.mark.parametrize("loss", [PREEMPTED, NodeLoss("worker-1 is taken away (SIGTERM)")])
def test_a_node_that_is_taken_away_before_the_first_attempt_is_not_waited_for(
    loss: NodeLoss,
) -> None:
    outcome, events = start(lambda one: one.node_leaving("local", loss, 100.0))
    assert outcome.comes_back
    assert isinstance(events[0], ev.Restarting)
    assert events[0].counts is False
    outcome, events = start(lambda one: one.node_leaving("local", loss, 100.0), can_come_back=False)
    assert (outcome, events) == (None, [])


def test_nodes_that_were_never_reached_have_the_job_start_again_only_if_one_is_lost() -> None:
    assert start_unreached(PREEMPTED).comes_back
    assert start_unreached(NodeLoss("worker-1 cannot be reached: no python3")) is None
    assert start_unreached(PREEMPTED, can_come_back=False) is None
    no_place = NodeLoss("the pod does not fit", LossNature.NO_PLACE)
    assert start_unreached(no_place).comes_back
    outcome = start_unreached(NodeLoss("worker-1 cannot be reached: no route"), attempt=1)
    assert outcome is not None, "an earlier coordinator has reached it"
    assert outcome.comes_back


def test_each_node_that_was_lost_before_it_was_reached_is_recorded() -> None:
    losses = {"worker-0": PREEMPTED, "worker-1": OUT_OF_MEMORY, "worker-2": AWAY}
    plan = spread(plan_of("worker:0", "worker:1", "worker:2"))
    supervisor = Supervisor(plan, jitter=lambda: 0.0)
    supervisor.restarting.can_come_back = True
    supervisor.begin_run(100.0)
    supervisor.new_nodes_unreached(losses, 100.0)
    outcome, orders = supervisor.outcome, supervisor.take_orders()
    events = [one.event for one in orders if isinstance(one, do.Record)]
    assert outcome is not None
    assert "node worker-1 was lost" in str(outcome.error)
    lost = [event for event in events if isinstance(event, ev.NodeLost)]
    assert {one.node: NodeLoss(one.reason, LossNature(one.nature)) for one in lost} == losses


def test_the_next_start_of_a_job_counts_the_restarts_and_the_time_of_the_former() -> None:
    restarts: list[dict[str, Any]] = [
        {"attempt": 2, "of": 3},
        {"attempt": 4, "of": 4, "counts": False},
        {"attempt": 5, "of": 4},
        {"attempt": 2, "of": 3, "task": "evaluator:0"},
    ]
    replay = replay_of(*TASKS, max_restarts=2, run_deadline_s=100.0)
    replay.supervisor.begin_run(replay.now, ran_s=90.0, restarts=restarts)
    history = replay.supervisor.restarting.budgets.history(None)
    assert history.spent == 2
    replay.exits("worker:1", killed=9).ended("worker:0").gather(5)
    assert replay.outcome()[0] is Status.FAILED
    assert replay.cause()["not_restarted"] == "supervision.max_restarts = 2 is used up"

    late = replay_of(*TASKS, run_deadline_s=100.0)
    late.supervisor.begin_run(late.now, ran_s=90.0)
    late.after(11).ended(*TASKS)
    assert late.outcome()[0] is Status.TIMED_OUT
