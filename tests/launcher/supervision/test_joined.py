"""A part of a gang does not blame its tasks for a failure on another machine, nor restart them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import COLLATERAL, Replay

from tfcluster.errors import CollateralError, DeadlineError
from tfcluster.plans.plan import Supervision
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision.verdicts import CAUSE_WAIT_S


def part(*local: str, of: tuple[str, ...], joins: bool = True, **supervision: Any) -> Replay:
    """Return a replay of the tasks `local`, which are a part of the gang `of`."""
    whole = plan_of(*of)
    tasks = tuple(task for task in whole.tasks if str(task.id) in local)
    others = tuple(task for task in whole.tasks if task not in tasks)
    policy = Supervision(**supervision)
    return Replay(replace(whole, joins=joins, tasks=tasks, elsewhere=others, supervision=policy))


THREE = ("worker:0", "worker:1", "worker:2")


def test_a_hanging_task_of_a_part_is_not_blamed() -> None:
    replay = part("worker:1", "worker:2", of=THREE)
    replay.exits("worker:1", 1, last=COLLATERAL).after(CAUSE_WAIT_S + 1)
    assert replay.stopped() == ["worker:2"]
    replay.ended("worker:2").gather()
    assert replay.outcome() == (Status.FAILED, 5)
    assert isinstance(
        replay.supervisor.outcome and replay.supervisor.outcome.error, CollateralError
    )
    assert replay.cause()["task"] == "another machine"
    assert replay.cause()["reason"] == "worker:0 failed first"
    assert replay.last(ev.Diagnosis).collateral == ("worker:1",)


def test_a_failure_caused_by_a_task_started_by_hand_is_not_restarted() -> None:
    replay = part("worker:0", "worker:2", of=THREE, joins=False, max_restarts=5)
    replay.exits("worker:0", 1, last=COLLATERAL).after(CAUSE_WAIT_S + 1)
    replay.ended("worker:2").gather()
    assert replay.supervisor.next_attempt is None
    assert replay.outcome() == (Status.FAILED, 1)
    assert replay.cause()["task"] == "worker:1"
    assert (
        "worker:1 failed first; it was started by hand: see its terminal"
        in replay.cause()["reason"]
    )
    assert "by hand" in replay.cause()["not_restarted"]


def test_a_part_without_the_chief_succeeds_when_its_tasks_succeed() -> None:
    replay = part("worker:1", "worker:2", of=THREE, joins=False)
    assert str(replay.supervisor.gang.chief) == "worker:0"
    replay.exits("worker:1").exits("worker:2")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


@pytest.mark.parametrize(
    "end", [{"code": 42}, {"killed": 9}, {"code": 1, "last": "Could not start gRPC server"}]
)
def test_a_part_is_not_restarted_even_where_a_restart_would_be_free(end: dict[str, Any]) -> None:
    replay = part("worker:1", of=THREE, max_restarts=5, restart_on_error=True)
    replay.exits("worker:1", **end).gather()
    assert replay.supervisor.next_attempt is None
    assert replay.outcome() == (Status.FAILED, 1)
    assert "join" in replay.cause()["not_restarted"]


def test_a_local_cause_is_blamed_rather_than_another_machine() -> None:
    replay = part("worker:1", "worker:2", of=THREE)
    replay.exits("worker:1", 1, last=COLLATERAL).exits("worker:2", 3).gather()
    assert replay.outcome() == (Status.FAILED, 1)
    assert replay.cause()["task"] == "worker:2"


def test_a_worker_may_end_long_before_the_others_in_a_part_without_the_chief() -> None:
    replay = part("worker:1", "worker:2", of=THREE, finish_grace_s=5)
    replay.exits("worker:1").after(500)
    assert not replay.stopped()
    replay.exits("worker:2")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_a_part_with_only_an_evaluator_has_no_gang() -> None:
    replay = part("evaluator:0", of=("chief:0", "evaluator:0"))
    replay.exits("evaluator:0")
    assert replay.outcome() == (Status.SUCCEEDED, 0)


def test_the_start_deadline_names_absent_tasks_of_other_machines_and_no_waiting_task() -> None:
    replay = part("worker:1", of=THREE, start_deadline_s=10)
    absent = "worker:0 at 10.0.0.1:2222: nothing listens there yet"
    replay.supervisor.peers_dialled([absent])
    replay.says("worker:1", "waiting_for_peers").after(12).ended("worker:1")
    assert replay.outcome() == (Status.TIMED_OUT, 4)
    error = replay.supervisor.outcome and replay.supervisor.outcome.error
    assert isinstance(error, DeadlineError)
    assert absent in error.message
    assert "worker:1" not in error.message
    assert not [event for event in replay.events if isinstance(event, ev.Diagnosis)]


def test_the_start_deadline_names_local_tasks_if_all_others_can_be_reached() -> None:
    replay = part("worker:1", of=THREE, start_deadline_s=10)
    replay.says("worker:1", "waiting_for_peers").after(12).ended("worker:1")
    error = replay.supervisor.outcome and replay.supervisor.outcome.error
    assert isinstance(error, DeadlineError)
    assert "worker:1 waits for its peers" in error.message
