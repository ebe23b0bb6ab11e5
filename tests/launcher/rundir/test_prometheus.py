"""The metrics of runs, as Prometheus' own parser reads them."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.launcher.conftest import plan_of

from tfcluster.rundir.fold import first_state
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.prometheus import format_metrics
from tfcluster.rundir.registry import this_process
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status

STRANGE = 'a "quoted"\nback\\slash é'


def a_run(name: str = "lab", status: Status = Status.RUNNING) -> RunSnapshot:
    """Return the state of a run whose first worker has reported everything."""
    state = first_state(plan_of(name=name), RunPaths.of(f"{name}-1"), this_process(), 100.0)
    state.status, worker = status, state.tasks[0]
    state.restarts = [{"attempt": 2, "of": 4, "time": 120.0}]
    worker.state, worker.step, worker.total_steps = "running", 30, 120
    worker.steps_per_second, worker.examples_per_second = 2.5, 160.0
    worker.step_parts = {"input": 0.25, "compute": 0.125}
    worker.rss_bytes, worker.cores = 3 * 2**30, 1.5
    worker.gpu, worker.gpu_memory_bytes = 0.75, 2**33
    return state


def read(*runs: RunSnapshot) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return name → (labels, value) of all samples, without the prefix of the names."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(format_metrics(runs)):
        assert family.documentation.endswith(".")
        assert family.type in ("gauge", "counter")
        for sample in family.samples:
            assert sample.timestamp is None
            assert sample.name.endswith("_total") == (family.type == "counter")
            name = sample.name.removeprefix("tfcluster_")
            found.setdefault(name, []).append((dict(sample.labels), sample.value))
    return found


def test_a_run_is_shown_with_its_numbers_and_those_of_its_tasks() -> None:
    found = read(a_run())
    run, task = {"run": "lab-1"}, {"run": "lab-1", "task": "worker:0", "node": "local"}
    values = {name: samples for name, samples in found.items() if len(samples) == 1}
    assert values["run_restarts_total"] == [(run, 1)]
    assert values["run_step"] == [(run, 30)]
    assert values["run_progress_ratio"] == [(run, 0.25)]
    assert values["run_examples_per_second"] == [(run, 160)]
    assert values["run_start_time_seconds"] == [(run, 100)]
    assert values["task_steps_per_second"] == [(task, 2.5)]
    assert values["task_resident_memory_bytes"] == [(task, 3 * 2**30)]
    assert values["task_cpu_cores"] == [(task, 1.5)]
    assert values["task_gpu_utilization_ratio"] == [(task, 0.75)]
    assert values["task_gpu_memory_bytes"] == [(task, 2**33)]
    assert found["task_step_part_seconds"] == [
        ({**task, "part": "input"}, 0.25),
        ({**task, "part": "compute"}, 0.125),
    ]
    assert "run_end_time_seconds" not in found


def test_each_run_and_each_task_is_in_one_state() -> None:
    found = read(a_run(), a_run("other", Status.STALLED))
    status = {labels["run"]: labels["status"] for labels, on in found["run_status"] if on}
    assert status == {"lab-1": "running", "other-1": "stalled"}
    assert len(found["run_status"]) == 2 * len(Status)
    states = {(s["run"], s["task"]): s["state"] for s, on in found["task_state"] if on}
    assert states["lab-1", "worker:0"] == "running"
    assert states["other-1", "worker:1"] == "waiting"
    assert len(states) == 4


@pytest.mark.parametrize("status", [Status.STALLED, Status.SUCCEEDED])
def test_what_takes_no_steps_has_no_speed(status: Status) -> None:
    found = read(a_run(status=status))
    assert not [name for name in found if "per_second" in name or "part" in name]
    assert ("task_cpu_cores" in found) == (status is Status.STALLED)
    assert found["task_step"][0][1] == 30


def test_names_that_users_choose_and_odd_numbers_are_read_back() -> None:
    state = a_run()
    state.spec, state.tasks[0].node = STRANGE, STRANGE
    state.tasks[0].cores, state.tasks[0].gpu, state.tasks[0].rss_bytes = inf, nan, 10**17
    found = read(state)
    assert found["run_info"][0][0]["spec"] == STRANGE
    assert found["task_cpu_cores"][0] == (
        {"run": "lab-1", "task": "worker:0", "node": STRANGE},
        inf,
    )
    assert isnan(found["task_gpu_utilization_ratio"][0][1])
    assert found["task_resident_memory_bytes"][0][1] == 10**17
    state.spec = "\ud800"  # a path that is no UTF-8
    assert read(state)["run_info"][0][0]["spec"] == "?"


def test_without_runs_there_are_no_metrics() -> None:
    assert format_metrics([]) == ""
