"""A run ends normally whatever messages a node or task sends, in any form and at any time.

The real coordinator runs a gang of two over real links. The agent of one node sends the expected
messages and also generated ones: of every kind, whole, without a field or with a changed value,
twice, before the start, during the restore, after the end. The run must end normally, its files
must be readable, and the other node must obey to the end. `TFCLUSTER_FUZZ=5000` sets the number
of examples.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.launcher.coordinator.scripted import (
    HANG_UP,
    LOCAL,
    MOMENTS,
    REMOTE,
    Agent,
    Ended,
    Frame,
    perform,
    plan_on_two_nodes,
)
from tests.launcher.messages import kinds_of, sample

from tfcluster.agent import catalogue as msg
from tfcluster.agent import protocol
from tfcluster.rundir import chaos, registry, run_writer
from tfcluster.rundir.figures import figures_of
from tfcluster.ui.event_lines import format_event
from tfcluster.ui.figure_text import Trend, draw_trend
from tfcluster.ui.live_panel import Scene, draw_frame, format_status_line
from tfcluster.ui.panels import closing_panel, root_cause_panel, runs_grid, status_panel
from tfcluster.ui.render import part_lines, plain_text

EXAMPLES = int(os.environ.get("TFCLUSTER_FUZZ", "60"))
TASK = {"task": "worker:1", "attempt": 1}
REPORTS = tuple(sample(kind) for kind in kinds_of(msg.TaskReport))
EVENTS = tuple({"type": "task_event", **TASK, "event": report} for report in REPORTS)
MESSAGES: tuple[dict[str, Any], ...] = (
    *(sample(kind) for kind in kinds_of(msg.Report)),
    {"type": "link_cut", "lease_s": 3.0},
    {"type": "link_back", "pid": 5, "guard_pid": 6},
    {"type": "log", "name": "worker:1/1", "offset": 0, "data": "a"},
    {"type": "a kind of a later version", "with": ["anything"]},
)
"""One message of each kind, as the agent of worker:1's node sends it."""
NAMES = sorted({name for message in (*MESSAGES, *REPORTS) for name in message})
TEXTS = st.sampled_from(
    ("", " ", "worker:0", "prepare", "a\0b", "\ud800", "é" * 300, "-1", "1" * 30)
)
NUMBERS = st.sampled_from((0, -1, 1 << 31, 1 << 63, 10**400, -(10**30), 1.5, float("inf")))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.just(float("nan")) | TEXTS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
DEEP = json.loads("[" * 500 + "]" * 500)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a message with up to two changed or missing fields."""
    is_report = draw(st.booleans())
    message = copy.deepcopy(draw(st.sampled_from(EVENTS if is_report else MESSAGES)))
    for _ in range(draw(st.integers(0, 2))):
        inside = message.get("event") if draw(st.booleans()) or draw(st.booleans()) else None
        target = inside if isinstance(inside, dict) and inside else message
        name = draw(st.sampled_from([*sorted(target), "type", draw(st.sampled_from(NAMES))]))
        if draw(st.booleans()):
            target[name] = draw(VALUES | st.just(DEEP))
        else:
            target.pop(name, None)
    return dict(message)


RAW = st.builds(
    lambda kind, name, offset, data: protocol.data_frame(kind, name, offset, data),
    st.sampled_from((protocol.LOG, protocol.FILE)),
    st.sampled_from(("worker:1/1", "worker:1/7", "worker:1/-1", "worker:1", "prepare/0", "1", "2"))
    | st.text(st.characters(codec="utf-8"), max_size=5),
    st.sampled_from((0, 1, 1 << 40, (1 << 64) - 1)),
    st.binary(max_size=5),
) | st.sampled_from((HANG_UP, protocol.frame(protocol.ACK, b"\xff" * 8), b"noise", b"C\0\0\0\0"))
SCRIPTS = st.dictionaries(
    st.sampled_from(MOMENTS),
    st.lists(messages() | messages() | RAW, min_size=1, max_size=3),
    max_size=3,
)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Yield a folder with a home, a workdir and sockets for all examples."""
    root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    (root / "work").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFCLUSTER_HOME", str(root / "home"))
        patch.setenv("XDG_RUNTIME_DIR", str(root))
        yield root
    shutil.rmtree(root)


