"""A submitted run's folder has one writer at a time: the submitter, then the job's coordinator."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.documentation import ROOT
from tests.launcher.conftest import plan_of

from tfcluster.api import make_launch
from tfcluster.coordinator import submitting
from tfcluster.coordinator.launch import open_folder
from tfcluster.discovery import planning
from tfcluster.errors import UsageError
from tfcluster.plans.plan import Plan
from tfcluster.rundir import fold, registry, run_writer
from tfcluster.rundir.events import JobSubmitted, NodesAllocated, PortsHeld
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import ProcessIdentity, this_process
from tfcluster.rundir.run_writer import RunWriter, write_json
from tfcluster.rundir.states import Status
from tfcluster.spec import LaunchOptions
from tfcluster.typed_json import to_json

ELSEWHERE = ProcessIdentity("login", "", 7, 7)
GONE = ProcessIdentity(this_process().host, this_process().boot_id, 1 << 22, 1)
SUBMITTED = JobSubmitted(backend="slurm", id="7", cluster="lab")


@pytest.fixture
def paths(home_dir: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Return the folder of a run that is being submitted, in whose job this process is."""
    for name, value in {"JOB_ID": "7", "JOB_NODELIST": "n1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(
        "tfcluster.backends.slurm.slurm_jobs.cluster", lambda runtime, patience_s: "lab"
    )
    return run_writer.make_new(lambda: registry.new_run_id("far", time.time()), home_dir)


def writer_of(paths: RunPaths, submitter: ProcessIdentity) -> RunWriter:
    plan = plan_of()
    plan = replace(plan, nodes=(replace(plan.nodes[0], backend="slurm"),))
    write_json(paths.plan, to_json(plan))
    return RunWriter(fold.first_state(plan, paths, submitter, time.time()), paths)


def types(paths: RunPaths) -> list[str]:
    return [json.loads(line)["type"] for line in paths.events.read_text().splitlines()]


def test_a_job_that_starts_at_once_waits_until_it_is_recorded(paths: RunPaths) -> None:
    writer_of(paths, ELSEWHERE).close(keeps_reserve=True)
    threading.Timer(0.2, lambda: submitting.record_job(paths, SUBMITTED)).start()
    state = submitting.take_over(paths)
    assert (state.status, (state.job or {})["id"]) == (Status.QUEUED, SUBMITTED.id)
    assert types(paths) == ["job_submitted", "run_queued"]


def test_a_submitter_that_was_killed_is_not_waited_for(paths: RunPaths) -> None:
    writer_of(paths, GONE).close(keeps_reserve=True)
    state = submitting.take_over(paths)
    assert state.job == {"backend": "slurm", "id": "7", "cluster": "lab", "restarts": 0}
    assert types(paths) == ["job_submitted", "run_queued"]


def test_a_submitter_that_was_stopped_for_long_does_not_write_any_more(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "_HANDOVER_S", 0.0)
    writer_of(paths, ELSEWHERE).close(keeps_reserve=True)
    submitting.take_over(paths)
    before = paths.state.read_bytes(), paths.events.read_bytes()
    submitting.record_job(paths, SUBMITTED)
    assert (paths.state.read_bytes(), paths.events.read_bytes()) == before


def test_a_plan_is_announced_once_all_addresses_are_known(paths: RunPaths) -> None:
    plan = plan_of()
    plan = replace(plan, tasks=tuple(replace(task, host="") for task in plan.tasks))
    writer = RunWriter(fold.first_state(plan, paths, this_process(), time.time()), paths)
    announced = list[Plan]()
    watcher = SimpleNamespace(announced=announced.append)
    watch = submitting._Watch(SimpleNamespace(plan=plan), paths, watcher, [])  # type: ignore[arg-type]
    addresses = {"worker:0": "n0:0", "worker:1": "n0:0"}
    for event in (
        None,
        NodesAllocated(hosts={}, addresses=addresses),
        PortsHeld(node="local", ports={"worker:0": 4000, "worker:1": 4001}),
    ):
        assert announced == []
        if event is not None:
            writer.record(event)
        writer.save()
        assert registry.load_recorded(paths).status is Status.STARTING
        watch._announce()
    assert [task.address for plan in announced for task in plan.tasks] == ["n0:4000", "n0:4001"]
    writer.close()


def test_each_coordinator_of_a_run_has_a_reserve_on_the_disk(paths: RunPaths) -> None:
    writer_of(paths, GONE).close(keeps_reserve=True)
    submitting.record_job(paths, SUBMITTED)
    assert paths.reserve.exists()
    RunWriter(open_folder(paths), paths).close()
    open_folder(paths)
    assert paths.reserve.exists()


@pytest.mark.parametrize("spec", ["kubernetes-2n.json", "slurm-2n.json"])
def test_a_run_in_a_job_has_no_tensorboard_of_its_own(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    planned = planning.plan(str(ROOT / "cluster_specs" / spec))
    with pytest.raises(UsageError, match="tfcluster tensorboard RUN"):
        make_launch(planned, LaunchOptions(tensorboard=True))
    assert make_launch(planned, LaunchOptions()).runtime is not None
