"""The event files that a run writes from its events: TensorBoard itself reads them."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.launcher.conftest import plan_of

from tfcluster.coordinator.curves.tensorboard_files import EventFile, RunCurves
from tfcluster.plans.plan import Plan
from tfcluster.rundir import events as ev
from tfcluster.rundir.paths import RunPaths

# TensorBoard then reads files by itself: importing TensorFlow for that takes seconds.
sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))


class Curves:
    """A run's curves with a clock that the test sets, and what TensorBoard reads of them."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.now, self.paths = 1000.0, RunPaths(folder)
        self.warnings: list[str] = []
        self.curves = RunCurves(plan, self.paths, self.warnings.append, clock=lambda: self.now)

    def step(self, step: int, *, task: str = "worker:0", attempt: int = 1, **facts: Any) -> None:
        self.now += 2
        facts = {"metrics": {"loss": 1 / step}} | facts
        self.curves.record(ev.Progress(task=task, attempt=attempt, step=step, **facts))

    def use(self, **memory: float) -> None:
        tasks = {
            name.replace("_", ":"): {"rss_bytes": n, "cores": 1.0} for name, n in memory.items()
        }
        self.curves.record(ev.Usage(node="local", tasks=tasks))

    def read(self, task: str = "worker-0") -> dict[str, list[tuple[int, Any]]]:
        accumulator = EventAccumulator(str(self.paths.curves / "tfcluster" / task))
        accumulator.Reload()
        return {
            tag: [(point.step, pytest.approx(point.value)) for point in accumulator.Scalars(tag)]
            for tag in accumulator.Tags()["scalars"]
        }


@pytest.fixture
def gang(tmp_path: Path) -> Curves:
    return Curves(tmp_path, plan_of("worker:0", "worker:1", "ps:0"))


def test_tensorboard_reads_the_metrics_and_the_speed_of_the_chief(gang: Curves) -> None:
    for step in (1, 5):
        for task in ("worker:0", "worker:1"):
            gang.step(step, task=task, examples_per_second=32.0 * step, steps_per_second=1.5)
    gang.curves.close()
    assert gang.read() == {
        "loss": [(1, 1.0), (5, 0.2)],
        "examples_per_second": [(1, 32.0), (5, 160.0)],
        "steps_per_second": [(1, 1.5), (5, 1.5)],
    }
    assert not (gang.paths.curves / "tfcluster/worker-1").exists()


def test_each_task_has_a_curve_of_its_memory_over_the_steps(gang: Curves) -> None:
    gang.use(worker_0=1e6)  # no step yet
    gang.step(10)
    gang.use(worker_0=2e6, worker_1=3e6, ps_0=4e6)
    gang.curves.close()
    assert [gang.read(task)["memory_mb"] for task in ("worker-0", "worker-1", "ps-0")] == [
        [(10, 2.0)],
        [(10, 3.0)],
        [(10, 4.0)],
    ]


def test_tasks_without_a_cluster_have_metrics_of_their_own(tmp_path: Path) -> None:
    curves = Curves(tmp_path, plan_of(kind="plain"))
    for number in (0, 1):
        curves.step(4, task=f"worker:{number}", metrics={"loss": float(number)})
    curves.curves.close()
    assert [curves.read(f"worker-{number}")["loss"] for number in (0, 1)] == [[(4, 0)], [(4, 1)]]


def test_a_restart_goes_on_in_the_same_folder_and_replaces_the_steps_it_repeats(
    gang: Curves,
) -> None:
    for step in (1, 2, 3):
        gang.step(step)
    for step in (2, 3, 4):
        gang.step(step, attempt=2, metrics={"loss": 10.0 * step})
    gang.curves.close()
    assert gang.read()["loss"] == [(1, 1.0), (2, 20.0), (3, 30.0), (4, 40.0)]


def test_metrics_are_left_out_once_the_script_writes_event_files(gang: Curves) -> None:
    own = gang.paths.curves / "worker-0/train/events.out.tfevents.17.host"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"")
    gang.step(1, examples_per_second=5.0)
    gang.curves.close()
    assert gang.read() == {"examples_per_second": [(1, 5.0)]}


def test_points_get_further_apart_and_the_last_one_is_always_written(gang: Curves) -> None:
    for step in range(1, 10_001):
        gang.step(step)
    gang.curves.record(ev.TaskExited(task="worker:0", attempt=1, exit_code=0, ended_by="itself"))
    gang.curves.close()
    steps = [step for step, _ in gang.read()["loss"]]
    assert steps[-1] == 10_000
    assert 500 < len(steps) < 3_000


def test_a_step_that_the_agent_reports_replaces_no_waiting_point(gang: Curves) -> None:
    gang.step(1)
    gang.now -= 1.5
    gang.step(2)  # waits, as the last point was written half a second ago
    gang.step(3, metrics={})
    gang.curves.close()
    assert gang.read()["loss"] == [(1, 1.0), (2, 0.5)]


def test_numbers_that_a_float_cannot_hold_are_written(tmp_path: Path) -> None:
    file = EventFile(str(tmp_path), 1.0)
    values = {"large": 1e300, "huge": 10**400, "inf": -math.inf, "nan": math.nan}
    file.add(1 << 40, values | {"ümlaut": -0.5, "lo\ud800ss": 2.0}, 2.0)
    file.add(-1, {"ümlaut": 0.0}, 3.0)
    file.add(1 << 70, {"ümlaut": 0.0}, 4.0)
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    found = {tag: accumulator.Scalars(tag)[0] for tag in accumulator.Tags()["scalars"]}
    assert found["large"].value == found["huge"].value == pytest.approx(3.4028234e38)
    assert found["inf"].value == pytest.approx(-3.4028234e38)
    assert math.isnan(found["nan"].value)
    assert (found["ümlaut"].value, found["ümlaut"].step) == (-0.5, 1 << 40)
    assert found["lo?ss"].value == 2.0


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file in the place of the folder")
    curves = Curves(tmp_path, plan_of())
    curves.step(1)
    curves.step(2)
    curves.curves.close()
    assert curves.warnings == ["no more TensorBoard curves by tfcluster: Not a directory"]


def test_no_problem_with_a_curve_ends_the_run(gang: Curves) -> None:
    gang.step(1)
    gang.step(2, metrics={"loss": "no number"})
    gang.step(3)
    gang.curves.close()
    assert gang.read()["loss"] == [(1, 1.0)]
    assert len(gang.warnings) == 1
