"""Runs are stopped, found and removed by the objects that own all others; the API is a fake."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest
from tests.launcher.agent.test_exec_server import Pod
from tests.launcher.backends.kubernetes.fake_api import FakeApi, Object
from tests.launcher.conftest import plan_of

from tfcluster.backends import past_runs
from tfcluster.backends.jobs import Submission
from tfcluster.backends.kubernetes import port_forward
from tfcluster.backends.kubernetes.kube_client import (
    KubeCluster,
    KubeError,
    KubeSilentError,
)
from tfcluster.backends.kubernetes.leadership import LEADER
from tfcluster.backends.kubernetes.run_objects import (
    COORDINATOR_TOKEN,
    STOP,
    VISITOR,
)
from tfcluster.backends.kubernetes.submitted import kube_jobs, kube_own_job
from tfcluster.backends.kubernetes.submitted.kube_own_job import HISTORY
from tfcluster.backends.kubernetes.submitted.kube_package import SUBMITTED_AT
from tfcluster.backends.past_runs import SilentError
from tfcluster.errors import SetupError
from tfcluster.rundir import events as ev
from tfcluster.rundir import registry, run_writer
from tfcluster.rundir.fold import first_state
from tfcluster.rundir.goodput import Goodput
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status
from tfcluster.spec.sections import Runtime


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeApi:
    made = FakeApi()
    monkeypatch.setenv("TFCLUSTER_HOME", str(tmp_path))
    monkeypatch.setattr(kube_jobs, "reach_again", lambda name, patience_s: made)
    monkeypatch.setattr(kube_own_job, "around_pod", lambda: made)
    return made


def running_pod() -> Object:
    return {"containerStatuses": [{"name": "coordinator", "state": {"running": {}}}]}


def notes_of(job: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = job["metadata"]["annotations"]
    return found


def stop(place: FakeApi, *, now: bool = False) -> None:
    kube_jobs.stop("lab-1", cluster="https://k/vision", now=now)


def test_a_stop_is_told_to_the_coordinator_and_a_second_one_deletes_all(
    place: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(kube_jobs, "_signal", lambda place, run, job: told.append(job))
    job = place.add("batch/jobs/lab-1", notes={LEADER: "p"})
    place.add("pods/lab-1-x")["status"] = running_pod()
    stop(place)
    assert (told, notes_of(job)[STOP], place.deleted) == (["lab-1"], "told", [])
    place.objects.pop("pods/lab-1-x")
    stop(place)
    assert place.deleted == ["batch/jobs/lab-1"]


def test_a_second_stop_while_files_are_copied_aborts_that_and_deletes_nothing(
    place: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def abort(place: object, pod: str, run: str) -> bool:
        asked.append(pod)
        return True

    monkeypatch.setattr(kube_jobs, "_abort_copying", abort)
    place.add("batch/jobs/lab-1", notes={LEADER: "p", STOP: "told"})
    place.add("pods/lab-1-x")["status"] = running_pod()
    stop(place)
    assert (asked, place.deleted) == (["lab-1-x"], [])


def test_a_stop_that_the_coordinator_did_not_hear_is_tried_again(
    place: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(place: object, run: str, job: str) -> None:
        raise KubeError("no answer")

    monkeypatch.setattr(kube_jobs, "_signal", fail)
    place.add("batch/jobs/lab-1")
    place.add("pods/lab-1-x")["status"] = running_pod()
    for _ in range(2):
        with pytest.raises(KubeError):
            stop(place)
    assert place.deleted == []


def test_a_run_whose_coordinator_is_being_replaced_keeps_its_pods_until_that_stops_it(
    place: FakeApi,
) -> None:
    job = place.add("batch/jobs/lab-1", notes={LEADER: "p"})
    stop(place)
    assert place.deleted == []
    assert notes_of(job)[STOP] == "told"


class Told:
    """The command that tells a coordinator, as `PodProcess`: connections fail, then it ends."""

    def __init__(self, *failures: str, end: str = "") -> None:
        self.failures, self.end, self.pods = [*failures], end, list[str]()
        self.code, self.on_errors = (1 if end else 0), print

    def __call__(self, place: object, pod: str, *rest: object, **more: object) -> Told:
        self.pods.append(pod)
        if self.failures:
            raise ConnectionError(self.failures.pop(0))
        return self

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def readall(self) -> bytes:
        return b""

    def finish(self) -> str:
        return self.end


@pytest.fixture
def running(place: FakeApi, monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    monkeypatch.setattr(kube_jobs, "_POLL_S", 0.0)
    place.add("batch/jobs/lab-1", notes={LEADER: "p"})
    place.add("pods/lab-1-x")["status"] = running_pod()
    place.add("secrets/lab-1")["data"] = {COORDINATOR_TOKEN: "dG9rZW4="}
    return place


def test_a_coordinator_that_cannot_have_heard_a_stop_is_told_again(
    running: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told("the pod did not answer within 10 s", "no port-forward")
    monkeypatch.setattr(port_forward, "start", told)
    stop(running)
    assert told.pods == ["lab-1-x"] * 3


def test_a_coordinator_that_cannot_have_heard_that_its_files_are_fetched_is_told_again(
    running: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = Told("no port-forward")
    monkeypatch.setattr(port_forward, "start", told)
    kube_jobs.PodFolder(RunPaths(tmp_path / "lab-1"), "lab-1", "k").release()
    assert told.pods == ["lab-1-x"] * 2


def test_a_coordinator_that_may_have_heard_a_stop_is_not_told_again(
    running: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second stop would end its tasks at once."""
    told = Told(end="the connection to the pod broke")
    monkeypatch.setattr(port_forward, "start", told)
    with pytest.raises(SetupError, match="told to stop: pod lab-1-x: the connection to the pod"):
        stop(running)
    assert told.pods == ["lab-1-x"]


