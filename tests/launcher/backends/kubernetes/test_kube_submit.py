"""A run is submitted whole or not at all; its coordinator continues what another has begun."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.documentation import ROOT
from tests.launcher.backends.kubernetes.fake_api import FakeApi, Object

from tfcluster import in_pod
from tfcluster.api import make_launch
from tfcluster.backends.jobs import Submission
from tfcluster.backends.kubernetes.kube_client import JOB_VARIABLE, KubeError
from tfcluster.backends.kubernetes.run_objects import TASKS
from tfcluster.backends.kubernetes.submitted import (
    kube_jobs,
    kube_own_job,
    kube_package,
    kube_submit,
)
from tfcluster.backends.kubernetes.submitted.kube_own_job import NOT_COPYING
from tfcluster.coordinator import submitting
from tfcluster.discovery import planning
from tfcluster.errors import SetupError
from tfcluster.rundir import control, heartbeat, registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status
from tfcluster.spec import LaunchOptions

SPEC = str(ROOT / "cluster_specs/kubernetes-2n.json")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    made = FakeApi()
    made.add("serviceaccounts/tfcluster")
    for module in (kube_submit, kube_jobs):
        monkeypatch.setattr(module, "reach", lambda settings, patience_s: made)
    monkeypatch.setattr(kube_own_job, "around_pod", lambda: made)
    monkeypatch.setattr(
        kube_package, "build", lambda *args, **named: [{"one": b"1"}, {"two": b"2"}]
    )
    return made


def submission(folder: Path) -> Submission:
    planned = planning.plan(SPEC)
    (folder / "spec.json").write_text("{}")
    return Submission(
        "lab-1", folder, (), planned.spec.runtime, nodes=2, tasks_per_node=1, plan=planned.plan
    )


def write_spec(folder: Path, **job: Any) -> str:
    spec = {
        "cluster": {"worker": 2},
        "job": {"command": ["true"], **job},
        "runtime": {"backend": "kubernetes", "kubernetes": {"image": "train:7"}},
    }
    (path := folder / "spec.json").write_text(json.dumps(spec))
    return str(path)


@pytest.mark.usefixtures("place", "home_dir")
def test_files_that_are_withheld_are_announced(tmp_path: Path) -> None:
    (tmp_path / "kaggle.json").write_text("{}")
    launch = make_launch(planning.plan(write_spec(tmp_path)), LaunchOptions(runs_preflight=False))
    events = submitting.submit(launch).events.read_text().splitlines()
    messages = [event["message"] for event in map(json.loads, events) if event["type"] == "warned"]
    assert len(messages) == 1
    assert "look like credentials: kaggle.json; if the job needs one" in messages[0]


def test_the_coordinators_pod_is_made_once_all_that_it_mounts_and_finds_exists(
    place: FakeApi, tmp_path: Path
) -> None:
    assert kube_submit.submit(submission(tmp_path)) == "lab-1"
    kinds = [made["kind"] for made in place.created]
    needed = ["Job", "Secret", "NetworkPolicy", "Service", "StatefulSet", "Secret", "Secret"]
    assert kinds == needed
    assert place.created[0]["spec"]["parallelism"] == 0
    assert place.patched == [("batch/jobs/lab-1", {"spec": {"parallelism": 1}}, len(needed))]


def test_the_pod_for_checks_starts_nothing_and_uses_no_volume_of_a_run(
    place: FakeApi, tmp_path: Path
) -> None:
    job = submission(tmp_path)
    kubernetes = job.runtime.kubernetes.model_copy(update={"run_volume": "runs"})
    job = replace(job, runtime=job.runtime.model_copy(update={"kubernetes": kubernetes}))
    kube_submit.make_visit(job, place)  # type: ignore[arg-type]
    kinds = [made["kind"] for made in place.created]
    assert kinds == ["Job", "Secret", "NetworkPolicy", "Service", "StatefulSet"]
    pod = place.created[0]["spec"]["template"]["spec"]
    assert "--then" not in pod["containers"][0]["command"]
    assert not any("persistentVolumeClaim" in volume for volume in pod["volumes"])
    assert "tfcluster-package" not in [volume["name"] for volume in pod["volumes"]]


def test_the_pods_of_tasks_do_not_have_the_token_of_the_coordinators_exec_server(
    place: FakeApi, tmp_path: Path
) -> None:
    kube_submit.submit(submission(tmp_path))
    job, secret, *_, tasks, _, _ = place.created
    mounted = [items_of(made["spec"]["template"]["spec"]) for made in (tasks, job)]
    assert mounted == [
        ["token", "exec_server.py"],
        ["token", "exec_server.py", "coordinator-token"],
    ]
    decoded = [decode(secret, key) for key in ("token", "coordinator-token")]
    assert decoded[1] != decoded[0]


def items_of(spec: Object) -> list[str]:
    (found,) = (v for v in spec["volumes"] if v["name"] == "tfcluster-run")
    return [item["key"] for item in found["secret"]["items"]]


def decode(secret: Object, key: str) -> str:
    import base64

    return base64.b64decode(secret["data"][key]).decode()


def test_a_refused_object_takes_back_the_run_and_no_other(place: FakeApi, tmp_path: Path) -> None:
    place.refuses["services"] = KubeError("no", status=403)
    with pytest.raises(KubeError):
        kube_submit.submit(submission(tmp_path))
    ((path, how),) = place.deletions
    assert (path, how["uid"]) == ("batch/jobs/lab-1", "uid-2")


def test_the_job_of_another_run_is_left_alone(place: FakeApi, tmp_path: Path) -> None:
    place.refuses["batch/jobs"] = KubeError("it exists", status=409)
    with pytest.raises(KubeError):
        kube_submit.submit(submission(tmp_path))
    assert place.deleted == []


def test_a_run_whose_end_is_noted_does_not_start_again(
    place: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JOB_VARIABLE, "lab-1")
    monkeypatch.setenv("TFCLUSTER_HOME", str(tmp_path))
    monkeypatch.setattr(kube_own_job, "has_run_ended", lambda job: job == "lab-1")
    lead = SimpleNamespace(take=lambda: None)
    monkeypatch.setattr(kube_own_job, "leadership", lambda job: lead)
    # Its folder is lost, too: nothing is left to fetch.
    assert in_pod.main("lab-1", 3600.0) == 0


def test_the_files_of_an_ended_run_are_kept_until_they_are_fetched_and_then_its_pods_end(
    place: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "apps/statefulsets/lab-1-worker"
    place.add(path, notes={TASKS: "2"})["spec"] = {"replicas": 2}
    began = time.monotonic()
    monkeypatch.setattr(in_pod, "_FETCHED_POLL_S", 0.01)
    assert in_pod._keep_files(RunPaths(tmp_path), 0.2) == 0
    assert time.monotonic() >= began + 0.2
    assert place.patched == [(path, {"spec": {"replicas": 0}}, 0)]


def test_a_stop_waits_for_the_folder_of_its_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFCLUSTER_HOME", str(tmp_path))
    paths, stopped = RunPaths.of("lab-1"), list[Path]()

    def load(asked: RunPaths) -> SimpleNamespace:
        if not asked.root.exists():  # it is unpacked meanwhile
            paths.root.mkdir(parents=True)
            raise SetupError("there is no run")
        return SimpleNamespace(status=Status.RUNNING)

    monkeypatch.setattr(registry, "load_recorded", load)
    monkeypatch.setattr(control, "stop", lambda path, *, why, now: stopped.append(path))
    assert in_pod.stop("lab-1") == 0
    assert stopped == [paths.control_socket]
    assert paths.cancelled.exists()


@pytest.mark.parametrize("status", [Status.STOPPING, Status.INTERRUPTED])
def test_a_run_that_ends_already_is_not_stopped_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    monkeypatch.setenv("TFCLUSTER_HOME", str(tmp_path))
    monkeypatch.setattr(registry, "load_recorded", lambda paths: SimpleNamespace(status=status))
    asked = list[Path]()
    monkeypatch.setattr(control, "stop", lambda path, **how: asked.append(path))
    assert in_pod.stop("lab-1") == 0
    assert asked == []


@pytest.mark.parametrize(
    ("status", "gathering", "code", "times"),
    [
        (Status.RUNNING, {"what": "checkpoints"}, 0, 1),
        (Status.RUNNING, None, NOT_COPYING, 0),
        (Status.SUCCEEDED, None, 0, 0),  # its files are still fetched: nothing may be deleted
    ],
)
def test_only_a_run_that_copies_its_last_files_is_stopped_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: Status,
    gathering: object,
    code: int,
    times: int,
) -> None:
    monkeypatch.setenv("TFCLUSTER_HOME", str(tmp_path))
    state = SimpleNamespace(status=status, gathering=gathering)
    RunPaths.of("lab-1").root.mkdir(parents=True)
    monkeypatch.setattr(registry, "load_recorded", lambda paths: state)
    asked = list[Path]()
    monkeypatch.setattr(control, "stop", lambda path, **how: asked.append(path))
    assert in_pod.stop("lab-1", again=True) == code
    assert len(asked) == times


def test_a_successor_waits_until_its_predecessor_has_saved(
    place: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, slept = place.add("pods/before"), list[float]()
    pod["spec"] = {"terminationGracePeriodSeconds": 60}

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        state = {"terminated": {"exitCode": 75}}
        pod["status"] = {"containerStatuses": [{"name": "coordinator", "state": state}]}

    monkeypatch.setattr(kube_own_job, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    kube_own_job.await_predecessors("lab-1", RunPaths(tmp_path))
    assert len(slept) == 1


def test_a_coordinator_on_a_volume_waits_for_the_one_before_until_that_is_dead_or_silent(
    place: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, slept, silences = RunPaths(tmp_path), list[float](), [1.0, 31.0]
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append)
    monkeypatch.setattr(kube_own_job, "time", clock)
    monkeypatch.setattr(heartbeat, "silent_s", lambda paths: silences.pop(0))
    heartbeat.claim(paths, {"host": "before", "boot_id": "b", "pid": 1, "start": 2})
    kube_own_job.await_predecessors("lab-1", paths)
    assert (silences, len(slept)) == ([], 1)
    ended: Object = {"name": "coordinator", "state": {"terminated": {"exitCode": 75}}}
    place.add("pods/before")["status"] = {"containerStatuses": [ended]}
    silences.append(1.0)
    kube_own_job.await_predecessors("lab-1", paths)
    assert len(slept) == 1