def run_with(place: Path, hostile: str, script: dict[str, list[Frame]], **how: Any) -> Ended:
    """Run a plan in which the node `hostile`, with task worker:1, follows `script`."""
    plan = plan_on_two_nodes(place / "work", remote_is_chief=hostile == LOCAL)
    agents = {
        node.name: Agent(node.name, node.workdir, script if node.name == hostile else {}, **how)
        for node in plan.nodes
    }
    shutil.rmtree(place / "home", ignore_errors=True)
    paths = run_writer.make("demo-20260914-153012-k7f3", place / "home")
    faults = chaos.parse(["kill worker:1 at step 2"], plan)
    return perform(plan, agents, paths, faults=faults)


def refuse(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not valid JSON")


def require_readable(ended: Ended) -> None:
    """Check that the files of the run are valid JSON and can be displayed."""
    text = ended.paths.state.read_text()
    json.loads(text, parse_constant=refuse)
    assert len(text) < 1 << 20
    state = registry.load(ended.paths)
    for number, line in enumerate(ended.paths.events.read_text().splitlines(), 1):
        event = json.loads(line, parse_constant=refuse)
        assert event["seq"] == number
        format_event(event)
    panels = [closing_panel(state, ended.paths), status_panel(state, ended.paths, now=1e9)]
    for panel in (*panels, root_cause_panel(state, ended.paths)):
        assert plain_text(panel or panels[0], 80)
    format_status_line(state, now=1e9, width=80)
    scene, trend = Scene(state, figures_of(state), now=1e9, samples=(0.0, 1.0)), Trend()
    trend.note(scene.figures, now=1e9)
    assert draw_frame(scene, 80, 12, lambda task: "")
    assert draw_trend(trend.samples, 9) == ""
    assert part_lines(runs_grid([state], now=1e9, live=True), 80)


WRONG: tuple[Any, ...] = (
    *(None, True, -1, 1 << 63, 10**400, 1.5, float("inf"), float("nan"), "", " ", "a\0b", "\ud800"),
    *("x" * 50_000, [], [[]], {}, {"": {"": 1}}, DEEP),
)


def test_a_run_survives_reports_with_one_wrong_field(place: Path) -> None:
    """One run gets reports of each kind, with each field missing or with each wrong value.

    Except `serving`: the verdict of a task that only serves does not count.
    """
    training = [report for report in REPORTS if report["type"] != "serving"]
    wrong = [
        report | {field: value}
        for report in (*training, {})
        for field in (*report, "type", "of_another_kind")
        for value in WRONG
    ]
    wrong += [
        {name: value for name, value in report.items() if name != left_out}
        for report in training
        for left_out in report
    ]
    reports: list[Frame] = [{"type": "task_event", **TASK, "event": report} for report in wrong]
    ended = run_with(place, REMOTE, {"trained": reports})
    assert ended.outcome.exit_code == 1, "the verdict that the task reports counts"
    require_readable(ended)


@given(
    script=SCRIPTS,
    hostile=st.sampled_from((LOCAL, REMOTE)),
    answers_again=st.booleans(),
    exit_code=st.sampled_from((0, 0, 1)),
)
@example(  # issue 15, 26
    script={
        "trained": [
            {"type": "task_event", **TASK, "event": {"type": "chaos_injected", "fault": ""}}
        ]
    },
    hostile=REMOTE,
    answers_again=True,
    exit_code=0,
)
@example(  # issue 15, 21
    script={"put back": [b"noise"]}, hostile=REMOTE, answers_again=True, exit_code=0
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_run_ends_normally_whatever_a_node_sends(
    place: Path, script: dict[str, list[Any]], hostile: str, answers_again: bool, exit_code: int
) -> None:
    ended = run_with(
        place, hostile, script, answers_again=answers_again, exit_codes={"worker:1": exit_code}
    )
    assert ended.outcome.exit_code in (0, 1, 3, 4)
    assert ended.seconds < 3600
    require_readable(ended)
    assert len(list(ended.paths.logs.glob("attempt-*"))) <= ended.state.attempt
