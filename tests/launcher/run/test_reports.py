"""Whatever an agent passes on from its tasks becomes an event, or nothing; never an error."""

from __future__ import annotations

import json
import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.run import events as ev
from tfcluster.run.events import Event, to_line
from tfcluster.run.fold import apply, first_state
from tfcluster.run.gang import Gang
from tfcluster.run.identity import ProcessIdentity
from tfcluster.run.paths import RunPaths
from tfcluster.run.reports import PREPARE, saved, to_event
from tfcluster.run.snapshot import RunSnapshot
from tfcluster.ui.panels import closing_panel, status_panel
from tfcluster.ui.render import Panel
from tfcluster.ui.talk import format_event

from .conftest import plan_of

NAMED: dict[str, Any] = {"task": "worker:0", "attempt": 1}


def report(**event: Any) -> Event | None:
    return to_event("local", {"type": "task_event", **NAMED, "event": event})


TABLE: list[tuple[dict[str, Any], Event | None]] = [
    ({"type": "welcome", "pid": 1, "guard_pid": 2},
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
     ev.Warned(message="worker:0 (pid 7) was killed and still lives, in uninterruptible sleep:"
                       " a dead file server, a device driver")),
    ({"type": "unkillable", "task": None, "pids": [7, 8]},
     ev.Warned(message="something an earlier attempt left running (pid 7, 8) was killed and still"
                       " lives, in uninterruptible sleep: a dead file server, a device driver")),
    ({"type": "task_started", "task": PREPARE, "attempt": 0, "pid": 7},
     ev.PrepareStarted(node="local")),
    ({"type": "task_exited", "task": PREPARE, "attempt": 0, "exit_code": 4, "duration_s": 2.0},
     ev.PrepareFinished(node="local", exit_code=4, duration_s=2.0)),
    ({"type": "task_event", "task": PREPARE, "attempt": 0, "event": {"type": "ready"}}, None),
    ({"type": "refused", "reason": "odd"}, None),
    ({"type": "of a newer agent"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("message", "event"), TABLE, ids=lambda value: None)
def test_messages_of_an_agent(message: dict[str, Any], event: Event | None) -> None:
    assert to_event("local", message) == event


def test_reports_of_a_task() -> None:
    assert report(type="ready") == ev.TaskReady(**NAMED)
    assert report(type="note", message="mind") == ev.Warned(message="worker:0: mind")
    assert report(type="progress", step=3, epoch=1, metrics={"loss": 2}, steps_per_second=4) == (
        ev.Progress(**NAMED, step=3, epoch=1, metrics={"loss": 2.0}, steps_per_second=4.0)
    )
    assert report(type="error", exception="E", message="m", file="a.py", line=3) == (
        ev.TaskError(**NAMED, exception="E", message="m", file="a.py", line=3)
    )
    found = saved({"type": "saved", "path": "ckpt-3", "step": 3, "at_ns": 7})
    assert found == ("ckpt-3", 3, 7)


MALFORMED: list[dict[str, Any]] = [
    {"type": "progress"},
    {"type": "progress", "step": None},
    {"type": "progress", "step": "many"},
    {"type": "progress", "step": math.inf},
    {"type": "progress", "step": 1, "metrics": 5},
    {"type": "progress", "step": 1, "metrics": {"loss": "high"}},
    {"type": "progress", "step": 1, "metrics": {"loss": 10**400}},
    {"type": "error"},
    {"type": "error", "exception": "E"},
    {"type": "note"},
    {"type": ["progress"]},
    {},
]


@pytest.mark.parametrize("event", MALFORMED, ids=repr)
def test_a_malformed_report_passes_unseen(event: dict[str, Any]) -> None:
    assert report(**event) is None


@pytest.mark.parametrize(
    "event",
    [
        {"type": "saved"},
        {"type": "saved", "path": 5},
        {"type": "saved", "path": None, "step": 1},
        {"type": "ready", "path": "x"},
    ],
    ids=repr,
)
def test_a_malformed_saved_is_none(event: dict[str, Any]) -> None:
    assert saved(event) is None


def test_a_saved_without_a_usable_step_has_none() -> None:
    for step in ("3", 3.5, True, [3]):
        assert saved({"type": "saved", "path": "ckpt", "step": step}) == ("ckpt", None, None)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
_NAMES = (
    "step", "epoch", "metrics", "steps_per_second", "examples_per_second", "exception", "message",
    "file", "line", "traceback", "path", "name",
)  # fmt: skip
_KINDS = ("ready", "waiting_for_peers", "progress", "error", "saves_on_sigterm", "saved",
          "setting_read", "note")  # fmt: skip
_REPORTS = st.fixed_dictionaries(
    {"type": st.sampled_from(_KINDS) | _VALUES},
    optional={name: _VALUES | st.dictionaries(st.text(max_size=4), st.floats()) for name in _NAMES},
)
PATHS = RunPaths(Path("/runs/demo-20260914-153012-k7f3"))


def new_state() -> RunSnapshot:
    me = ProcessIdentity(socket.gethostname(), "boot", os.getpid(), 1)
    return first_state(plan_of(), PATHS, me, 1.0)


@settings(max_examples=30)
@given(st.lists(_REPORTS, max_size=5))
def test_no_report_breaks_state_files_gang_or_what_people_see(
    reports: list[dict[str, Any]],
) -> None:
    state, gang = new_state(), Gang(plan_of())
    member = gang.get("worker:0")
    assert member is not None
    for raw in reports:
        received = json.loads(json.dumps(raw))
        saved(received)
        gang.note_report(member, received, 0.0)
        message = {"type": "task_event", **NAMED, "event": received}
        if (event := to_event("local", message)) is None:
            continue
        line = to_line(event, seq=1, time=2.0)
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        format_event(json.loads(line))
        apply(state, event, 2.0, PATHS)
    assert RunSnapshot.from_json(json.loads(json.dumps(state.to_json()))).tasks[0].task
    last = ev.TaskExited(**NAMED, exit_code=1)
    gang.note_exit(member, last, error=state.tasks[0].error, last_lines="")
    assert gang.failures[0].reason
    assert isinstance(status_panel(state, PATHS, now=3.0), Panel)
    assert isinstance(closing_panel(state, PATHS), Panel)
