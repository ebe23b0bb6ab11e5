"""Runs for the tests of the live view."""

from __future__ import annotations

from typing import Any

from tfcluster.rundir.figures import figures_of
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.rundir.states import Status
from tfcluster.ui.live_panel import Scene, draw_frame

START = 1_700_000_000.0


def worker(index: int, **more: Any) -> TaskSnapshot:
    """Return a worker that trains; `more` are further fields."""
    facts: dict[str, Any] = {
        "state": "running", "attempt": 1, "started_at": START + 1, "step": 1200 - index % 7,
        "epoch": 4, "epochs": 10, "total_steps": 4000, "steps_per_second": 41.2 - index / 10,
        "mean_steps_per_second": 40.0, "examples_per_second": 1312.0, "rss_bytes": 812_000_000,
        "cores": 1.9, "metrics": {"accuracy": 0.9123, "loss": 0.31415},
    }  # fmt: skip
    return TaskSnapshot(f"worker:{index}", "local", f"127.0.0.1:{4000 + index}", **(facts | more))


def run_of(*tasks: TaskSnapshot, **more: Any) -> RunSnapshot:
    """Return a run of `tasks`; `more` are further fields."""
    facts: dict[str, Any] = {"status": Status.RUNNING, "attempt": 1}
    return RunSnapshot(
        run="mnist-20260914-153012-k7f3", name="mnist", tasks=list(tasks), host="laptop",
        boot_id="b", pid=1, pid_start=1, started_at=START, **(facts | more),
    )  # fmt: skip


def scene_of(run: RunSnapshot, **more: Any) -> Scene:
    return Scene(run, figures_of(run), START + 192, this_host="laptop", **more)


def frame_of(scene: Scene, columns: int, rows: int = 12, last_line: str = "") -> list[str]:
    """Return the lines of a frame as a screen shows them, without colours."""
    drawn = draw_frame(scene, columns, rows, lambda task: last_line)
    assert len(drawn) <= rows
    assert max(line.cell_len for line in drawn) <= columns, drawn
    return [line.plain for line in drawn]
