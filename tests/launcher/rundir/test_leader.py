"""One task's numbers stand for a run: the same one in the live view, the page and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.series import read_history
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.rundir.states import Status


@pytest.mark.parametrize(
    ("steps", "leader"),
    [
        ({"worker:0": 1, "worker:1": 9}, "worker:0"),
        ({"worker:0": 9, "chief:0": 1}, "chief:0"),
        ({"worker:0": None, "worker:2": 9, "worker:1": 8}, "worker:2"),
        ({"worker:0": None, "worker:1": 2, "evaluator:0": 9}, "worker:1"),
        ({"worker:0": None, "evaluator:0": 9}, "evaluator:0"),
        ({"ps:0": None, "worker:0": None}, None),
        ({}, None),
    ],
)
def test_the_chief_stands_for_the_run_else_the_task_that_is_furthest(
    steps: dict[str, int | None], leader: str | None, tmp_path: Path
) -> None:
    tasks = [TaskSnapshot(name, "local", "", step=step) for name, step in steps.items()]
    found = RunSnapshot("r", "n", Status.RUNNING, tasks, "", "", 1, 1, 0.0).leader
    assert (found.task if found is not None else None) == leader

    events = [
        {"time": 1.0, "type": "progress", "task": name, "step": step, "metrics": {"loss": 1.0}}
        for name, step in steps.items()
        if step is not None
    ]
    lines = [json.dumps(event, separators=(",", ":")) + "\n" for event in events]
    (tmp_path / "events.jsonl").write_text("".join(lines))
    assert read_history(RunPaths(tmp_path)).chief == leader
