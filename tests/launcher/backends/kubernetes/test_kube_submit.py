"""A run is submitted whole or not at all; its coordinator continues what another has begun."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.documentation import ROOT

from tfcluster import in_pod
from tfcluster.api import make_launch
from tfcluster.backends.jobs import Submission
from tfcluster.backends.kubernetes import pod_files
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
Object = dict[str, Any]


class FakePlace:
    """An API server that notes what it is asked to do."""

    name, namespace = "https://k/vision", "vision"

    def __init__(self) -> None:
        self.made: list[Object] = []
        self.deleted: list[tuple[str, str | None]] = []
        self.refuses: dict[str, KubeError] = {}
        self.pods: list[Object] = [{"spec": {"nodeName": "n1"}}]
        """The coordinator's pod, once the Job may make it."""
        self.patched: list[tuple[str, Object, int]] = []
        """Path, change, and how many objects there were."""

    def patch(self, path: str, body: Object) -> None:
        self.patched.append((path, body, len(self.made)))

    def find(self, path: str) -> Object:
        return {}

    def create(self, path: str, body: Object) -> Object:
        if (error := self.refuses.get(path)) is not None:
            raise error
        self.made.append(body)
        return {"metadata": {**body["metadata"], "uid": f"uid-{len(self.made)}"}}

    def delete(self, path: str, *, background: bool, uid: str | None) -> None:
        self.deleted.append((path, uid))

    def list(self, path: str, *, labels: object) -> list[Object]:
        return self.pods


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> FakePlace:
    made = FakePlace()
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
    place: FakePlace, tmp_path: Path
) -> None:
    assert kube_submit.submit(submission(tmp_path)) == "lab-1"
    kinds = [made["kind"] for made in place.made]
    needed = ["Job", "Secret", "NetworkPolicy", "Service", "StatefulSet", "Secret", "Secret"]
    assert kinds == needed
    assert place.made[0]["spec"]["parallelism"] == 0
    assert place.patched == [("batch/jobs/lab-1", {"spec": {"parallelism": 1}}, len(needed))]


def test_the_pod_for_checks_starts_nothing_and_uses_no_volume_of_a_run(
    place: FakePlace, tmp_path: Path
) -> None:
    job = submission(tmp_path)
    kubernetes = job.runtime.kubernetes.model_copy(update={"run_volume": "runs"})
    job = replace(job, runtime=job.runtime.model_copy(update={"kubernetes": kubernetes}))
    token = kube_submit.make_visit(job, place)  # type: ignore[arg-type]
    kinds = [made["kind"] for made in place.made]
    assert kinds == ["Job", "Secret", "NetworkPolicy", "Service", "StatefulSet"]
    assert decode(place.made[1], "coordinator-token") == token.decode()
    pod = place.made[0]["spec"]["template"]["spec"]
    assert "--then" not in pod["containers"][0]["command"]
    assert not any("persistentVolumeClaim" in volume for volume in pod["volumes"])
    assert "tfcluster-package" not in [volume["name"] for volume in pod["volumes"]]


def test_the_token_here_is_that_of_the_coordinators_seat(place: FakePlace, tmp_path: Path) -> None:
    kube_submit.submit(submission(tmp_path))
    job, secret, *_, tasks, _, _ = place.made
    mounted = [items_of(made["spec"]["template"]["spec"]) for made in (tasks, job)]
    assert mounted == [["token", "seat.py"], ["token", "seat.py", "coordinator-token"]]
    decoded = [decode(secret, key) for key in ("token", "coordinator-token")]
    assert (tmp_path / ".seat-token").read_text() == decoded[1] != decoded[0]


def items_of(spec: Object) -> list[str]:
    (found,) = (v for v in spec["volumes"] if v["name"] == "tfcluster-run")
    return [item["key"] for item in found["secret"]["items"]]


def decode(secret: Object, key: str) -> str:
    import base64

    return base64.b64decode(secret["data"][key]).decode()


def test_a_refused_object_takes_back_the_run_and_no_other(place: FakePlace, tmp_path: Path) -> None:
    place.refuses["services"] = KubeError("no", status=403)
    with pytest.raises(KubeError):
        kube_submit.submit(submission(tmp_path))
    assert place.deleted == [("batch/jobs/lab-1", "uid-1")]


