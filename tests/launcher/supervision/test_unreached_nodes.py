"""A lost node that is not reached costs an attempt; it is gone only where no attempt is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.launcher.conftest import moved, plan_of
from tests.launcher.supervision.story import Replay

from tfcluster.kinds import get
from tfcluster.node_loss import NodeLoss
from tfcluster.plans.plan import Plan, Supervision
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.restarting import REACH_S

FAR = "10.0.0.2"
WHY = f"{FAR} cannot be reached: ssh: connect to host {FAR} port 22: Connection timed out"


def plan_with_far(task: str, *tasks: str, kind: Any = "training", **supervision: Any) -> Plan:
    """Return a plan whose `task` is on another machine."""
    plan = moved(plan_of(*tasks, kind=kind), task, to=FAR)
    return replace(plan, supervision=Supervision(**supervision))


def after_a_loss(plan: Plan) -> Replay:
    """Return a run that has lost the far node, and whose checkpoints are gathered."""
    replay = Replay(plan)
    replay.loses(FAR, "no answer")
    replay.ended(*[m.name for m in replay.supervisor.gang if m.is_running and m.is_core])
    return replay.gather(7)


def not_reached(replay: Replay) -> Replay:
    replay.supervisor.lost_node_unreached(FAR, NodeLoss(WHY), replay.now)
    replay._take()
    return replay


def test_each_attempt_that_cannot_reach_a_node_counts_and_backs_off() -> None:
    replay = after_a_loss(plan_with_far("worker:1"))
    assert replay.supervisor.patience_s(FAR) == REACH_S
    for delay_s, last in ((2.0, 3), (4.0, 2)):
        not_reached(replay)
        event = replay.last(ev.Restarting)
        assert (event.attempt, event.of, event.delay_s) == (2, last, delay_s)
        assert event.reason == f"worker:1: {WHY}"
        assert event.from_step == 7
    not_reached(replay)
    assert replay.outcome() == (Status.FAILED, 3)
    assert (replay.cause()["task"], replay.cause()["reason"]) == ("worker:1", WHY)
    assert WHY in replay.error()
    assert "supervision.max_restarts = 3 is used up" in replay.error()


def test_a_node_that_is_reached_in_a_later_attempt_is_part_of_it() -> None:
    replay = not_reached(after_a_loss(plan_with_far("worker:1")))
    replay.supervisor.node_back(FAR, replay.now)
    replay.begin(2).exits("worker:0").exits("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_a_gang_that_may_shrink_goes_on_at_once() -> None:
    replay = after_a_loss(plan_with_far("worker:1", min_workers=1))
    assert replay.supervisor.patience_s(FAR) == 0.0
    assert replay.last(ev.Restarting).members is None
    assert not_reached(replay).last(ev.Restarting).members == ("worker:0",)
    assert replay.cause()["reason"] == WHY, "not the reason of the former attempt's end"


def test_a_run_whose_scheduler_gives_it_another_node_goes_back_at_once() -> None:
    replay = Replay(plan_with_far("worker:1"))
    replay.supervisor.restarting.can_come_back = True
    replay.loses(FAR, "no answer").ended("worker:0").gather(7)
    assert replay.supervisor.patience_s(FAR) == 0.0
    not_reached(replay)
    outcome = replay.end()
    assert outcome.comes_back


def test_a_gang_does_not_wait_for_a_node_that_has_only_its_evaluator() -> None:
    tasks = ("worker:0", "worker:1", "evaluator:0")
    replay = Replay(plan_with_far("evaluator:0", *tasks))
    replay.loses(FAR, "no answer").exits("worker:1", killed=9).ended("worker:0").gather(7)
    assert replay.supervisor.patience_s(FAR) == 0.0
    assert not_reached(replay).last(ev.Restarting).members == ("worker:0", "worker:1")


def test_a_task_that_restarts_alone_has_attempts_of_its_own() -> None:
    replay = Replay(plan_with_far("worker:1", kind="plain", max_restarts=2))
    replay.loses(FAR, "no answer").after(1.0)
    assert replay.supervisor.patience_s(FAR) == REACH_S
    assert [o.attempt for o in replay.orders if isinstance(o, do.StartAlone)] == [2]
    not_reached(replay).after(60.0)
    assert [o.attempt for o in replay.orders if isinstance(o, do.StartAlone)] == [2, 3]
    not_reached(replay)
    assert FAR in replay.supervisor.gone
    message = replay.last(ev.Warned).message
    assert "worker:1 is not restarted: supervision.max_restarts = 2" in message
    replay.exits("worker:0")
    assert replay.outcome() == (Status.FAILED, 3)


def test_a_local_agent_that_cannot_start_has_no_minute_for_each_attempt() -> None:
    replay = Replay(plan_of())
    assert not get("local").capabilities.has_lease
    assert replay.supervisor.patience_s("local") == 0.0
