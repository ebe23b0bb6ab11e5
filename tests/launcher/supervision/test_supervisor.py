"""The supervisor decides about restarts, stops and the end of a run.

The tests feed it inputs with their times; no clock runs.
"""

from __future__ import annotations

import signal

import pytest
from tests.launcher.messages import task_report
from tests.launcher.supervision.story import COLLATERAL, replay_of, spread_gang

from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.endings import AGENT_SLACK_S, FAILURE_GRACE_S, STACKS_S
from tfcluster.supervision.supervisor import AFTER_SUSPENSION_S
from tfcluster.supervision.verdicts import CAUSE_WAIT_S, FROZEN_S


def test_a_killed_worker_restarts_the_gang_from_the_newest_step() -> None:
    replay = replay_of().after(5).exits("worker:1", killed=signal.SIGKILL)
    assert replay.stopped() == ["worker:0"]
    assert replay.orders[0].grace_s == FAILURE_GRACE_S  # type: ignore[union-attr]
    assert not any(isinstance(event, ev.Restarting) for event in replay.events)

    replay.ended("worker:0").gather(1200)

    next_attempt = replay.next()
    assert (next_attempt.number, next_attempt.delay_s, len(next_attempt.members)) == (2, 1.0, 2)
    restarting = replay.last(ev.Restarting)
    assert (restarting.attempt, restarting.of, restarting.from_step) == (2, 4, 1200)
    assert "worker:1" in restarting.reason
    assert "SIGKILL" in restarting.reason
    assert replay.cause()["task"] == "worker:1"
    replay.begin(2).exits("worker:0").exits("worker:1")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


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
    replay = replay_of().after(5).froze("worker:1").after(FROZEN_S - 0.1)
    assert replay.stopped() == []
    replay.after(0.2)
    assert replay.stopped() == ["worker:1", "worker:0"]
    assert replay.orders[0].grace_s == 0.0  # type: ignore[union-attr]
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster").ended("worker:0").gather()
    assert replay.cause()["kind"] == "frozen"
    assert "SIGSTOP" in replay.cause()["reason"]
    assert replay.supervisor.next_attempt is not None


def test_a_frozen_task_that_resumes_in_time_is_not_stopped() -> None:
    replay = replay_of().froze("worker:1").after(FROZEN_S - 1)
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
    replay = replay_of().froze("worker:1").after(3).exits("worker:0", 1, last=COLLATERAL)
    assert replay.stopped() == ["worker:1"]


def test_the_start_deadline_names_missing_tasks() -> None:
    replay = replay_of(start_deadline_s=300)
    replay.after(1000)  # a download: no task waits for its peers yet
    replay.says("worker:0", "waiting_for_peers").after(299)
    assert replay.orders == []
    replay.after(1.1)
    assert [type(order) for order in replay.orders] == [do.AskForStacks]
    replay.after(STACKS_S)
    assert sorted(replay.stopped()) == ["worker:0", "worker:1"]
    replay.ended("worker:0", "worker:1")
    assert replay.outcome() == (Status.TIMED_OUT, 4)
    text = replay.error()
    assert "worker:1 has not joined, 1300 s after its start" in text
    assert "last of worker:1" in text
    assert replay.cause()["task"] == "worker:1"


def test_the_start_deadline_ends_when_all_tasks_have_joined() -> None:
    replay = replay_of(start_deadline_s=10)
    for task in ("worker:0", "worker:1"):
        replay.says(task, "waiting_for_peers").after(3).says(task, "task_ready")
    replay.after(500)
    assert replay.orders == []


def test_a_stall_dumps_stacks_and_restarts_and_at_last_is_a_deadline_error() -> None:
    replay = replay_of(stall_deadline_s=60, max_restarts=1)
    replay.after(500).says("worker:0", "progress", step=7).says("worker:1", "progress", step=6)
    replay.after(61)
    assert replay.last(ev.Stalled).deadline_s == 60
    assert isinstance(replay.orders[0], do.AskForStacks)
    replay.ended("worker:0", "worker:1").gather(None)
    assert replay.supervisor.next_attempt is not None
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:1", "stalled")
    replay.begin(2)
    replay.says("worker:0", "progress", step=7).after(62).ended("worker:0", "worker:1").gather()
    assert replay.outcome() == (Status.TIMED_OUT, 4)