def test_the_job_of_another_run_is_left_alone(place: FakePlace, tmp_path: Path) -> None:
    place.refuses["batch/jobs"] = KubeError("it exists", status=409)
    with pytest.raises(KubeError):
        kube_submit.submit(submission(tmp_path))
    assert place.deleted == []


def test_a_run_whose_end_is_noted_does_not_start_again(
    place: FakePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JOB_VARIABLE, "lab-1")
    monkeypatch.setenv("TFCLUSTER_HOME", str(tmp_path))
    monkeypatch.setattr(kube_own_job, "has_run_ended", lambda job: job == "lab-1")
    lead = SimpleNamespace(take=lambda: None)
    monkeypatch.setattr(kube_own_job, "leadership", lambda job: lead)
    place.pods = []  # and its folder is lost: nothing is left to fetch
    assert in_pod.main("lab-1", 3600.0) == 0


def test_the_files_of_an_ended_run_are_kept_until_they_are_fetched_and_then_its_pods_end(
    place: FakePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"metadata": {"name": "lab-1-worker", "annotations": {TASKS: "2"}}}
    place.pods = [{**made, "spec": {"replicas": 2}}]
    began = time.monotonic()
    monkeypatch.setattr(in_pod, "_FETCHED_POLL_S", 0.01)
    assert in_pod._keep_files(RunPaths(tmp_path), 0.2) == 0
    assert time.monotonic() >= began + 0.2
    assert place.patched == [("apps/statefulsets/lab-1-worker", {"spec": {"replicas": 0}}, 0)]


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
    place: FakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod: Object = {"metadata": {"name": "before"}, "spec": {"terminationGracePeriodSeconds": 60}}
    place.pods, slept = [pod], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        state = {"terminated": {"exitCode": 75}}
        pod["status"] = {"containerStatuses": [{"name": "coordinator", "state": state}]}

    monkeypatch.setattr(kube_own_job, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    kube_own_job.await_predecessors("lab-1")
    assert len(slept) == 1


def test_a_coordinator_on_a_volume_waits_for_the_one_before_until_that_is_dead_or_silent(
    place: FakePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, slept, silences = RunPaths(tmp_path), list[float](), [1.0, 31.0]
    kube_own_job.await_silence(paths)  # nobody has been there
    before = {"host": "before", "boot_id": "b", "pid": 1, "start": 2}
    heartbeat.claim(paths, {**before, "host": socket.gethostname()})
    kube_own_job.await_silence(paths)  # it was in this pod
    heartbeat.claim(paths, before)
    monkeypatch.setattr(kube_own_job, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr(heartbeat, "silent_s", lambda paths: silences.pop(0))
    kube_own_job.await_silence(paths)
    assert (silences, len(slept)) == ([], 1)
    ended: Object = {"name": "coordinator", "state": {"terminated": {"exitCode": 75}}}
    monkeypatch.setattr(place, "find", lambda path: {"status": {"containerStatuses": [ended]}})
    silences.append(1.0)
    kube_own_job.await_silence(paths)
    assert len(slept) == 1


def test_what_a_pod_is_to_send_are_its_files_once_its_tasks_are_dead(tmp_path: Path) -> None:
    (saved := tmp_path / "saved").mkdir()
    (saved / "ckpt-1.index").write_text("1")
    (into := tmp_path / "into").mkdir()
    task = subprocess.Popen(["sleep", "600"], env={"TFCLUSTER_RUN_ID": "lab-1"})
    argv = pod_files.sender_argv("lab-1", str(saved))
    sent = subprocess.run([sys.executable, *argv[1:]], stdout=subprocess.PIPE, check=True).stdout
    assert task.wait(60) == -9
    assert pod_files._unpack(io.BytesIO(sent), into)
    assert (into / "ckpt-1.index").read_text() == "1"


def test_an_archive_that_is_damaged_or_leads_out_of_its_folder_has_not_arrived(
    tmp_path: Path,
) -> None:
    (inner := tmp_path / "inner").mkdir()
    assert not pod_files._unpack(io.BytesIO(b"no archive"), inner)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    assert not pod_files._unpack(file, inner)
    assert not [*tmp_path.glob("outside")]