def test_a_coordinator_that_cannot_be_told_for_long_is_an_error(
    running: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_jobs, "_STOP_S", 0.0)
    monkeypatch.setattr(port_forward, "start", Told("no port-forward"))
    with pytest.raises(SetupError, match=r"told to stop: pod lab-1-x: no port-forward"):
        stop(running)


def test_a_run_that_never_started_is_deleted(place: FakeApi) -> None:
    place.add("batch/jobs/lab-1")
    stop(place)
    assert place.deleted == ["batch/jobs/lab-1"]


def test_a_slow_kubelet_and_a_late_garbage_collector_leave_no_job_and_no_pod(
    place: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a run's files are fetched nothing is waited for but the tasks' own pods."""
    monkeypatch.setattr(kube_jobs, "_ENDS_S", 0.05)
    monkeypatch.setattr(kube_jobs, "_POLL_S", 0.01)

    def end(path: str, grace_s: int | None, *, background: bool) -> None:
        if grace_s == 0 or (background and "jobs" in path):
            place.objects.pop(path, None)

    monkeypatch.setattr(place, "end", end)
    place.add("batch/jobs/lab-1", uid="a")
    made = place.add("pods/lab-1-x", uid="b", deletionTimestamp="now")
    made["metadata"]["labels"]["tfcluster.dev/role"] = "coordinator"
    made["status"] = running_pod()
    kube_jobs._delete_all(cast("KubeCluster", place), "lab-1")
    assert [*place.objects] == ["batch/jobs/lab-1", "pods/lab-1-x"]  # it may still have files
    kube_jobs._delete_all(cast("KubeCluster", place), "lab-1", is_released=True)
    assert [*place.objects] == []
    job, pod = "batch/jobs/lab-1", "pods/lab-1-x"
    assert place.deleted[1:] == [job, pod, job]


def test_pods_that_have_run_nothing_are_not_waited_for(place: FakeApi) -> None:
    waiting = {"state": {"waiting": {"reason": "ErrImageNeverPull"}}}
    running: Object = {"state": {"running": {}}}
    place.add("batch/jobs/lab-1")
    for name, status in (("x", waiting), ("worker-0", waiting), ("worker-1", running)):
        pod = place.add(f"pods/lab-1-{name}", uid=name)
        pod["status"] = {"phase": "Pending", "containerStatuses": [status]}
    kube_jobs._delete_all(cast("KubeCluster", place), "lab-1", now=True)
    graces = {path: how["grace_s"] for path, how in reversed(place.deletions)}
    assert [graces[f"pods/lab-1-{name}"] for name in ("x", "worker-0", "worker-1")] == [0, 0, 1]


EXAMINE = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
print("waiting", file=sys.stderr)
(folder / "report.json").write_text((folder / "given.json").read_text().upper())
sys.exit(int("fail" in (folder / "given.json").read_text()))
"""


@pytest.fixture
def visited(place: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Have a real exec server in the pod of a Job; return a call that runs `EXAMINE` there."""
    (server_folder := tmp_path / "server").mkdir()
    server, said = Pod(server_folder), list[str]()
    host, _, port = server.address.rpartition(":")

    def open_port(cluster: object, pod: str, number: int) -> socket.socket:
        assert pod == "lab-1-x"
        return socket.create_connection((host, int(port)))

    monkeypatch.setattr(port_forward, "open_port", open_port)
    monkeypatch.setattr(kube_jobs, "reach", lambda settings, patience_s: place)
    monkeypatch.setattr(kube_jobs, "make_visit", lambda job, place: None)
    token = base64.b64encode(b"the token").decode()
    place.add("secrets/lab-1")["data"] = {COORDINATOR_TOKEN: token}
    place.add("batch/jobs/lab-1")
    place.add("pods/lab-1-x", uid="u")["status"] = running_pod()
    (folder := tmp_path / "scratch").mkdir()
    job = Submission("lab-1", folder, (), Runtime(), nodes=2, tasks_per_node=1)

    def run(text: str) -> tuple[str, Sequence[str]]:
        (folder / "given.json").write_text(text)
        kube_jobs.run_inside(job, ["-c", EXAMINE], folder, tell=said.append)
        return (folder / "report.json").read_text(), said

    yield run
    server.process.kill()
    server.process.communicate()


def test_a_python_runs_in_the_coordinators_pod_with_the_files_of_a_folder(
    visited: Any, place: FakeApi
) -> None:
    text = "plan " * 100_000  # longer than one frame
    assert visited(text) == (text.upper(), ["waiting"])
    assert "batch/jobs/lab-1" in place.deleted
    assert not past_runs.is_noted("lab-1")


def test_what_fails_in_the_coordinators_pod_is_an_error_and_leaves_nothing(
    visited: Any, place: FakeApi
) -> None:
    with pytest.raises(SetupError, match="the checks in the pod lab-1-x failed: waiting"):
        visited("fail")
    assert "batch/jobs/lab-1" in place.deleted


def test_checks_end_at_once_if_the_coordinators_pod_can_never_start(
    visited: Any, place: FakeApi
) -> None:
    never = {"waiting": {"reason": "InvalidImageName", "message": "cannot parse A:::"}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "coordinator", "state": never}]}
    pod = place.objects["pods/lab-1-x"]
    pod |= {"spec": {"nodeName": "n1", "containers": [{"image": "A:::"}]}, "status": status}
    with pytest.raises(SetupError, match="the coordinator's pod cannot start"):
        visited("")
    assert "batch/jobs/lab-1" in place.deleted


def find(place: FakeApi, run: str | None = None) -> Mapping[str, Any]:
    return kube_jobs.find("https://k/vision", run, patience_s=1)


def test_the_job_of_checks_whose_process_was_killed_is_found_with_its_pods(
    place: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.add("batch/jobs/lab-1", notes={VISITOR: "host/0/1/2"})
    place.add("pods/lab-1-worker-0-g1", notes={"tfcluster.dev/claimed": "x"})
    assert find(place) == {}
    monkeypatch.setattr(past_runs, "is_orphan", lambda name: name == "host/0/1/2")
    assert find(place) == {"lab-1": ["Job lab-1", "pod lab-1-worker-0-g1"]}
    place.objects.pop("pods/lab-1-worker-0-g1")
    assert kube_jobs.remove("https://k/vision", "lab-1") == ""
    assert place.deleted == ["batch/jobs/lab-1"]


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (KubeError("this user may not list jobs", status=403), "refuses to answer: this user may"),
        (KubeSilentError("away"), "does not answer: away"),
        (SetupError("no context leads there"), "cannot be reached from here: no context"),
    ],
)
def test_a_cluster_that_does_not_say_what_it_has_is_no_proof_that_it_has_nothing(
    place: FakeApi, monkeypatch: pytest.MonkeyPatch, error: SetupError, how: str
) -> None:
    if isinstance(error, KubeError):
        place.refuses[""] = error
    else:
        monkeypatch.setattr(kube_jobs, "reach_again", _raising(error))
    with pytest.raises(SilentError) as raised:
        find(place)
    where = past_runs.Place("kubernetes", "https://k/vision")
    assert f"(https://k/vision) {how}" in str(past_runs.Silent(where, raised.value, ("lab-1",)))


def _raising(error: Exception) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("signal", "job", "pod", "comes_back", "why"),
    [
        (15, {}, {"deletionTimestamp": "now"}, True, "was deleted"),
        (15, {}, {}, True, "ended by its node"),
        (None, {}, {}, None, ""),
        (15, {"notes": {STOP: "told"}}, {}, False, "stopped"),
        (15, {"deletionTimestamp": "now"}, {}, False, "the Job lab-1 was deleted"),
    ],
)
def test_why_the_coordinators_pod_ends(
    place: FakeApi,
    monkeypatch: pytest.MonkeyPatch,
    signal: int | None,
    job: Any,
    pod: Any,
    comes_back: bool | None,
    why: str,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "lab-1-x")
    made = place.add("batch/jobs/lab-1", **job)
    made["spec"] = {"template": {"spec": {"volumes": []}}}
    place.add("pods/lab-1-x", **pod)
    found = kube_own_job.ending("lab-1", restarts=0, signal=signal)
    if comes_back is None:
        assert found is None
        return
    assert found is not None
    assert (found.comes_back, found.loses_folder) == (comes_back, comes_back)
    assert why in found.why


def test_a_pod_that_ends_while_the_api_server_is_away_comes_back(place: FakeApi) -> None:
    place.refuses[""] = KubeSilentError("away")
    found = kube_own_job.ending("lab-1", restarts=0, signal=15)
    assert found is not None
    assert found.comes_back


def test_a_successor_knows_the_restarts_of_a_folder_that_is_lost(place: FakeApi) -> None:
    history = {"attempt": 4, "restarts": [{"attempt": 4, "of": 5}], "ran_s": 90.5}
    history |= {"vain_starts": 2, "newest_at_start": "step 7"}
    history["goodput"] = Goodput(since=50.0, until=60.0, counted={"steps": 40.0}).to_json()
    place.add("batch/jobs/lab-1", notes={HISTORY: json.dumps(history)})
    state = RunSnapshot("lab-1", "lab", Status.QUEUED, [], "h", "b", 1, 1, 0.0)
    kube_own_job.apply_history("lab-1", state)
    assert (state.attempt, state.restarts) == (4, [{"attempt": 4, "of": 5}])
    assert state.continued == {"attempt": 5, "ran_s": 90.5}
    assert (state.vain_starts, state.newest_at_start) == (2, "step 7")
    assert state.goodput is not None
    assert state.goodput.seconds == {"start": 10.0, "steps": 40.0}


@pytest.mark.parametrize("wrong_s", [3600.0, -3600.0, 1.5])
def test_the_times_of_a_run_are_those_of_the_submitters_clock_however_wrong_it_is(
    place: FakeApi, tmp_path: Path, wrong_s: float
) -> None:
    began = datetime.fromisoformat("2026-09-14T12:00:00Z").timestamp()
    place.add("batch/jobs/lab-1", creationTimestamp="2026-09-14T12:00:00Z")
    paths = run_writer.make_new(lambda: "lab-1", tmp_path)
    submitted_at = began + wrong_s
    state = first_state(plan_of(), paths, registry.this_process(), submitted_at)
    RunWriter(state, paths).close()
    (paths.root / SUBMITTED_AT).write_text(str(submitted_at))
    kube_own_job.note_clock("lab-1", paths)
    now = [began + 5]
    writer = RunWriter(registry.load_recorded(paths), paths, clock=lambda: now[0])
    writer.record(ev.RunStarted(version="1", run="lab-1"))
    now[0] += 55
    writer.record(ev.RunFinished(status=Status.SUCCEEDED, exit_code=0))
    writer.close()
    ended = registry.load_recorded(paths)
    assert ended.began_at == began + 5
    assert ended.ended_at is not None
    assert ended.ended_at - ended.started_at == pytest.approx(60, abs=2)
