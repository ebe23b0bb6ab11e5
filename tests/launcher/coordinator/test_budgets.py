"""The coordinator keeps a limited amount of data from nodes and tasks, and reports excess once."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.coordinator.scripted import (
    LOCAL,
    REMOTE,
    Agent,
    Ended,
    Frame,
    perform,
    plan_on_two_nodes,
)

from tfcluster.agent import budgets
from tfcluster.agent.catalogue import TaskReport
from tfcluster.agent.protocol import LOG, data_frame
from tfcluster.agent.tasks.task import _DECISIVE, ReportBudget
from tfcluster.checkpoints.copying import scan
from tfcluster.rundir import events as ev
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.snapshot import RunSnapshot

TASK = {"task": "worker:1", "attempt": 1}
Run = Callable[..., Ended]


@pytest.fixture
def run(paths: RunPaths, tmp_path: Path) -> Run:
    """Return a function that runs two nodes; the remote agent sends `frames` after training."""

    def perform_with(*frames: Frame, agent: type[Agent] = Agent) -> Ended:
        plan = plan_on_two_nodes(tmp_path, max_restarts=0)
        agents = {
            LOCAL: Agent(LOCAL, str(tmp_path)),
            REMOTE: agent(REMOTE, str(tmp_path), {"trained": frames}),
        }
        return perform(plan, agents, paths)

    return perform_with


def reports(*events: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from ({"type": "task_event", **TASK, "event": event} for event in events)


def why_lost(ended: Ended) -> str:
    events = map(json.loads, ended.paths.events.read_text().splitlines())
    *_, lost = (event for event in events if event["type"] == "node_lost")
    return str(lost["reason"])


def test_only_the_first_notes_of_a_flood_are_kept(run: Run) -> None:
    """All notes used to be kept in the state, which is rewritten often: 208 MB after a while."""
    notes = ({"type": "note", "message": f"{n} " + "x" * 60_000} for n in range(500))
    ended = run(*reports(*notes))
    assert ended.outcome.exit_code == 0
    warnings = [line for line in ended.state.warnings if line.startswith("worker:1")]
    assert len(warnings) == budgets.NOTES + 1
    assert "worker:1 has sent more than 50 notes: the rest is left out" in warnings
    assert ended.paths.state.stat().st_size < 300_000
    assert ended.paths.events.stat().st_size < 300_000


def test_only_the_first_trials_of_an_endless_search_are_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "TRIALS", 20)
    trials = (
        {"type": "trial", "id": str(n), "status": status, "values": {"x" * 999: "y" * 999}}
        for n in range(50)
        for status in ("RUNNING", "FAILED")
    )
    ended = run(*reports(*trials))
    assert ended.outcome.exit_code == 0
    assert {trial["status"] for trial in ended.state.trials} == {"FAILED"}
    assert len(ended.state.trials) == 20
    warning = "the search has more than 20 trials: its own folder lists the rest"
    assert ended.state.warnings.count(warning) == 1


def test_the_last_warning_names_the_file_with_all_warnings(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "WARNINGS", 10)
    ended = run(*({"type": "unkillable", "pids": [n]} for n in range(50)))
    assert ended.outcome.exit_code == 0
    assert len(ended.state.warnings) == 11
    assert str(ended.paths.events) in ended.state.warnings[-1]
    assert ended.paths.events.read_text().count("was killed but still lives") == 50


def test_a_node_that_sends_logs_of_attempts_that_were_not_ordered_is_refused(run: Run) -> None:
    """Each attempt that a node named used to get a folder for logs."""
    logs = (data_frame(LOG, f"worker:1/{n}", 0, b"x") for n in range(1, 2_000))
    ended = run(*logs)
    assert "a message 'log' of worker:1, attempt 2, which was never started" in why_lost(ended)
    assert [folder.name for folder in ended.paths.logs.glob("attempt-*")] == ["attempt-1"]


def test_a_node_that_sends_more_messages_than_its_tasks_can_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is low, so that a busy machine reads the flood before its rate would allow it."""
    monkeypatch.setattr(budgets, "MESSAGES_AT_ONCE", 2_000)
    flood = ({"type": "task_thawed", **TASK} for _ in range(3_000))
    assert "more than 2,000 messages at once" in why_lost(run(*flood))


@dataclass
class Endless(Agent):
    """An agent with a folder listing of 100,000 entries, so that even a failing test ends."""

    pages: int = 0

    def _obey(self, order: dict[str, Any]) -> None:
        if order["type"] != "scan":
            super()._obey(order)
            return
        for page in range(20):
            entries = [[f"{page}/{n}", 1, 1] for n in range(5_000)]
            if self.writer is not None and not self.writer.is_closing():
                self.pages += 1
                self.say({"type": "scanned", "id": order["id"], "entries": entries, "more": True})
        self.say({"type": "scanned", "id": order["id"], "entries": []})


def test_an_endless_listing_is_given_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds of such a listing used to take half a gigabyte."""
    monkeypatch.setattr(budgets, "LISTED_OUTPUTS", 20_000)
    ended = run(agent=Endless)
    assert ended.outcome.exit_code == 0, "its tasks had succeeded"
    why = "were not all copied: the node was lost: it sent a listing of more than 20,000 files;"
    assert why in "".join(ended.state.warnings)


def test_listing_a_folder_with_too_many_files_is_an_error(tmp_path: Path) -> None:
    for name in range(5):
        (tmp_path / str(name)).touch()
    assert len(scan(tmp_path, most=5)) == 5
    with pytest.raises(OSError, match="has more than 4 files and folders"):
        scan(tmp_path, most=4)


def test_unwritten_progress_is_limited_while_the_disk_is_full(
    state: RunSnapshot, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "UNWRITTEN_EVENTS", 10_000)
    run_writer = RunWriter(state, paths)

    class Full:
        def write(self, _: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    file, run_writer._log._file = run_writer._log._file, Full()  # type: ignore[assignment]
    for step in range(1_000):
        run_writer.record(ev.Progress(task="worker:0", attempt=1, step=step))
    run_writer.record(ev.TaskReady(task="worker:0", attempt=1))
    assert run_writer._log.waiting_bytes < 11_000
    run_writer._log._file = file
    run_writer.close()
    events = [json.loads(line) for line in paths.events.read_text().splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "task_ready"


def test_only_reports_for_people_have_no_reserved_space() -> None:
    display_only = {"task_phase", "progress", "step_ends", "alive", "note", "trial", "trial_ended"}
    display_only |= {"task_devices", "unused_gpus", "trains_in_child", "wrote"}
    kinds = {report.type for report in TaskReport.__subclasses__()}
    assert {kind.decode() for kind in _DECISIVE} == kinds - display_only


def test_a_needed_report_is_accepted_when_other_reports_are_dropped() -> None:
    reports = ReportBudget(0.0)
    for _ in range(2000):
        reports.take(b'{"type": "progress", "step_ends"}', 0.0, backlog=0)
    assert reports.dropped > 0
    assert reports.take(b'{"type": "serving"}', 0.0, backlog=0)
