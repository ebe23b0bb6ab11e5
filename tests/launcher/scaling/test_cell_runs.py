"""A cell is the spec with other workers, and its steps are those after the warm-up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfcluster.errors import UsageError
from tfcluster.plans.plan import Plan
from tfcluster.scaling.cell_runs import (
    STEP_TIMES,
    WARM_UP_S,
    Steps,
    StudyRequest,
    Timed,
    machine_cores,
    notes_of,
    plan_cells,
)
from tfcluster.spec.model import ClusterSpec


def reported(steps: list[int], times: list[float], cpu_s: float = 0.0) -> dict[str, object]:
    return {
        "type": "step_ends", "task": "worker:0", "steps": steps, "times": times, "cpu_s": cpu_s,
    }  # fmt: skip


def every(seconds: float, count: int, *, start: float = 100.0) -> Steps:
    found = Steps("worker:0")
    for number in range(1, count + 1):
        found.note(reported([number], [start + number * seconds], cpu_s=number * seconds / 2))
    return found


def test_the_first_steps_do_not_count() -> None:
    steps = every(0.5, 20)
    timed = steps.timed()
    assert timed.step_s == pytest.approx([0.5] * 16)
    assert timed.lasted_s == pytest.approx(8.0)
    assert timed.cpu_s / timed.lasted_s == pytest.approx(0.5)
    assert every(0.5, 3).timed() == Timed(())


def test_short_steps_do_not_count_until_the_warm_up_is_over() -> None:
    timed = every(0.01, 300).timed()
    assert len(timed.step_s) == pytest.approx((3.0 - WARM_UP_S) / 0.01, abs=2)


def test_a_report_of_several_steps_divides_its_time() -> None:
    steps = Steps("worker:0")
    for number in range(1, 12):
        steps.note(reported([10 * number], [100.0 + number]))
    timed = steps.timed()
    assert timed.step_s == pytest.approx([0.1] * 70)


def test_another_training_that_begins_again_is_no_negative_step() -> None:
    steps = every(0.5, 10)
    for number in range(1, 11):
        steps.note(reported([number], [105.0 + number * 0.5]))
    assert min(steps.timed().step_s) > 0


def test_the_volume_and_the_batch_are_read() -> None:
    steps = Steps("worker:0")
    steps.note({**reported([1], [1.0]), "task": "worker:1"})
    steps.note({"type": "usage", "tasks": {}})
    assert steps.count == 0
    steps.note({**reported([1], [1.0]), "gradient_bytes": 400})
    steps.note(reported([2], [2.0]))
    speed = {"mean_examples_per_second": 959.8, "mean_steps_per_second": 10.0}
    steps.note({"type": "progress", "task": "worker:0", "step": 3, **speed})
    assert (steps.gradient_bytes, steps.global_batch) == (400, 96.0)
    speed = {"mean_examples_per_second": 0.99, "mean_steps_per_second": 0.9901}
    steps.note({"type": "progress", "task": "worker:0", "step": 4, **speed})
    assert steps.global_batch == 1.0


def window(task: str, step: int, steps: int, **parts: float) -> dict[str, object]:
    """Return an event about the `steps` steps up to `step`; the parts are seconds of one step."""
    in_all = {name: seconds * steps for name, seconds in parts.items()}
    return {"type": "step_times", "task": task, "step": step, "steps": steps, "parts": in_all}


def test_the_parts_of_a_step_are_means_over_the_tasks_after_the_warm_up() -> None:
    steps = every(0.5, 40)
    steps.note(window("worker:0", 10, 10, compute=9.0))  # it contains the compilation
    assert (steps.parts(), steps.tasks_with_parts) == (None, 0)
    steps.note(window("worker:0", 20, 10, compute=0.3, waiting=0.2))
    steps.note(window("worker:0", 40, 20, compute=0.3, waiting=0.2))
    assert steps.tasks_with_parts == 1
    steps.note(window("worker:1", 30, 20, compute=0.4, transfer=0.1))
    assert steps.tasks_with_parts == 2
    assert steps.parts() == pytest.approx({"compute": 0.35, "waiting": 0.1, "transfer": 0.05})


def planned(tmp_path: Path, request: dict[str, Any], **spec: Any) -> list[tuple[ClusterSpec, Plan]]:
    """Return the spec and the plan of each cell of a study."""
    (tmp_path / "train.py").write_text("print(1)\n")
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"job": {"script": "train.py"}, **spec}))
    asked: dict[str, Any] = {"workers": (1, 2), "rates": (), "communications": (), "steps": 1}
    cells = plan_cells(StudyRequest(source=str(path), **{**asked, **request}))
    return [(cell.planned.spec, cell.planned.plan) for cell in cells]


FIRST = [("10.9.0.1", 2222), ("10.9.0.2", 2222)]


def test_a_cell_takes_the_first_tasks_and_leaves_out_what_is_about_others(tmp_path: Path) -> None:
    cells = planned(
        tmp_path,
        {"workers": (1, 2)},
        cluster={
            "chief": ["10.9.0.1:2222"],
            "worker": [{"address": "10.9.0.2:2222", "env": {"A": "b"}}, "10.9.0.3:2222"],
            "evaluator": ["10.9.0.1:2223"],
        },
        runtime={"hosts": {"*": {"python": "/tf"}, "10.9.0.3": {"ssh": "anna@gpu3"}}},
        job={"script": "train.py", "per_task": {"worker:1": {"args": ["1"]}}},
        checkpoints={"dir": "/mnt/results", "to": "here"},
        supervision={"min_workers": 2, "grace_s": 5},
    )
    for (spec, plan), hosts in zip(cells, (1, 2), strict=True):
        assert [(task.host, task.port) for task in plan.tasks] == FIRST[:hosts]
        assert (spec.runtime.backend, [*spec.runtime.hosts]) == ("auto", ["*"])
        assert (spec.job.per_task, spec.job.env[STEP_TIMES]) == ({}, "1")
        saved = spec.checkpoints
        assert (saved.gather, saved.dir, saved.to) == (False, None, None)
        assert (spec.supervision.max_restarts, spec.supervision.grace_s) == (0, 5)
    (_, task) = cells[1][1].tasks
    assert "A" in {variable.name for variable in task.command.env}


def test_more_workers_than_addresses_are_refused_and_than_a_number_are_not(tmp_path: Path) -> None:
    listed = {"worker": ["10.9.0.1:2222", "10.9.0.2:2222"]}
    hosts = {"*": {"python": "/tf"}}
    with pytest.raises(UsageError, match="addresses for 2 workers, not 4") as refused:
        planned(tmp_path, {"workers": (1, 4)}, cluster=listed, runtime={"hosts": hosts})
    assert "-H gpu1,gpu2:2" in (refused.value.fix or "")
    simulated = {"workers": (1, 4), "rates": (1e9,), "communications": ("AUTO",)}
    runtime = {"hosts": {"10.9.0.2": {"ssh": "gpu2"}}}
    cells = planned(tmp_path, simulated, cluster=listed, runtime=runtime)
    assert [spec.cluster for spec, _ in cells] == [{"worker": 1}, {"worker": 4}]
    assert {spec.runtime.backend for spec, _ in cells} == {"simulated"}
    cells = planned(tmp_path, {"workers": (1, 4)}, cluster={"worker": 2})
    assert [len(plan.tasks) for _, plan in cells] == [1, 4]


def test_the_spec_decides_the_communication_and_its_own_network(tmp_path: Path) -> None:
    network = {"rate": "1gbit", "links": [{"between": ["worker:1", "worker:2"], "rate": "1mbit"}]}
    own = {"cluster": {"worker": 3}, "strategy": {"communication": "RING"}}
    cells = planned(tmp_path, {"workers": (2, 3)}, runtime={"network": network}, **own)
    assert [spec.strategy.communication for spec, _ in cells] == ["RING"] * 3
    assert [len(spec.runtime.network.links) for spec, _ in cells] == [0, 0, 1]  # type: ignore[union-attr]
    cells = planned(tmp_path, {"communications": ("RING", "AUTO")}, **own)
    assert [spec.strategy.communication for spec, _ in cells] == ["RING", "RING", "AUTO"]


def test_workers_of_one_machine_have_the_same_cores_in_all_cells(tmp_path: Path) -> None:
    each = max(1, machine_cores() // 2)
    assert [s.resources.cpus for s, _ in planned(tmp_path, {}, cluster={"worker": 2})] == [each] * 2
    given = planned(tmp_path, {}, cluster={"worker": 2}, resources={"cpus": 1, "pin": False})
    assert [(s.resources.cpus, s.resources.pin) for s, _ in given] == [(1, False)] * 2


def test_workers_that_share_a_host_are_noted(tmp_path: Path) -> None:
    def notes(*addresses: str, **resources: int) -> tuple[str, ...]:
        spec = {"cluster": {"worker": addresses}, "job": {"script": "train.py"}}
        spec |= {"runtime": {"python": "/tf"}, "resources": resources}
        (tmp_path / "train.py").write_text("print(1)\n")
        (tmp_path / "train.json").write_text(json.dumps(spec))
        request = StudyRequest(str(tmp_path / "train.json"), (1, 2), (), (), 1)
        return notes_of(plan_cells(request))

    assert notes("10.9.0.1:1", "10.9.0.2:1") == ()
    assert "several workers share a node" in notes("10.9.0.1:1", "10.9.0.1:2")[0]
    assert notes("10.9.0.1:1", "10.9.0.1:2", cpus=1, gpus=1) == ()
