"""Messages of agents and reports of tasks become events or are dropped, and never raise."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.messages import read_report

from tfcluster.agent import budgets
from tfcluster.agent.catalogue import TaskEvent, TaskReport
from tfcluster.agent.message_fields import parse, replace
from tfcluster.agent.protocol import ProtocolError
from tfcluster.nodes.reports import PREPARE, ReportFilter, event_of_task, to_event
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.fold import first_state
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process

NAMED: dict[str, Any] = {"task": "worker:0", "attempt": 1}


def clean(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return the valid part of a task's report; None for an invalid report."""
    try:
        found = parse(event, TaskReport)
    except ProtocolError:
        return None
    return None if found is None else found.to_json()


def report(**event: Any) -> Event | None:
    """Return the event for a task's report after its validation."""
    found = parse(event, TaskReport)
    assert found is not None
    return event_of_task(replace(found, **NAMED))


TABLE: list[tuple[dict[str, Any], Event | None]] = [
    ({"type": "welcome", "pid": 1, "guard_pid": 2, "node": "of another name"},
     ev.NodeConnected(node="local", pid=1, guard_pid=2)),
    ({"type": "ports_held", "ports": {"worker:0": 5}},
     ev.PortsHeld(node="local", ports={"worker:0": 5})),
    ({"type": "task_started", **NAMED, "pid": 7},
     ev.TaskStarted(**NAMED, node="local", pid=7)),
    ({"type": "task_exited", **NAMED, "exit_code": None, "signal": 9, "ended_by": "tfcluster",
      "duration_s": 1.5, "peak_rss_bytes": 4},
     ev.TaskExited(**NAMED, exit_code=None, signal=9, ended_by="tfcluster", duration_s=1.5,
                   peak_rss_bytes=4)),
    ({"type": "log_lost", **NAMED, "bytes": 3, "reason": "disk full"},
     ev.LogLost(**NAMED, bytes=3, reason="disk full")),
    ({"type": "unkillable", **NAMED, "pids": [7]},
     ev.Warned(message="worker:0 (pid 7) was killed but still lives, in uninterruptible sleep"
                       " (a dead file server, a device driver)")),
    ({"type": "unkillable", "task": None, "pids": [7, 8]},
     ev.Warned(message="a process of an earlier attempt (pid 7, 8) was killed but still"
                       " lives, in uninterruptible sleep (a dead file server, a device driver)")),
    ({"type": "task_started", "task": PREPARE, "attempt": 0, "pid": 7},
     ev.PrepareStarted(node="local")),
    ({"type": "task_exited", "task": PREPARE, "attempt": 0, "exit_code": 4, "signal": None,
      "ended_by": "itself", "duration_s": 2.0},
     ev.PrepareFinished(node="local", exit_code=4, duration_s=2.0)),
    ({"type": "task_event", "task": PREPARE, "attempt": 0, "event": {"type": "task_ready"}}, None),
    ({"type": "refused", "reason": "odd"}, None),
    ({"type": "of a newer agent"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("message", "event"), TABLE, ids=lambda value: None)
def test_messages_of_an_agent_become_events(message: dict[str, Any], event: Event | None) -> None:
    assert to_event("local", read_report(message)) == event


def test_reports_of_a_task_become_events() -> None:
    assert report(type="task_ready") == ev.TaskReady(**NAMED)
    assert report(type="note", message="mind") == ev.Warned(message="worker:0: mind")
    assert report(type="progress", step=3, epoch=1, metrics={"loss": 2}, steps_per_second=4) == (
        ev.Progress(**NAMED, step=3, epoch=1, metrics={"loss": 2.0}, steps_per_second=4.0)
    )
    assert report(type="task_error", exception="E", message="m", file="a.py", line=3) == (
        ev.TaskError(**NAMED, exception="E", message="m", file="a.py", line=3)
    )
    assert report(type="task_devices", devices=["CPU", "GPU NVIDIA H200"]) == (
        ev.TaskDevices(**NAMED, devices=["CPU", "GPU NVIDIA H200"])
    )
    saved = {"type": "saved", "path": "ckpt-3", "step": 3, "at_ns": 7}
    assert clean(saved) == saved
    assert report(**saved) is None


def test_gpus_that_a_node_does_not_use_are_one_warning(paths: RunPaths) -> None:
    plan = plan_of("worker:0", "worker:1", "worker:2")
    state = first_state(plan, paths, this_process(), 100.0)
    for task, node in zip(state.tasks, ("a", "a", "b"), strict=True):
        task.node = node
    border = ReportFilter(state, (), lambda sentence: None)
    reports = [
        TaskEvent(task=task.task, attempt=1, event={"type": "unused_gpus", "count": 2})
        for task in (*state.tasks, *state.tasks)
    ]
    kept = [event_of_task(found) for one in reports if (found := border.take(one))]
    assert [str(vars(event)["message"]).partition(" its")[0] for event in kept] == [
        "worker:0 computes on the CPU, but nvidia-smi lists 2 GPUs on",
        "worker:2 computes on the CPU, but nvidia-smi lists 2 GPUs on",
    ]


MALFORMED: list[dict[str, Any]] = [
    {"type": "progress"},
    {"type": "progress", "step": None},
    {"type": "progress", "step": "many"},
    {"type": "progress", "step": math.inf},
    {"type": "progress", "step": -1},
    {"type": "progress", "step": 1 << 63},
    {"type": "task_error"},
    {"type": "task_error", "exception": "E"},
    {"type": "note"},
    {"type": "note", "message": 5},
    {"type": "task_devices", "devices": "CPU"},
    {"type": "unused_gpus", "count": -1},
    {"type": "saved"},
    {"type": "saved", "path": 5},
    {"type": "saved", "path": None, "step": 1},
    {"type": "chaos_injected", "fault": None},
    {"type": "of a newer version"},
    {"type": ["progress"]},
    {},
]


@pytest.mark.parametrize("event", MALFORMED, ids=repr)
def test_a_malformed_report_is_dropped(event: dict[str, Any]) -> None:
    assert clean(event) is None


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"metrics": 5}, {}),
        ({"metrics": {"loss": "high", "accuracy": 1}}, {"metrics": {"accuracy": 1.0}}),
        ({"metrics": {"loss": 10**400}}, {"metrics": {"loss": math.inf}}),
        ({"epoch": "first", "steps_per_second": -1.0, "examples_per_second": math.nan}, {}),
        ({"step": 2.0, "epoch": 3}, {"step": 2, "epoch": 3}),
        ({"of_a_newer_version": 1}, {}),
    ],
    ids=repr,
)
def test_an_invalid_optional_field_is_left_out(
    given: dict[str, Any], taken: dict[str, Any]
) -> None:
    assert clean({"type": "progress", "step": 1, **given}) == (
        {"type": "progress", "step": 1} | taken
    )


def test_a_saved_report_without_a_valid_step_has_none() -> None:
    for step in ("3", 3.5, True, [3]):
        found = clean({"type": "saved", "path": "ckpt", "step": step})
        assert found == {"type": "saved", "path": "ckpt"}


def test_long_strings_and_many_metrics_are_truncated() -> None:
    many = {f"{number} " + "n" * 999: 1.0 for number in range(500)}
    found = clean({"type": "progress", "step": 1, "metrics": many})
    assert found is not None
    assert len(found["metrics"]) == budgets.REPORT_NAMES
    assert {len(name) for name in found["metrics"]} == {budgets.REPORT_NAME}
    note = clean({"type": "note", "message": "x" * 50_000})
    assert note == {"type": "note", "message": "x" * budgets.NOTE_TEXT + " …"}
