"""Whatever a task says of itself, nobody but that task is the worse for it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.run import chaos, reports

from .story import COLLATERAL, story

KINDS = (
    *("waiting_for_peers", "ready", "progress", "saves_on_sigterm", "saved", "evaluated", "trial"),
    *("trial_ended", "search_ended", "verdict", "setting_read", "alive", "error", "note", "chaos"),
    *("serving", "saved_elsewhere"),
)
NAMES = (
    *("step", "epoch", "metrics", "path", "status", "ok", "reason", "name", "id", "tuner", "fault"),
    *(
        "steps_per_execution",
        "steps_per_second",
        "mean_steps_per_second",
        "exception",
        "file",
        "line",
        "traceback",
        "examples_per_second",
        "message",
        "values",
        "task",
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)
REPORTS = st.builds(
    lambda kind, fields: {**fields, "type": kind},
    st.sampled_from(KINDS) | VALUES,
    st.dictionaries(st.sampled_from(NAMES), VALUES),
)


@given(st.lists(REPORTS, max_size=6))
@settings(max_examples=50)
def test_no_report_can_end_the_supervisor(strange: list[dict[str, Any]]) -> None:
    told = story("worker:0", "worker:1", stall_deadline_s=60)
    for report in strange:
        told.supervisor.reported("worker:0", 1, report, told.now)
        reports.saved(report)
        chaos.order((), str(report.get("fault")))
        told.after(0.5)
    told.exits("worker:1", 1, last=COLLATERAL).after(60).exits("worker:0", 0)
    assert all(member.is_over for member in told.supervisor.gang)
