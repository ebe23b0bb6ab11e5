"""A gang knows the grace of each task that is stopped, and the tasks that are to blame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.messages import task_report

from tfcluster.plan.keras_settings import settings_json
from tfcluster.plan.plan import EnvVar, TaskId
from tfcluster.rundir.events import TaskExited
from tfcluster.spec.model import ClusterSpec
from tfcluster.supervision.attempt_state import Orders
from tfcluster.supervision.decisions import StopTasks
from tfcluster.supervision.failure import Kind
from tfcluster.supervision.gang import Gang

SAVES = {"kind": "saves_on_sigterm"}
WAITS = {"kind": "waiting_for_peers"}
READY = {"kind": "ready"}
PROGRESS = {"kind": "progress", "step": 1}


def started(*tasks: str, hooks: bool = True) -> Gang:
    gang = Gang(plan_of(*tasks, hooks=hooks))
    for member in gang:
        member.started_at = 0.0
    return gang


@pytest.mark.parametrize(
    ("hooks", "reports", "most_s", "expected"),
    [
        (True, [], 30.0, 2.0),
        (True, [], 1.0, 1.0),
        (True, [SAVES], 30.0, 30.0),
        (True, [SAVES], 300.0, 300.0),
        (True, [SAVES, WAITS], 30.0, 0.0),
        (True, [WAITS, READY], 30.0, 2.0),
        (True, [WAITS, PROGRESS, SAVES], 30.0, 30.0),
        (False, [], 30.0, 10.0),
        (False, [], 5.0, 5.0),
    ],
)
def test_the_grace_of_a_task_depends_on_its_reports_and_its_hooks(
    hooks: bool, reports: list[dict[str, Any]], most_s: float, expected: float
) -> None:
    (member,) = started("worker:0", hooks=hooks)
    for report in reports:
        member.note_report(task_report(**report), 0.0)
    assert member.stop_grace_s(most_s) == expected


def test_tasks_with_the_same_grace_are_stopped_by_one_order() -> None:
    gang = started("worker:0", "worker:1", "worker:2")
    saver = gang.get("worker:1")
    assert saver is not None
    saver.note_report(task_report(**SAVES), 0.0)
    orders, running = Orders(30.0), gang.running()
    orders.stop(running, "", 0.0, grace_s=None)
    stops = [action for action in orders.take() if isinstance(action, StopTasks)]
    assert {stop.tasks: stop.grace_s for stop in stops} == {
        ("worker:0", "worker:2"): 2.0,
        ("worker:1",): 30.0,
    }
    assert orders.longest_grace_s(running, None) == 30.0
    orders.stop(running, "", 0.0, grace_s=0.0)
    (at_once,) = [action for action in orders.take() if isinstance(action, StopTasks)]
    assert (at_once.grace_s, len(at_once.tasks)) == (0.0, 3)
    assert orders.longest_grace_s([], None) == 0.0


def exit_of(gang: Gang, task: str, *, ended_by: str = "itself", description: str = "") -> None:
    member = gang.get(task)
    assert member is not None
    event = TaskExited(task=task, attempt=1, exit_code=1, ended_by=ended_by)
    gang.note_exit(member, event, error=None, last_lines=description)


def test_a_task_stopped_by_tfcluster_is_never_blamed() -> None:
    gang = started()
    exit_of(gang, "worker:0", ended_by="tfcluster")
    assert gang.failures == []
    assert [str(member.id) for member in gang.running()] == ["worker:1"]


def test_the_hint_of_a_failure_considers_that_the_spec_asks_for_keras_3() -> None:
    message = "Traceback (most recent call last):\nValueError: Cannot convert '1' to a shape.\n"
    for version, is_asked in (("3", True), ("auto", False)):
        spec = ClusterSpec.model_validate(
            {"cluster": {"worker": 1}, "job": {"script": "x.py"}, "keras": {"version": version}}
        )
        settings = EnvVar("TFCLUSTER_SETTINGS", settings_json(spec), "tfcluster")
        plan = plan_of("worker:0")
        command = replace(plan.tasks[0].command, env=(settings,))
        gang = Gang(replace(plan, tasks=(replace(plan.tasks[0], command=command),)))
        exit_of(gang, "worker:0", description=message)
        (failure,) = gang.failures
        assert ((failure.hint or "").startswith("the spec asks for Keras 3")) is is_asked


def test_idle_tasks_are_stopped_once_and_servers_only_when_no_worker_trains() -> None:
    gang = started("ps:0", "worker:0", "worker:1")
    serving, training = gang.get("worker:0"), gang.get("worker:1")
    assert serving is not None
    assert training is not None
    serving.note_report(task_report("serving"), 0.0)
    assert gang.idle() == []
    training.is_lost = True
    ps, worker = gang.idle()
    assert worker is serving
    ps.is_stopping = worker.is_stopping = True
    assert gang.idle() == []


def test_tasks_of_a_lost_node_neither_run_nor_succeed() -> None:
    gang = started()
    gang.lose_node("local", "its agent went away")
    assert gang.running() == []
    assert not any(end.running or end.ok for end in gang.ends(TaskId("worker", 0)))
    assert [failure.kind for failure in gang.failures] == [Kind.NODE_LOST] * 2
    assert gang.get("worker:7") is gang.get(None) is None


def test_a_gang_that_ran_before_a_restart_counts_as_started() -> None:
    """A run that is stopped while checkpoints are restored would otherwise not copy its outputs."""
    gang = started("worker:0", "worker:1")
    gang.enlist([member.id for member in gang], 2)
    assert gang.has_started
