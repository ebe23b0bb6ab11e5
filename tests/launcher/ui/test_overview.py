"""`tfcluster top` shows the live runs, and reads again only what has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.conftest import Tfcluster

from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.ui.overview import LiveRuns
from tfcluster.ui.panels import runs_grid
from tfcluster.ui.render import part_lines

from .frames import START, run_of, worker


def write(run_id: str, *, started_at: float = START, **more: Any) -> RunPaths:
    """Write the state of a run whose coordinator is this process."""
    run, me = run_of(worker(0, total_steps=4000)), this_process()
    run.run, run.name, run.started_at = run_id, run_id.partition("-")[0], started_at
    run.host, run.boot_id, run.pid, run.pid_start = me.host, me.boot_id, me.pid, me.start
    for name, value in more.items():
        setattr(run, name, value)
    paths = RunPaths.of(run_id)
    paths.root.mkdir(parents=True, exist_ok=True)
    fresh = paths.root / "new"
    fresh.write_text(json.dumps(run.to_json()))
    fresh.replace(paths.state)
    return paths


def run(run_id: str, **more: Any) -> RunSnapshot:
    found = run_of(worker(0, **more))
    found.run, found.name = run_id, "mnist"
    return found


def test_only_live_runs_are_read_and_an_ended_one_disappears(home_dir: Path) -> None:
    write("young-k7f3", started_at=START + 5)
    write("old-abcd")
    write("over-efgh", status=Status.SUCCEEDED)
    write("lost-ijkl", pid=2**22 + 1)
    (home_dir / "runs" / "begins-mnop").mkdir()
    runs = LiveRuns()
    assert [found.run for found in runs.read()] == ["old-abcd", "young-k7f3"]
    write("old-abcd", status=Status.FAILED)
    assert [found.run for found in runs.read()] == ["young-k7f3"]


def test_without_a_terminal_the_table_is_printed_once(tfcluster: Tfcluster) -> None:
    assert tfcluster("ps", "-w").err == "no run is live\n"
    write("mnist-20260914-153012-k7f3")
    head, row = tfcluster("top").out.splitlines()
    assert head.split() == [
        "NAME", "ID", "STATUS", "LOSS", "EPOCH", "STEP", "ETA", "EXAMPLES/S", "TASKS", "MEMORY",
        "CORES",
    ]  # fmt: skip
    assert row.startswith("mnist  k7f3  running ")
    assert "0.3141   4/10  1,200 of 4,000  1 min 10 s" in row


def test_json_has_numbers_and_says_what_is_not_known(tfcluster: Tfcluster) -> None:
    write("mnist-k7f3", tasks=[worker(0, total_steps=None, metrics={"loss": float("nan")})])
    (found,) = json.loads(tfcluster("top", "--json").out)
    assert (found["run"], found["step"], found["total_steps"]) == ("mnist-k7f3", 1200, None)
    assert found["metrics"] == {"loss": "NaN"}
    assert found["examples_per_second"] == 1312.0


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_columns_are_left_out_until_the_table_fits(width: int) -> None:
    runs = [run("mnist-k7f3"), run("mnist-abcd")]
    grid = runs_grid(runs, now=START + 60, live=True).fitted(width)
    assert max(map(len, part_lines(grid, width))) <= width
    assert {"NAME", "ID", "STATUS", "LOSS", "STEP"} <= set(grid.headers)
    assert ("CORES" in grid.headers) == (width >= 140)


def test_a_run_without_a_step_is_listed_too() -> None:
    waiting = run("mnist-k7f3", step=None, metrics={}, rss_bytes=None, cores=None)
    assert part_lines(runs_grid([waiting], now=START + 60, live=True), 80) == [
        "NAME   ID    STATUS              TASKS",
        "mnist  k7f3  running 1 min 00 s      1",
    ]
