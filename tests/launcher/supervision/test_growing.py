"""A gang grows again at a checkpoint once lost nodes are back, and changes its size on request."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import Replay, replay_of, spread_gang

from tfcluster.errors import UsageError
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.membership import Membership
from tfcluster.supervision.supervisor import Supervisor

WORKERS = ("worker:0", "worker:1", "worker:2")


def gang(*tasks: str, **supervision: Any) -> Replay:
    """Return a gang of nodes of their own that may shrink, or of three workers."""
    policy = {"min_workers": 1, "grow_every_s": 60.0, **supervision}
    return spread_gang(*(tasks or WORKERS), **policy)


def shrunk(*, lost: str = "worker:2", **supervision: Any) -> Replay:
    """Return a run that goes on without `lost`, whose node is gone, in attempt 2."""
    replay, node = gang(**supervision), lost.replace(":", "-")
    left = [task for task in WORKERS if task != lost]
    replay.loses(node).ended(*left).gather(7).gone(node)
    assert replay.members() == left
    return replay.begin(2)


def back(replay: Replay, node: str = "worker-2") -> Replay:
    replay.supervisor.node_back(node, replay.now)
    replay._take()
    return replay


def saves(replay: Replay, step: int = 9) -> Replay:
    """Report a checkpoint of the present attempt that was gathered."""
    replay.supervisor.checkpoint_gathered(step, replay.now)
    replay._take()
    return replay


def test_a_gang_grows_at_the_next_checkpoint_after_its_node_is_back() -> None:
    replay = saves(shrunk().after(100))
    assert replay.stopped() == [], "the node is not back"
    back(replay)
    assert replay.last(ev.NodeBack).tasks == ["worker:2"]
    assert replay.last(ev.NodeBack).joins_in_s == 0.0
    assert replay.stopped() == [], "there is no new checkpoint"
    saves(replay)
    assert replay.stopped() == ["worker:0", "worker:1"]
    before = len([event for event in replay.events if isinstance(event, ev.Diagnosis)])
    replay.ended("worker:0", "worker:1").gather(9)
    assert replay.members() == list(WORKERS)
    event = replay.last(ev.Restarting)
    assert event.reason == "worker:2 is back: growing to 3 workers"
    assert (event.counts, event.planned, event.members, event.from_step) == (False, True, None, 9)
    assert event.attempt == 3
    assert before == len([event for event in replay.events if isinstance(event, ev.Diagnosis)])
    replay.begin(3).exits("worker:0").exits("worker:1").exits("worker:2")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_tasks_get_the_whole_grace_period_to_save_before_the_gang_grows() -> None:
    replay = shrunk(grace_s=50.0).after(100).says("worker:0", "saves_on_sigterm")
    saves(back(replay))
    graces = {o.tasks: o.grace_s for o in replay.orders if isinstance(o, do.StopTasks)}
    assert graces[("worker:0",)] == 50.0


def test_growing_waits_until_grow_every_s_has_passed_since_the_gang_shrank() -> None:
    replay = back(shrunk().after(20))
    assert replay.last(ev.NodeBack).joins_in_s == 40.0
    assert saves(replay.after(30)).stopped() == []
    assert saves(replay.after(20)).stopped() == ["worker:0", "worker:1"]


def test_a_flapping_node_makes_the_gang_grow_once_per_grow_every_s() -> None:
    replay = saves(back(shrunk().after(100)))
    replay.ended("worker:0", "worker:1").gather(9).begin(3).loses("worker-2")
    replay.ended("worker:0", "worker:1").gather(9).gone("worker-2")
    saves(back(replay.begin(4)).after(59), 11)
    assert replay.supervisor.end.is_training
    saves(replay.after(2), 12)
    assert not replay.supervisor.end.is_training


def test_a_node_that_is_lost_again_before_the_checkpoint_changes_nothing() -> None:
    replay = back(shrunk().after(100))
    replay.loses("worker-2").gone("worker-2")
    saves(replay)
    assert (replay.stopped(), replay.supervisor.end.is_training) == ([], True)
    assert saves(back(replay)).stopped() == ["worker:0", "worker:1"]


def test_a_node_that_is_lost_while_the_gang_stops_to_grow_is_left_out_again() -> None:
    replay = saves(back(shrunk().after(100)))
    replay.loses("worker-2").gone("worker-2").ended("worker:0", "worker:1").gather(9)
    assert replay.members() == ["worker:0", "worker:1"]


def test_a_new_agent_that_is_lost_before_the_bigger_gang_starts_makes_it_smaller_again() -> None:
    replay = saves(back(shrunk().after(100))).ended("worker:0", "worker:1").gather(9)
    replay.loses("worker-2").gone("worker-2")
    assert replay.members() == ["worker:0", "worker:1"]
    assert replay.last(ev.Restarting).planned is None


def test_with_grow_off_a_node_that_is_back_is_not_used() -> None:
    replay = saves(back(shrunk(grow="off").after(1000)))
    assert replay.last(ev.NodeBack).joins_in_s is None
    assert replay.supervisor.end.is_training


def test_a_task_whose_failures_are_used_up_does_not_come_back() -> None:
    replay = replay_of(*WORKERS, max_restarts=0, min_workers=2, grow_every_s=0.0)
    replay.exits("worker:2", killed=signal.SIGKILL).ended("worker:0", "worker:1").gather(40)
    saves(replay.begin(2).after(1000), 50)
    assert replay.supervisor.end.is_training
    with pytest.raises(UsageError, match="worker:2: it cannot be restarted any more"):
        replay.supervisor.scale_to(3, replay.now)


def test_a_restart_after_a_failure_takes_in_a_node_that_is_back() -> None:
    replay = back(shrunk().after(100))
    replay.exits("worker:1", killed=signal.SIGKILL).ended("worker:0").gather(8)
    assert replay.members() == list(WORKERS)
    assert replay.last(ev.Restarting).reason == "worker:1: killed by SIGKILL"


def test_a_gang_that_has_nearly_finished_does_not_grow() -> None:
    replay = back(shrunk().after(100))
    replay.says("worker:0", "progress", step=40, total_steps=40)
    saves(replay, 40)
    assert replay.supervisor.end.is_training
    replay = back(shrunk().after(100)).exits("worker:1")
    assert saves(replay).stopped() == []


def test_a_chief_that_finishes_before_it_is_stopped_ends_the_run() -> None:
    replay = saves(back(shrunk().after(100)))
    replay.exits("worker:0").ended("worker:1").gather(9)
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_planned_restarts_do_not_count_against_max_restarts() -> None:
    replay = back(shrunk(max_restarts=2))  # the loss of the node was the first restart
    for attempt in (3, 4, 5):
        scale(replay, 3 if attempt % 2 else 2)
        replay.ended(*[m.name for m in replay.supervisor.gang]).gather(10 * attempt)
        assert replay.last(ev.Restarting).of >= attempt
        replay.begin(attempt)
    replay.exits("worker:1", killed=signal.SIGKILL).ended("worker:0", "worker:2").gather(60)
    assert replay.members() == list(WORKERS), "one restart is left"


def test_a_run_that_gathers_nothing_grows_when_its_chief_has_saved() -> None:
    replay = shrunk().after(100)
    replay.supervisor.restarting.gathers = False
    back(replay).says("worker:1", "saved", path="x", step=9)
    assert replay.stopped() == []
    assert replay.says("worker:0", "saved", path="x", step=9).stopped() == ["worker:0", "worker:1"]


def test_an_evaluator_of_a_lost_node_is_taken_in_with_a_worker() -> None:
    tasks = ("chief:0", "worker:0", "evaluator:0")
    replay = gang(*tasks)
    replay.loses("worker-0").loses("evaluator-0").ended("chief:0").gather(7)
    replay.gone("worker-0").gone("evaluator-0")
    assert replay.members() == ["chief:0"]
    replay.begin(2).after(100)
    saves(back(back(replay, "evaluator-0"), "worker-0")).ended("chief:0").gather(9)
    assert replay.members() == list(tasks)


def test_a_former_chief_is_the_chief_again() -> None:
    replay = shrunk(lost="worker:0").after(100)
    assert str(replay.supervisor.gang.chief) == "worker:1"
    saves(back(replay, "worker-0")).ended("worker:1", "worker:2").gather(9).begin(3)
    assert str(replay.supervisor.gang.chief) == "worker:0"


def test_ctrl_c_while_the_gang_stops_to_grow_ends_the_run() -> None:
    replay = saves(back(shrunk().after(100)))
    replay.stop().ended("worker:0", "worker:1")
    assert replay.outcome() == (Status.INTERRUPTED, 130)


# -- on request --------------------------------------------------------------------------------


def scale(replay: Replay, workers: int) -> str:
    answer = replay.supervisor.scale_to(workers, replay.now)
    replay._take()
    return answer


def test_a_request_drops_the_highest_workers_at_once_and_takes_them_in_again() -> None:
    replay = gang("chief:0", "worker:0", "worker:1", min_workers=None)
    words = "restarting with 1 worker from the newest checkpoint, worker:0, worker:1 out"
    assert scale(replay, 1) == words
    assert replay.stopped() == ["chief:0", "worker:0", "worker:1"]
    replay.ended("chief:0", "worker:0", "worker:1").gather(5)
    assert replay.members() == ["chief:0"]
    event = replay.last(ev.Restarting)
    assert (event.reason, event.counts, event.planned) == ("scaling to 1 worker", False, True)
    saves(replay.begin(2).after(5000), 6)
    assert replay.supervisor.end.is_training, "they do not come back by themselves"
    assert scale(replay, 2) == "restarting with 2 workers from the newest checkpoint, worker:0 in"
    replay.ended("chief:0").gather(7)
    assert replay.members() == ["chief:0", "worker:0"]


def test_a_request_for_the_present_number_restarts_nothing() -> None:
    replay = gang()
    assert scale(replay, 3) == "it has 3 workers already"
    assert (replay.orders, replay.supervisor.end.is_training) == ([], True)


def test_a_gang_grows_by_itself_only_up_to_the_requested_number() -> None:
    replay = shrunk().after(100)
    assert scale(replay, 2) == "it has 2 workers already"
    assert saves(back(replay)).stopped() == []
    assert replay.last(ev.NodeBack).joins_in_s is None
    assert "worker:2 in" in scale(replay, 3)


def test_a_request_during_a_restart_changes_the_next_gang() -> None:
    replay = gang().exits("worker:1", killed=signal.SIGKILL)
    scale(replay, 2)
    replay.ended("worker:0", "worker:2").gather(5)
    assert replay.members() == ["worker:0", "worker:1"]
    scale(replay, 1)
    assert replay.members() == ["worker:0"]
    assert replay.supervisor.next_attempt is not None
    assert replay.supervisor.next_attempt.number == 2


def test_requests_that_cannot_be_met_are_refused_with_the_reason() -> None:
    replay = shrunk(min_workers=2)
    refusals = {
        1: "cannot have 1 worker: its spec has 3 workers and supervision.min_workers 2",
        4: "cannot have 4 workers: its spec has 3 workers",
        3: "cannot have 3 workers now, only 2: worker:2: its node is lost",
    }
    for workers, message in refusals.items():
        with pytest.raises(UsageError, match=re.escape(message)):
            replay.supervisor.scale_to(workers, replay.now)
    replay.stop()
    with pytest.raises(UsageError, match="it is ending"):
        replay.supervisor.scale_to(2, replay.now)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "plain"}, "this job has kind plain"),
        ({"kind": "tuner"}, "this job has kind tuner"),
        ({"strategy": "parameter_server"}, "this job has strategy parameter_server"),
        ({"joins": True}, "started by `tfcluster join`"),
    ],
)
def test_only_a_gang_that_tfcluster_restarts_can_be_scaled(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Membership(replace(plan_of(), **change)).check_plan(1)


def test_a_run_cannot_be_scaled_before_its_tasks_have_started() -> None:
    with pytest.raises(UsageError, match="its tasks have not started yet"):
        Supervisor(plan_of()).scale_to(2, 100.0)
