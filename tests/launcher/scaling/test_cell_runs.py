"""A cell is the spec with other workers, and its steps are those after the warm-up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from tfcluster.errors import UsageError
from tfcluster.run_handle import Run
from tfcluster.scaling.cell_runs import (
    STEP_ENDS,
    WARM_UP_S,
    Steps,
    StudyRequest,
    Timed,
    cell_spec,
    machine_cores,
    measure_cell,
    notes_of,
    plan_cells,
)
from tfcluster.spec.cluster import iter_entries
from tfcluster.spec.load import load
from tfcluster.spec.model import ClusterSpec
from tfcluster.spec.network import Network


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


@dataclass
class EndedRun:
    """A run with these events."""

    recorded: list[dict[str, object]]

    def events(self, *, follow: bool) -> Iterator[dict[str, object]]:
        """Yield the events, removing each one that is read."""
        while self.recorded:
            yield self.recorded.pop(0)


@pytest.mark.parametrize(("rates", "left"), [((), 1), ((1e9,), 4)])
def test_a_cell_of_the_real_cluster_lasts_until_all_workers_have_sent_their_parts(
    tmp_path: Path, rates: tuple[float, ...], left: int
) -> None:
    _, planned = plan_cells(request_of(tmp_path, "10.9.0.1:1", "10.9.0.2:1"))
    request = StudyRequest(None, (1, 2), rates, (), steps=4)
    ends = [reported([n], [100 + n / 2], cpu_s=n / 4) for n in range(1, 10)]
    windows = [window(task, 9, 4, compute=0.5) for task in ("worker:0", "worker:1", "worker:1")]
    run = EndedRun([*ends, *windows])
    found = measure_cell(cast("Run", run), planned, request)
    assert len(run.recorded) == left
    assert (found.workers, len(found.step_s)) == (2, 4 if rates else 5)
    assert found.nodes == ("10.9.0.1", "10.9.0.2")
    assert found.parts == (None if rates else {"compute": 0.5})
    run = EndedRun([*ends, windows[0]])  # the job ends meanwhile
    assert measure_cell(cast("Run", run), planned, request).workers == 2


def request_of(folder: Path, *addresses: str, **sections: Any) -> StudyRequest:
    """Return the request for a study of a spec with these workers, or with two on this machine."""
    (folder / "train.py").write_text("print(1)\n")
    cluster = {"worker": addresses or 2}
    runtime = {"runtime": {"python": "/tf"}} if addresses else {}
    value = {"cluster": cluster, "job": {"script": "train.py"}, **runtime, **sections}
    (folder / "train.json").write_text(json.dumps(value))
    return StudyRequest(str(folder / "train.json"), (1, 2), (), (), steps=1)


def specs(
    workers: tuple[int, ...],
    rates: tuple[float, ...] = (),
    communications: tuple[str, ...] = (),
    **sections: Any,
) -> list[ClusterSpec]:
    """Return the spec of each cell of a study."""
    given = load({"job": {"script": "train.py"}, **sections}).spec
    request = StudyRequest(None, workers, rates, communications, steps=1)
    return [cell_spec(given, cell, request, {}) for cell in request.cells]


def test_a_cell_takes_the_first_tasks_and_leaves_out_what_is_about_others() -> None:
    second = {"address": "10.9.0.2:2222", "env": {"A": "b"}}
    found = specs(
        (1, 2),
        cluster={
            "chief": ["10.9.0.1:2222"],
            "worker": [second, "10.9.0.3:2222"],
            "evaluator": ["10.9.0.1:2223"],
        },
        runtime={"hosts": {"*": {"python": "/tf"}, "10.9.0.3": {"ssh": "anna@gpu3"}}},
        job={"script": "train.py", "per_task": {"worker:1": {"args": ["1"]}}},
        checkpoints={"dir": "/mnt/results", "to": "here"},
        supervision={"min_workers": 2, "grace_s": 5},
    )
    listed = [[entry for _, entry in iter_entries(spec.cluster)] for spec in found]
    assert [[entry.address for entry in entries] for entries in listed] == [
        ["10.9.0.1:2222"],
        ["10.9.0.1:2222", "10.9.0.2:2222"],
    ]
    assert listed[1][1].env == {"A": "b"}
    for spec in found:
        assert (spec.runtime.backend, [*spec.runtime.hosts]) == ("auto", ["*"])
        assert (spec.job.per_task, spec.job.env) == ({}, {STEP_ENDS: "1"})
        assert spec.checkpoints.model_dump(exclude_unset=True) == {"gather": False}
        assert (spec.supervision.max_restarts, spec.supervision.grace_s) == (0, 5)


def test_only_a_number_may_be_exceeded() -> None:
    listed = {"worker": ["10.9.0.1:2222", "10.9.0.2:2222"]}
    with pytest.raises(UsageError, match="addresses for 2 workers, not 4") as refused:
        specs((1, 4), cluster=listed)
    assert "-H gpu1,gpu2:2" in (refused.value.fix or "")
    assert [spec.cluster for spec in specs((1, 4), cluster={"worker": 2})] == [
        {"worker": 1},
        {"worker": 4},
    ]


def test_simulated_networks_replace_hosts_and_backend() -> None:
    found = specs(
        (1, 4),
        rates=(1e9,),
        communications=("AUTO",),
        cluster={"worker": ["10.9.0.1:2222", "10.9.0.2:2222"]},
        runtime={"backend": "ssh", "hosts": {"10.9.0.2": {"ssh": "gpu2"}}},
    )
    assert [spec.cluster for spec in found] == [{"worker": 1}, {"worker": 4}]
    assert {spec.runtime.backend for spec in found} == {"simulated"}
    assert [spec.strategy.communication for spec in found] == ["AUTO", "AUTO"]


def test_the_spec_decides_the_communication_and_its_own_network() -> None:
    network = {"rate": "1gbit", "links": [{"between": ["worker:1", "worker:2"], "rate": "1mbit"}]}
    own: dict[str, Any] = {"cluster": {"worker": 3}, "strategy": {"communication": "RING"}}
    found = specs((2, 3), runtime={"network": network}, **own)
    assert [spec.strategy.communication for spec in found] == ["RING"] * 3
    networks = [spec.runtime.network for spec in found]
    assert [len(one.links) for one in networks if isinstance(one, Network)] == [0, 0, 1]
    found = specs((1, 2), communications=("NCCL", "AUTO"), **own)
    assert [spec.strategy.communication for spec in found] == ["RING", "NCCL", "AUTO"]


def test_workers_of_one_machine_have_the_same_cores_in_all_cells(tmp_path: Path) -> None:
    planned = plan_cells(request_of(tmp_path))
    each = max(1, machine_cores() // 2)
    assert [cell.planned.spec.resources.cpus for cell in planned] == [each, each]
    assert notes_of(planned) == ()


def test_workers_that_share_a_host_are_noted(tmp_path: Path) -> None:
    def notes(*addresses: str, **resources: int) -> tuple[str, ...]:
        return notes_of(plan_cells(request_of(tmp_path, *addresses, resources=resources)))

    assert notes("10.9.0.1:1", "10.9.0.2:1") == ()
    assert "several workers share a node" in notes("10.9.0.1:1", "10.9.0.1:2")[0]
    assert notes("10.9.0.1:1", "10.9.0.1:2", cpus=1, gpus=1) == ()