def test_a_stall_is_blamed_on_a_frozen_task() -> None:
    replay = replay_of(stall_deadline_s=5).says("worker:0", "progress", step=7)
    replay.froze("worker:1").after(5).ended("worker:0", "worker:1").gather(None)
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:1", "frozen")


def test_output_evaluation_and_long_executions_count_as_activity() -> None:
    replay = replay_of(stall_deadline_s=60).says("worker:0", "progress", step=1).after(50)
    replay.heard_at = replay.now
    replay.after(50).says("worker:0", "alive").after(50)
    assert replay.stopped() == []

    replay = replay_of(stall_deadline_s=10).says("worker:0", "task_ready").after(30)
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
    replay = replay_of().stop()
    replay.exits("worker:0", 42, by="tfcluster").exits("worker:1", 42, by="tfcluster")
    assert replay.outcome() == (Status.INTERRUPTED, 130)
    assert replay.supervisor.next_attempt is None


def test_a_stop_during_the_delay_before_a_restart_ends_the_run_at_once() -> None:
    replay = replay_of().exits("worker:1", killed=signal.SIGKILL).ended("worker:0").gather()
    assert replay.stop().outcome() == (Status.INTERRUPTED, 130)
    assert replay.supervisor.next_attempt is None


def test_a_task_that_no_longer_saves_is_stopped_as_one_that_never_did() -> None:
    """Keras's `fit` has ended, and the script evaluates."""
    replay = replay_of().says("worker:0", "saves_on_sigterm")
    replay.says("worker:0", "saves_on_sigterm", is_over=True).stop()
    assert [o.grace_s for o in replay.orders if isinstance(o, do.StopTasks)] == [2.0]


def test_a_second_stop_kills_the_tasks() -> None:
    replay = replay_of().says("worker:0", "saves_on_sigterm").stop(2)
    assert [o.grace_s for o in replay.orders if isinstance(o, do.StopTasks)] == [30.0, 2.0, 0.0]


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


def test_a_lost_node_without_restarts_ends_the_run_with_3_and_the_command_to_go_on() -> None:
    replay = replay_of(max_restarts=0)
    replay.supervisor.end.run_id = "demo-1"
    replay.loses("local", "its agent went away").gather()
    assert replay.outcome() == (Status.FAILED, 3)
    assert "`tfcluster up --resume demo-1`" in replay.error()


def test_a_node_that_leaves_stops_only_its_evaluator() -> None:
    replay = spread_gang("worker:0", "worker:1", "evaluator:0").leaves("nowhere")
    assert replay.stopped() == []
    assert replay.leaves("evaluator-0").stopped() == ["evaluator:0"]
    restart = replay.ended("evaluator:0").last(ev.Restarting)
    assert (restart.task, restart.counts) == ("evaluator:0", False)


def test_a_node_that_leaves_and_is_lost_at_once_is_still_a_preemption() -> None:
    replay = spread_gang().leaves("worker-1").loses("worker-1").ended("worker:0").gather(7)
    assert replay.last(ev.Restarting).counts is False


def test_the_gang_saves_before_a_node_is_taken_away_and_its_restart_does_not_count() -> None:
    replay = spread_gang(grace_s=30.0, max_restarts=0)
    replay.says("worker:0", "saves_on_sigterm").says("worker:1", "saves_on_sigterm")
    replay.leaves("worker-1")
    stops = [order for order in replay.orders if isinstance(order, do.StopTasks)]
    assert {(order.node, order.grace_s) for order in stops} == {
        ("worker-0", 30.0),
        ("worker-1", 30.0),
    }
    replay.leaves("worker-1")
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
    replay = spread_gang(grace_s=30.0).leaves("worker-1", loss)
    replay.exits("worker:1", 143).ended("worker:0").gather(70)
    assert (replay.cause()["kind"], replay.last(ev.Restarting).counts) == (kind, counts)
    assert "it was evicted" in replay.last(ev.Restarting).reason


