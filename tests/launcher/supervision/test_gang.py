"""A gang knows the grace of each task that is stopped, and the tasks that are to blame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.messages import task_report

from tfcluster.node_loss import NodeLoss
from tfcluster.plans.keras_settings import settings_json
from tfcluster.plans.plan import EnvVar
from tfcluster.rundir.events import RunStopping, TaskExited
from tfcluster.rundir.states import Status
from tfcluster.spec.model import ClusterSpec
from tfcluster.supervision.decisions import Next, Outcome, Record, StopTasks
from tfcluster.supervision.failure import Kind
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.run_state import RunState

SAVES = {"kind": "saves_on_sigterm"}
WAITS = {"kind": "waiting_for_peers"}
READY = {"kind": "ready"}
PROGRESS = {"kind": "progress", "step": 1}


def started(*tasks: str, hooks: bool = True) -> Gang:
    return start_all(Gang(plan_of(*tasks, hooks=hooks)))


def start_all(gang: Gang) -> Gang:
    for member in list(gang):
        gang.put(replace(member, started_at=0.0))
    return gang


def change(gang: Gang, task: str, **facts: Any) -> None:
    gang.put(replace(gang[task], **facts))


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
        member = member.after(task_report(**report), 0.0)
    assert member.stop_grace_s(most_s) == expected


def test_tasks_with_the_same_grace_are_stopped_by_one_order() -> None:
    state = RunState(plan_of("worker:0", "worker:1", "worker:2"))
    start_all(state.gang).note_report(state.gang["worker:1"], task_report(**SAVES), 0.0)
    state.stop_tasks(state.gang.running(), "", 0.0, grace_s=None)
    stops = [order for order in state.orders if isinstance(order, StopTasks)]
    assert {stop.tasks: stop.grace_s for stop in stops} == {
        ("worker:0", "worker:2"): 2.0,
        ("worker:1",): 30.0,
    }
    state.orders.clear()
    state.stop_tasks(state.gang.running(), "", 0.0, grace_s=0.0)
    (at_once,) = [order for order in state.orders if isinstance(order, StopTasks)]
    assert (at_once.grace_s, len(at_once.tasks)) == (0.0, 3)


@pytest.mark.parametrize(("is_started", "longest_s"), [(True, 30.0), (False, 0.0)])
def test_the_longest_grace_of_the_running_tasks_is_announced(
    is_started: bool, longest_s: float
) -> None:
    state = RunState(plan_of("worker:0", "worker:1"))
    if is_started:
        start_all(state.gang).note_report(state.gang["worker:1"], task_report(**SAVES), 0.0)
    state.end_run("Ctrl-C", Outcome(Status.INTERRUPTED, 130), 0.0, grace_s=None)
    assert state.orders[0] == Record(RunStopping(why="Ctrl-C", grace_s=longest_s))


def exit_of(gang: Gang, task: str, *, ended_by: str = "itself", description: str = "") -> None:
    event = TaskExited(task=task, attempt=1, exit_code=1, ended_by=ended_by)
    gang.note_exit(gang[task], event, error=None, last_lines=description)


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
    gang.note_report(gang["worker:0"], task_report("serving"), 0.0)
    assert gang.idle() == []
    change(gang, "worker:1", is_lost=True)
    assert [member.name for member in gang.idle()] == ["ps:0", "worker:0"]
    for task in ("ps:0", "worker:0"):
        change(gang, task, is_stopping=True)
    assert gang.idle() == []


def test_tasks_of_a_lost_node_neither_run_nor_succeed() -> None:
    gang = started()
    gang.lose_node("local", NodeLoss("its agent went away"))
    assert gang.running() == []
    assert not any(standing.running or standing.ok for standing in gang.standings)
    assert gang.judge() is Next.FAILED
    assert [failure.kind for failure in gang.failures] == [Kind.NODE_LOST] * 2
    assert gang.get("worker:7") is gang.get("worker:0", attempt=2) is None


def test_a_gang_that_ran_before_a_restart_counts_as_started() -> None:
    """A run that is stopped while checkpoints are restored would otherwise not copy its outputs."""
    gang = started("worker:0", "worker:1")
    gang.enlist([member.id for member in gang], 2)
    assert gang.has_started
