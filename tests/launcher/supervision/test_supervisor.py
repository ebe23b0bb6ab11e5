"""The supervisor decides about restarts, stops and the end of a run.

The tests feed it inputs with their times; no clock runs.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of, spread
from tests.launcher.messages import task_report
from tests.launcher.supervision.story import COLLATERAL, Replay, replay_of

from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.plans.plan import NodePlan, Supervision
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.decisions import Stop
from tfcluster.supervision.reactions import AFTER_SUSPENSION_S, EVALUATOR_S, STACKS_S
from tfcluster.supervision.run_state import AGENT_SLACK_S, FAILURE_GRACE_S
from tfcluster.supervision.supervisor import Supervisor
from tfcluster.supervision.verdicts import CAUSE_WAIT_S, FROZEN_S


def test_a_killed_worker_restarts_the_gang_from_the_newest_step() -> None:
    replay = replay_of().after(5).exits("worker:1", killed=signal.SIGKILL)
    assert replay.stopped() == ["worker:0"]
    assert replay.orders[0].grace_s == FAILURE_GRACE_S  # type: ignore[union-attr]
    assert not any(isinstance(event, ev.Restarting) for event in replay.events)

    replay.ended("worker:0").gather(1200)

    next_attempt = replay.supervisor.next_attempt
    assert next_attempt is not None
    assert (next_attempt.number, next_attempt.delay_s, len(next_attempt.members)) == (2, 1.0, 2)
    restarting = replay.last(ev.Restarting)
    assert (restarting.attempt, restarting.of, restarting.from_step) == (2, 4, 1200)
    assert "worker:1" in restarting.reason
    assert "SIGKILL" in restarting.reason
    assert replay.cause()["task"] == "worker:1"
    replay.begin(2)
    replay.exits("worker:0").exits("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_the_budget_is_limited_and_the_delay_doubles() -> None:
    replay = replay_of(max_restarts=2)
    delays = []
    for number in (2, 3):
        replay.exits("worker:1", killed=signal.SIGKILL).ended("worker:0").gather()
        assert replay.supervisor.next_attempt is not None
        delays.append(replay.supervisor.next_attempt.delay_s)
        replay.begin(number)
    replay.exits("worker:1", killed=signal.SIGKILL).ended("worker:0").gather()
    assert delays == [1.0, 2.0]
    assert replay.outcome() == (Status.FAILED, 1)
    assert "max_restarts = 2 is used up" in replay.cause()["not_restarted"]


def test_an_exception_is_not_restarted_without_a_newer_checkpoint() -> None:
    error = {"exception": "ValueError", "message": "bad", "file": "main.py", "line": 3}
    replay = replay_of().exits("worker:1", 1, error=error).ended("worker:0").gather()
    assert replay.outcome() == (Status.FAILED, 1)
    assert replay.supervisor.next_attempt is None

    replay = replay_of()
    replay.supervisor.gathered(10, replay.now)
    replay.exits("worker:1", 1, error=error).ended("worker:0").gather(10)
    assert replay.supervisor.next_attempt is not None


def test_a_restart_from_a_checkpoint_whose_step_is_not_known_names_the_checkpoint() -> None:
    replay = (
        replay_of().exits("worker:1", killed=signal.SIGKILL).ended("worker:0").gather(name="ckpt-2")
    )
    restarting = replay.last(ev.Restarting)
    assert (restarting.from_step, restarting.from_checkpoint) == (None, "ckpt-2")
    replay.begin(2).exits("worker:1", killed=signal.SIGKILL).ended("worker:0").gather(40, name="c")
    restarting = replay.last(ev.Restarting)
    assert (restarting.from_step, restarting.from_checkpoint) == (40, None)


@pytest.mark.parametrize(("after", "restarts"), [("ckpt-2", False), ("ckpt-3", True)])
def test_in_shared_storage_a_checkpoint_with_another_name_is_newer(
    after: str, restarts: bool
) -> None:
    replay = (
        replay_of().exits("worker:1", killed=signal.SIGKILL).ended("worker:0").gather(name="ckpt-2")
    )
    replay.begin(2).exits("worker:1", 3).ended("worker:0").gather(name=after)
    assert (replay.supervisor.next_attempt is not None) is restarts


def test_a_collateral_failure_waits_for_its_cause_and_then_the_survivor_is_blamed() -> None:
    replay = replay_of().exits("worker:0", 1, last=COLLATERAL)
    assert replay.stopped() == []
    replay.after(CAUSE_WAIT_S + 0.1)
    assert replay.stopped() == ["worker:1"]
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster").gather()
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:1", "late")
    assert replay.last(ev.Diagnosis).collateral == ("worker:0",)


def test_a_frozen_task_is_killed_when_its_peers_would_give_up() -> None:
    replay = replay_of().after(5)
    replay.supervisor.froze("worker:1", 1, signal.SIGSTOP, replay.now)
    replay.after(FROZEN_S - 0.1)
    assert replay.stopped() == []
    replay.after(0.2)
    assert replay.stopped() == ["worker:1", "worker:0"]
    assert replay.orders[0].grace_s == 0.0  # type: ignore[union-attr]
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster").ended("worker:0").gather()
    assert replay.cause()["kind"] == "frozen"
    assert "SIGSTOP" in replay.cause()["reason"]
    assert replay.supervisor.next_attempt is not None


def test_a_frozen_task_that_resumes_in_time_is_not_stopped() -> None:
    replay = replay_of()
    replay.supervisor.froze("worker:1", 1, signal.SIGSTOP, replay.now)
    replay.after(FROZEN_S - 1)
    replay.supervisor.thawed("worker:1", 1)
    replay.after(60)
    assert replay.stopped() == []


def test_a_suspension_is_the_cause_if_the_tasks_lose_each_other_after_it() -> None:
    replay = replay_of().after(5)
    replay.supervisor.suspended(95.0, replay.now)
    replay.after(2).exits("worker:1", 1, last=COLLATERAL).exits("worker:0", 1, last=COLLATERAL)
    replay.gather()
    assert replay.last(ev.Suspended).seconds == 95.0
    assert replay.cause()["kind"] == "suspended"
    assert "the run was suspended for 95 s" in replay.cause()["reason"]
    again = replay.last(ev.Restarting)
    assert (again.attempt, again.of, again.counts) == (2, 5, False)


def test_a_suspension_long_ago_explains_nothing() -> None:
    replay = replay_of()
    replay.supervisor.suspended(95.0, replay.now)
    replay.after(AFTER_SUSPENSION_S + 1).exits("worker:1", 1, last=COLLATERAL)
    replay.exits("worker:0", 1, last=COLLATERAL).gather()
    assert replay.cause()["kind"] == "collateral"


def test_a_frozen_task_is_the_cause_once_the_others_fail() -> None:
    replay = replay_of()
    replay.supervisor.froze("worker:1", 1, signal.SIGSTOP, replay.now)
    replay.after(3).exits("worker:0", 1, last=COLLATERAL)
    assert replay.stopped() == ["worker:1"]


def test_the_start_deadline_names_missing_tasks() -> None:
    replay = replay_of(start_deadline_s=300)
    replay.after(1000)  # a download: no task waits for its peers yet
    replay.says("worker:0", "waiting_for_peers").after(299)
    assert replay.orders == []
    replay.after(1.1)
    assert [type(order) for order in replay.orders] == [do.TakeStacks]
    replay.after(STACKS_S)
    assert sorted(replay.stopped()) == ["worker:0", "worker:1"]
    replay.ended("worker:0", "worker:1")
    assert replay.outcome() == (Status.TIMED_OUT, 4)
    assert replay.supervisor.outcome is not None
    text = str(replay.supervisor.outcome.error)
    assert "worker:1 has not joined, 1300 s after its start" in text
    assert "last of worker:1" in text
    assert replay.cause()["task"] == "worker:1"


def test_the_start_deadline_ends_when_all_tasks_have_joined() -> None:
    replay = replay_of(start_deadline_s=10)
    for task in ("worker:0", "worker:1"):
        replay.says(task, "waiting_for_peers").after(3).says(task, "ready")
    replay.after(500)
    assert replay.orders == []


def test_a_stall_dumps_stacks_and_restarts_and_at_last_is_a_deadline_error() -> None:
    replay = replay_of(stall_deadline_s=60, max_restarts=1)
    replay.after(500).says("worker:0", "progress", step=7).says("worker:1", "progress", step=6)
    replay.after(61)
    assert replay.last(ev.Stalled).deadline_s == 60
    assert isinstance(replay.orders[0], do.TakeStacks)
    replay.ended("worker:0", "worker:1").gather(None)
    assert replay.supervisor.next_attempt is not None
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:1", "stalled")
    replay.begin(2)
    replay.says("worker:0", "progress", step=7).after(62).ended("worker:0", "worker:1").gather()
    assert replay.outcome() == (Status.TIMED_OUT, 4)


def test_a_stall_is_blamed_on_a_frozen_task() -> None:
    replay = replay_of(stall_deadline_s=5).says("worker:0", "progress", step=7)
    replay.supervisor.froze("worker:1", 1, signal.SIGSTOP, replay.now)
    replay.after(5).ended("worker:0", "worker:1").gather(None)
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:1", "frozen")


def test_without_a_stall_deadline_silence_is_reported_once() -> None:
    replay = replay_of().says("worker:0", "progress", step=1).after(3000)
    assert [type(event) for event in replay.events].count(ev.Stalled) == 1
    assert [type(order) for order in replay.orders] == [do.TakeStacks]


def test_output_evaluation_and_long_executions_count_as_activity() -> None:
    replay = replay_of(stall_deadline_s=60).says("worker:0", "progress", step=1).after(50)
    replay.heard_at = replay.now
    replay.after(50).says("worker:0", "alive").after(50)
    assert replay.stopped() == []

    replay = replay_of(stall_deadline_s=10)
    replay.says("worker:0", "ready").after(30)
    replay.says("worker:0", "progress", step=100, steps_per_execution=100).after(30)
    replay.says("worker:0", "progress", step=200, steps_per_execution=100).after(80)
    assert replay.orders == []


def test_the_run_deadline_stops_each_task_with_its_grace() -> None:
    replay = replay_of(run_deadline_s=100).says("worker:0", "saves_on_sigterm").after(100)
    graces = {o.tasks: o.grace_s for o in replay.orders if isinstance(o, do.StopTasks)}
    assert graces == {("worker:0",): 30.0, ("worker:1",): 2.0}
    replay.ended("worker:0", "worker:1")
    assert replay.outcome() == (Status.TIMED_OUT, 4)


def test_a_stop_is_never_followed_by_a_restart() -> None:
    replay = replay_of()
    replay.supervisor.stop(Stop("Ctrl-C", 130), replay.now)
    replay._take()
    replay.exits("worker:0", 42, by="tfcluster").exits("worker:1", 42, by="tfcluster")
    assert replay.outcome() == (Status.INTERRUPTED, 130)
    assert replay.supervisor.next_attempt is None


def test_a_stop_during_the_delay_before_a_restart_ends_the_run_at_once() -> None:
    replay = replay_of().exits("worker:1", killed=signal.SIGKILL).ended("worker:0").gather()
    replay.supervisor.stop(Stop("Ctrl-C", 130), replay.now)
    assert replay.outcome() == (Status.INTERRUPTED, 130)
    assert replay.supervisor.next_attempt is None


def test_a_second_stop_kills_the_tasks() -> None:
    replay = replay_of().says("worker:0", "saves_on_sigterm")
    replay.supervisor.stop(Stop("Ctrl-C", 130), replay.now)
    replay.supervisor.stop(Stop("Ctrl-C", 130), replay.now)
    replay._take()
    assert [o.grace_s for o in replay.orders if isinstance(o, do.StopTasks)] == [30.0, 2.0, 0.0]


def test_restarts_after_preemption_are_free_but_limited() -> None:
    replay = replay_of(max_restarts=0)
    for number in (2, 3, 4):
        replay.exits("worker:0", 42).exits("worker:1", 42).gather()
        assert replay.supervisor.next_attempt is not None, number
        replay.begin(number)
    replay.exits("worker:0", 42).exits("worker:1", 42).gather()
    assert replay.outcome() == (Status.FAILED, 1)
    assert "3 times in a row" in replay.cause()["not_restarted"]


def test_a_task_may_save_while_the_others_exit_preempted() -> None:
    replay = replay_of(grace_s=30)
    for task in ("worker:0", "worker:1"):
        replay.says(task, "saves_on_sigterm")
    replay.exits("worker:1", 42).after(20)
    assert replay.stopped() == []
    replay.exits("worker:0", 42).gather(9)
    assert replay.supervisor.next_attempt is not None

    replay = replay_of(grace_s=30)
    replay.says("worker:0", "saves_on_sigterm").exits("worker:1", 42).after(31)
    assert replay.stopped() == ["worker:0"]


def test_after_a_taken_port_the_gang_restarts_at_once_with_fresh_ports() -> None:
    replay = replay_of().exits("worker:1", 1, last="UnknownError: Could not start gRPC server")
    replay.ended("worker:0").gather()
    next_attempt = replay.supervisor.next_attempt
    assert next_attempt is not None
    assert (next_attempt.fresh_ports, next_attempt.delay_s) == (True, 0.0)


def test_a_lost_node_leads_to_a_restart_or_to_exit_code_3() -> None:
    replay = replay_of()
    replay.supervisor.node_lost("local", NodeLoss("its agent went away"), replay.now)
    replay._take()
    replay.gather(5)
    assert replay.supervisor.next_attempt is not None

    replay = replay_of(max_restarts=0)
    replay.supervisor.run_id = "demo-1"
    replay.supervisor.node_lost("local", NodeLoss("its agent went away"), replay.now)
    replay._take()
    replay.gather()
    assert replay.outcome() == (Status.FAILED, 3)
    assert replay.supervisor.outcome is not None
    assert "`tfcluster up --resume demo-1`" in str(replay.supervisor.outcome.error)


def leave(replay: Replay, node: str, loss: NodeLoss | None = None) -> Replay:
    loss = loss or NodeLoss(f"{node} got SIGTERM: it is taken away")
    replay.supervisor.node_leaving(node, loss, replay.now)
    replay._take()
    return replay


def spread_gang(*tasks: str, **supervision: Any) -> Replay:
    """Return a gang in which each task has a node of its own, named after it."""
    plan = spread(plan_of(*tasks))
    return Replay(replace(plan, supervision=Supervision(**supervision)))


def test_the_gang_saves_before_a_node_is_taken_away_and_its_restart_does_not_count() -> None:
    replay = spread_gang("worker:0", "worker:1", grace_s=30.0, max_restarts=0)
    replay.says("worker:0", "saves_on_sigterm").says("worker:1", "saves_on_sigterm")
    leave(replay, "worker-1")
    stops = [order for order in replay.orders if isinstance(order, do.StopTasks)]
    assert {(order.node, order.grace_s) for order in stops} == {
        ("worker-0", 30.0),
        ("worker-1", 30.0),
    }
    leave(replay, "worker-1")
    assert len(replay.stopped()) == 2
    replay.ended("worker:0", "worker:1").gather(70)
    restart = replay.last(ev.Restarting)
    assert (restart.counts, restart.from_step, restart.attempt) == (False, 70, 2)
    assert "it is taken away" in restart.reason


@pytest.mark.parametrize(
    ("nature", "kind", "counts"),
    [
        (LossNature.PREEMPTED, "preempted", False),
        (LossNature.OWN_FAILURE, "node_lost", None),
        (LossNature.INFRASTRUCTURE, "node_lost", None),
        # Its kubelet was away when the pod was deleted, and is back.
        (LossNature.SILENT, "preempted", False),
    ],
)
def test_the_nature_of_a_loss_decides_whether_the_restart_of_a_node_that_leaves_counts(
    nature: LossNature, kind: str, counts: bool | None
) -> None:
    loss = NodeLoss("it was evicted", nature)
    replay = leave(spread_gang("worker:0", "worker:1", grace_s=30.0), "worker-1", loss)
    replay.exits("worker:1", 143).ended("worker:0").gather(70)
    assert (replay.cause()["kind"], replay.last(ev.Restarting).counts) == (kind, counts)
    assert "it was evicted" in replay.last(ev.Restarting).reason


def test_a_node_that_leaves_and_is_lost_at_once_is_still_a_preemption() -> None:
    replay = leave(spread_gang("worker:0", "worker:1"), "worker-1")
    replay.supervisor.node_lost("worker-1", NodeLoss("its pod was deleted"), replay.now)
    replay._take()
    replay.ended("worker:0").gather(7)
    assert replay.last(ev.Restarting).counts is False


def test_a_plain_task_on_a_node_that_leaves_is_restarted_alone() -> None:
    replay = leave(spread_gang("worker:0", "worker:1"), "nowhere")
    assert replay.stopped() == []
    plan = spread(plan_of("worker:0", "worker:1", "evaluator:0"))
    replay = leave(Replay(plan), "evaluator-0")
    assert replay.stopped() == ["evaluator:0"]
    replay.ended("evaluator:0")
    assert (replay.last(ev.Restarting).task, replay.last(ev.Restarting).counts) == (
        "evaluator:0",
        False,
    )


def test_an_agent_that_does_not_answer_is_dropped() -> None:
    replay = replay_of().exits("worker:1", killed=signal.SIGKILL)
    replay.after(FAILURE_GRACE_S + AGENT_SLACK_S + 0.1)
    assert do.DropNode("local") in replay.orders
    assert replay.last(ev.NodeLost).node == "local"
    assert do.GatherCheckpoints() in replay.orders


def test_an_evaluator_restarts_alone_and_its_end_does_not_end_the_run() -> None:
    replay = replay_of("worker:0", "worker:1", "evaluator:0")
    replay.exits("evaluator:0", killed=signal.SIGSEGV)
    assert replay.last(ev.Restarting).task == "evaluator:0"
    replay.after(1.1)
    assert do.StartAlone(replay.plan.tasks[2].id, 2) in replay.orders
    replay.supervisor.started("evaluator:0", 2, replay.now)
    assert replay.supervisor.next_attempt is None
    replay.exits("evaluator:0", 0).exits("worker:0").exits("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_an_evaluator_keeps_running_when_the_gang_restarts() -> None:
    replay = replay_of("worker:0", "worker:1", "evaluator:0")
    replay.exits("worker:1", killed=signal.SIGKILL)
    assert replay.stopped() == ["worker:0"]
    replay.ended("worker:0").gather(3)
    replay.begin(2)
    attempts = {str(member.id): member.attempt for member in replay.supervisor.gang}
    assert attempts == {"worker:0": 2, "worker:1": 2, "evaluator:0": 1}


def test_an_evaluator_that_has_evaluated_the_last_checkpoint_is_stopped() -> None:
    replay = replay_of("worker:0", "worker:1", "evaluator:0")
    replay.supervisor.gathered(300, replay.now)
    replay.exits("worker:0").exits("worker:1")
    assert replay.stopped() == []
    replay.says("evaluator:0", "evaluated", step=200)
    assert replay.stopped() == []
    replay.says("evaluator:0", "evaluated", step=300)
    assert replay.stopped() == [], "it may exit by itself"
    replay.after(EVALUATOR_S)
    assert replay.stopped() == ["evaluator:0"]
    replay.ended("evaluator:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_a_tuner_restarts_alone_and_a_chief_without_tuners_is_stopped() -> None:
    replay = replay_of("chief:0", "worker:0", "worker:1", kind="tuner", max_restarts=1)
    replay.exits("worker:0", killed=signal.SIGKILL).after(1.1)
    assert replay.last(ev.Restarting).task == "worker:0"
    replay.supervisor.started("worker:0", 2, replay.now)
    replay.exits("worker:0", killed=signal.SIGKILL).exits("worker:1", 1)
    replay.after(5)
    assert replay.stopped() == ["chief:0"]
    replay.ended("chief:0")
    assert replay.outcome() == (Status.FAILED, 1)


def test_a_search_in_which_every_trial_failed_fails() -> None:
    replay = replay_of("chief:0", "worker:0", kind="tuner")
    replay.says("chief:0", "verdict", ok=False, reason="every trial failed")
    replay.exits("worker:0").exits("chief:0").gather()
    assert replay.outcome() == (Status.FAILED, 1)
    assert "every trial failed" in replay.cause()["reason"]


HEARTBEAT_TIMEOUT = {
    "exception": "tensorflow.python.framework.errors_impl.UnavailableError",
    "message": "Collective ops is aborted by: Task /job:worker/replica:0/task:1 heartbeat timeout.",
    "file": "/job/train.py",
    "line": 27,
}


def test_a_chief_that_saves_alone_after_all_have_ended_is_not_restarted() -> None:
    """`model.save` under `if index == 0:` makes TensorFlow 2.15 blame the heartbeat of a peer."""
    replay = replay_of("worker:0", "worker:1", "worker:2").exits("worker:1").exits("worker:2")
    replay.after(8).exits("worker:0", 1, error=HEARTBEAT_TIMEOUT).gather()
    assert replay.outcome() == (Status.FAILED, 1)
    cause = replay.cause()
    assert (cause["task"], cause["kind"], cause["line"]) == ("worker:0", "permanent", 27)
    assert cause["reason"] == (
        "did alone what all workers must do (train.py:27): worker:1, worker:2 had ended before"
    )
    assert cause["docs"] == "docs/failures.md#chief-alone"


def test_a_worker_that_trains_more_steps_than_the_chief_fails_the_run() -> None:
    replay = replay_of().says("worker:0", "progress", step=10, total_steps=10)
    replay.says("worker:1", "progress", step=11, total_steps=15).exits("worker:0", 0).after(10)
    replay.exits("worker:1", 1, error=HEARTBEAT_TIMEOUT).gather()
    assert replay.outcome() == (Status.FAILED, 1)
    cause = replay.cause()
    assert (cause["task"], cause["kind"]) == ("worker:1", "permanent")
    assert cause["reason"] == (
        "worker:0 had ended; worker:1 still trained (train.py:27): step 11 of 15 against 10"
    )
    assert cause["docs"] == "docs/failures.md#chief-alone"


def test_a_failure_after_the_chief_s_success_waits_for_its_cause() -> None:
    """Of three workers two go on training: one of them fails before the other one is killed."""
    replay = replay_of("worker:0", "worker:1", "worker:2").exits("worker:0")
    replay.exits("worker:1", 1, error=HEARTBEAT_TIMEOUT).after(3)
    assert replay.stopped() == []
    replay.exits("worker:2", killed=signal.SIGKILL).gather()
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:2", "signal")


def test_a_peer_that_notices_nothing_is_not_blamed_for_the_chief_s_early_end() -> None:
    replay = replay_of("worker:0", "worker:1", "worker:2").exits("worker:0")
    replay.exits("worker:1", 1, error=HEARTBEAT_TIMEOUT).after(CAUSE_WAIT_S)
    assert replay.stopped() == ["worker:2"]
    replay.ended("worker:2").gather()
    assert replay.cause()["task"] == "worker:1"
    assert replay.cause()["reason"].endswith(": worker:0 had ended before")


def test_what_is_forgiven_after_the_chief_s_success_is_said() -> None:
    replay = replay_of("chief:0", "worker:0", "ps:0").says("worker:0", "progress", step=9)
    replay.exits("chief:0").exits("ps:0", 1, last="boom").exits("worker:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)
    assert replay.last(ev.Warned).message == (
        "ps:0 failed once the chief had succeeded: exit code 1"
    )


def test_a_failed_chief_is_collateral_while_a_peer_still_runs() -> None:
    replay = replay_of("worker:0", "worker:1", "worker:2").exits("worker:1")
    replay.exits("worker:0", 1, error=HEARTBEAT_TIMEOUT)
    assert replay.stopped() == [], "worker:2 may have failed first"
    replay.exits("worker:2", killed=signal.SIGKILL).gather()
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:2", "signal")


def test_a_gang_may_shrink_when_the_restart_budget_is_used_up() -> None:
    replay = replay_of("worker:0", "worker:1", "worker:2", max_restarts=0, min_workers=2)
    replay.exits("worker:0", killed=signal.SIGKILL).ended("worker:1", "worker:2").gather(40)
    next_attempt = replay.supervisor.next_attempt
    assert next_attempt is not None
    assert [str(task) for task in next_attempt.members] == ["worker:1", "worker:2"]
    assert replay.last(ev.Restarting).members == ("worker:1", "worker:2")
    replay.begin(2)
    assert str(replay.supervisor.gang.chief) == "worker:1"
    replay.exits("worker:1", killed=signal.SIGKILL).ended("worker:2").gather(50)
    assert replay.outcome() == (Status.FAILED, 1)


def test_after_a_node_is_gone_a_smaller_gang_restarts_or_the_run_fails() -> None:
    plan = plan_of("worker:0", "worker:1", "worker:2")
    nodes = (*plan.nodes, NodePlan("far", "ssh", None, "/job"))
    tasks = tuple(
        replace(task, node="far" if task.id.index == 0 else "local") for task in plan.tasks
    )
    for least, expected in ((2, ["worker:1", "worker:2"]), (3, None)):
        policy = Supervision(min_workers=least)
        replay = Replay(replace(plan, nodes=nodes, tasks=tasks, supervision=policy))
        replay.supervisor.node_lost("far", NodeLoss("no route"), replay.now)
        replay._take()
        replay.ended("worker:1", "worker:2").gather(7)
        replay.supervisor.node_gone("far", NodeLoss("no route to host"), replay.now)
        replay._take()
        next_attempt = replay.supervisor.next_attempt
        if expected is None:
            assert next_attempt is None
            assert replay.outcome() == (Status.FAILED, 3)
        else:
            assert next_attempt is not None
            assert [str(task) for task in next_attempt.members] == expected
            replay.begin(next_attempt.number)
            replay.exits("worker:1").exits("worker:2")
            assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_a_task_that_starts_during_a_stop_is_stopped_too() -> None:
    """The order to start the task was sent before Ctrl-C arrived."""
    replay = Replay.__new__(Replay)
    replay.plan, replay.now, replay.events, replay.orders = plan_of(), 100.0, [], []
    replay.supervisor = Supervisor(replay.plan)
    replay.supervisor.begin(1, tuple(task.id for task in replay.plan.tasks))
    replay.supervisor.started("worker:0", 1, 100.0)
    replay.supervisor.stop(Stop("Ctrl-C", 130), 100.0)
    replay.supervisor.started("worker:1", 1, 100.1)
    replay._take()
    assert replay.stopped() == ["worker:0", "worker:1"]


@pytest.mark.parametrize("attempt", [1, 3])
def test_reports_of_an_earlier_attempt_are_ignored(attempt: int) -> None:
    replay = replay_of().exits("worker:1", killed=signal.SIGKILL).ended("worker:0").gather()
    replay.begin(2)
    stale = ev.TaskExited(task="worker:0", attempt=attempt, exit_code=1)
    replay.supervisor.exited(stale, replay.now)
    replay.supervisor.reported("worker:0", attempt, task_report("progress", step=5), replay.now)
    assert replay.supervisor.next_attempt is None
    assert replay.supervisor.take_orders() == []