def test_an_agent_that_does_not_answer_is_dropped() -> None:
    replay = replay_of().exits("worker:1", killed=signal.SIGKILL)
    replay.after(FAILURE_GRACE_S + AGENT_SLACK_S - 0.1)
    assert do.DropNode("local") not in replay.orders
    replay.after(0.2)
    assert do.DropNode("local") in replay.orders
    assert replay.last(ev.NodeLost).node == "local"
    assert do.GatherCheckpoints() in replay.orders


def test_an_evaluator_keeps_running_when_the_gang_restarts() -> None:
    replay = replay_of("worker:0", "worker:1", "evaluator:0")
    replay.exits("worker:1", killed=signal.SIGKILL)
    assert replay.stopped() == ["worker:0"]
    replay.ended("worker:0").gather(3).begin(2)
    attempts = {str(member.id): member.attempt for member in replay.supervisor.gang}
    assert attempts == {"worker:0": 2, "worker:1": 2, "evaluator:0": 1}


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
        "still trained (train.py:27) after worker:0 had ended: step 11 of 15 against 10"
    )
    assert cause["docs"] == "docs/failures.md#chief-alone"


def test_a_peer_that_notices_nothing_is_not_blamed_for_the_chief_s_early_end() -> None:
    replay = replay_of("worker:0", "worker:1", "worker:2").exits("worker:0")
    replay.exits("worker:1", 1, error=HEARTBEAT_TIMEOUT).after(CAUSE_WAIT_S)
    assert replay.stopped() == ["worker:2"]
    replay.ended("worker:2").gather()
    assert replay.cause()["task"] == "worker:1"
    assert replay.cause()["reason"].endswith(": worker:0 had ended before")


@pytest.mark.parametrize("first", ["worker:0", "worker:1"])
def test_a_failure_after_one_task_has_ended_waits_for_its_cause_in_a_third(first: str) -> None:
    second = "worker:1" if first == "worker:0" else "worker:0"
    replay = replay_of("worker:0", "worker:1", "worker:2").exits(first)
    replay.exits(second, 1, error=HEARTBEAT_TIMEOUT).after(3)
    assert replay.stopped() == [], "worker:2 may have failed first"
    replay.exits("worker:2", killed=signal.SIGKILL).gather()
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:2", "signal")


def test_what_is_forgiven_after_the_chief_s_success_is_said() -> None:
    replay = replay_of("chief:0", "worker:0", "ps:0").says("worker:0", "progress", step=9)
    replay.exits("chief:0").exits("ps:0", 1, last="boom").exits("worker:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)
    assert replay.last(ev.Warned).message == ("the run succeeded although ps:0 failed: exit code 1")


def test_a_gang_may_shrink_when_the_restart_budget_is_used_up() -> None:
    replay = replay_of("worker:0", "worker:1", "worker:2", max_restarts=0, min_workers=2)
    replay.exits("worker:0", killed=signal.SIGKILL).ended("worker:1", "worker:2").gather(40)
    assert replay.members() == ["worker:1", "worker:2"]
    replay.begin(2)
    assert str(replay.supervisor.gang.chief) == "worker:1"
    replay.exits("worker:1", 42).ended("worker:2").gather(45).begin(3)
    assert [event.members for event in replay.all(ev.Restarting)] == [("worker:1", "worker:2")] * 2
    replay.exits("worker:1", killed=signal.SIGKILL).ended("worker:2").gather(50)
    assert replay.outcome() == (Status.FAILED, 1)


@pytest.mark.parametrize("attempt", [1, 3])
def test_reports_of_an_earlier_attempt_are_ignored(attempt: int) -> None:
    replay = replay_of().exits("worker:1", killed=signal.SIGKILL).ended("worker:0").gather()
    replay.begin(2)
    stale = ev.TaskExited(task="worker:0", attempt=attempt, exit_code=1)
    replay.supervisor.exited(stale, replay.now)
    late = task_report("progress", task="worker:0", attempt=attempt, step=5)
    replay.supervisor.reported(late, replay.now)
    assert replay.supervisor.next_attempt is None
    assert replay.supervisor.take_orders() == []
