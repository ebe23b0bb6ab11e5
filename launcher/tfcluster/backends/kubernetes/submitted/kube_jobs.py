"""Runs whose coordinator is a Job of a Kubernetes cluster (`backends.jobs.Jobs`).

`submit` makes all objects of a run; the Job owns the others, so deleting it removes everything.
A stop goes through the exec server of the coordinator's pod, so that the run saves its work first.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tfcluster.agent import foreign_json
from tfcluster.agent.error_text import describe_error
from tfcluster.backends import past_runs
from tfcluster.backends.jobs import JobEnd, JobState, Submission
from tfcluster.backends.kubernetes import port_forward, run_objects, run_pods
from tfcluster.backends.kubernetes.exec_client import PodProcess, as_socket
from tfcluster.backends.kubernetes.kube_checks import check as check
from tfcluster.backends.kubernetes.kube_client import (
    JOB_VARIABLE,
    KubeCluster,
    KubeError,
    KubeSilentError,
    Object,
    reach,
    reach_again,
)
from tfcluster.backends.kubernetes.leadership import LEADER
from tfcluster.backends.kubernetes.reasons import has_terminated, runs_nothing
from tfcluster.backends.kubernetes.run_objects import (
    MANAGED_BY,
    ROLE,
    RUN,
    STOP,
    VISITOR,
)
from tfcluster.backends.kubernetes.submitted import kube_package
from tfcluster.backends.kubernetes.submitted.kube_job_states import (
    describe,
    end_of,
    run_of,
)
from tfcluster.backends.kubernetes.submitted.kube_own_job import NOT_COPYING
from tfcluster.backends.kubernetes.submitted.kube_own_job import can_come_back as can_come_back
from tfcluster.backends.kubernetes.submitted.kube_own_job import ending as ending
from tfcluster.backends.kubernetes.submitted.kube_own_job import own as own
from tfcluster.backends.kubernetes.submitted.kube_own_job import requeue as requeue
from tfcluster.backends.kubernetes.submitted.kube_submit import hints as hints
from tfcluster.backends.kubernetes.submitted.kube_submit import make_visit
from tfcluster.backends.kubernetes.submitted.kube_submit import submit as submit
from tfcluster.backends.kubernetes.submitted.kube_submit import warnings as warnings
from tfcluster.backends.past_runs import RefusedError, SilentError, UnreachableError
from tfcluster.errors import SetupError
from tfcluster.rundir.events import JobSubmitted
from tfcluster.rundir.paths import RunPaths
from tfcluster.spec.sections import Runtime

if TYPE_CHECKING:
    from tfcluster.backends.kubernetes.submitted.kube_mirror import Mirror

_STOP_S: Final = 20.0
_TELL_S: Final = 60.0
_SILENT_S: Final = 30.0
"""Seconds without a sign of life until a connection counts as broken; one is sent every other
second."""
_ENDS_S: Final = 5.0
"""Seconds in which the last pods of an ended run usually stop."""
_POLL_S: Final = 0.3
_CHUNK: Final = 1 << 18
_TOLD: Final = "told"
"""The note about a stop once the coordinator knows of it: the next one does not ask again."""
_seen_since: dict[str, tuple[str, float]] = {}
"""Job or pod → the reason for which it waits, and since when this process knows that."""
_CARRY: Final = """
import json, pathlib, subprocess, sys, tempfile
with tempfile.TemporaryDirectory() as made:
    folder = pathlib.Path(made)
    for name, text in json.load(sys.stdin).items():
        (folder / name).write_text(text)
    argv = [sys.executable, *sys.argv[1:], made]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    code = None
    while code is None:
        try:
            code = process.wait(2)
        except subprocess.TimeoutExpired:
            print(file=sys.stderr, flush=True)
    files = [path for path in folder.iterdir() if path.is_file()]
    json.dump({path.name: path.read_text() for path in files}, sys.stdout)
sys.exit(code)
"""
"""The program for the pod: runs a Python with the files of a folder, and returns them.

Its empty lines are signs of life.
"""


def cluster(of: str | Runtime, *, patience_s: float) -> str:
    """Return the cluster and namespace of a run: ``https://HOST:PORT/NAMESPACE``."""
    if JOB_VARIABLE in os.environ:
        return str(of)
    if isinstance(of, str):
        _reach(of, patience_s)
        return of
    return reach(of.kubernetes, patience_s=patience_s).name


def look(cluster: str, *, patience_s: float) -> dict[str, JobState]:
    """Return run → the state of its Job."""
    place = _reach(cluster, patience_s)
    with _silence():
        jobs = place.list("batch/jobs", labels={MANAGED_BY: "tfcluster"})
        pods = place.list("pods", labels={MANAGED_BY: "tfcluster", ROLE: "coordinator"})
        pods.sort(key=_newness)
        by_job = {pod["metadata"].get("labels", {}).get("job-name"): pod for pod in pods}
        found = {}
        for job in jobs:
            found[run_of(job)] = _state_of(place, job, by_job.get(job["metadata"]["name"]))
    return found


def _state_of(place: KubeCluster, job: Object, pod: Object | None) -> JobState:
    uid = (pod or job)["metadata"].get("uid", "")
    watched_s = functools.partial(_watched_s, uid)
    return describe(job, pod, _events(place, job, pod), watched_s)


def _watched_s(uid: str, what: str) -> float:
    """Return for how long this process has seen the Job or pod wait for a reason."""
    now = time.monotonic()
    if _seen_since.get(uid, ("", now))[0] != what:
        _seen_since[uid] = what, now
    return now - _seen_since[uid][1]


def _events(place: KubeCluster, job: Object, pod: Object | None) -> Sequence[Object]:
    """Return what the cluster says of the coordinator while it has not started."""
    waits, kind = pod, "Pod"
    if pod is None and not job.get("status", {}).get("conditions"):
        waits, kind = job, "Job"
    elif pod is not None and pod.get("status", {}).get("phase") != "Pending":
        waits = None
    if waits is None:
        return ()
    name = waits["metadata"]["name"]
    selector = f"involvedObject.kind={kind},involvedObject.name={name}"
    return place.list("events", fieldSelector=selector)


def run_inside(
    job: Submission, argv: Sequence[str], folder: Path, *, tell: Callable[[str], None]
) -> None:
    """Run a Python in a pod like the coordinator's (`backends.jobs.Jobs.run_inside`)."""
    place = reach(job.runtime.kubernetes, patience_s=_STOP_S)
    name = run_objects.object_name(job.run_id)
    past_runs.note(job.run_id, "kubernetes", place.name)
    make_visit(job, place)
    rest = ""

    def show(errors: bytes) -> None:
        nonlocal rest
        *lines, rest = (rest + errors.decode(errors="replace")).split("\n")
        for line in filter(None, lines):
            tell(line)

    try:
        pod, token = _await_coordinator(place, name, tell), _token_of(place, job.run_id)
        command = ["python", "-P", "-c", _CARRY, *argv]
        files = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
        given, retries_until = json.dumps(files).encode(), time.monotonic() + _STOP_S
        while True:
            answer = _ask(
                place, pod, token, command, timeout_s=_SILENT_S, given=given, on_errors=show
            )
            if answer.was_heard or time.monotonic() >= retries_until:
                break
            time.sleep(_POLL_S)  # it may not listen yet
        if answer.why:
            raise SetupError(f"the checks in the pod {pod} failed: {answer.why}")
        for made, text in foreign_json.parse_json_object(answer.reply).items():
            (folder / Path(made).name).write_text(text)
    finally:
        _delete_all(place, name, now=True)
    past_runs.forget(job.run_id)


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a process in the coordinator's pod."""

    why: str
    """The reason why it failed; empty if it did not."""
    reply: bytes = b""
    """The bytes of its stdout."""
    code: int | None = None
    """The exit code; None if it is not known."""
    was_heard: bool = True
    """False if it was certainly not started."""


def _ask(
    place: KubeCluster,
    pod: str,
    token: bytes,
    argv: Sequence[str],
    *,
    timeout_s: float,
    given: bytes | None = None,
    on_errors: Callable[[bytes], object] = lambda errors: None,
) -> Answer:
    """Run a process in the coordinator's pod to its end; `given`: its stdin, if it reads that."""
    try:
        process = port_forward.start(place, pod, token, argv, timeout_s=timeout_s)
    except OSError as error:
        return Answer(describe_error(error), was_heard=False)
    keep = process.on_errors
    process.on_errors = lambda errors: (keep(errors), on_errors(errors))
    with process:
        try:
            if given is not None:
                for at in (*range(0, len(given), _CHUNK), len(given)):  # the last one ends it
                    process.send(given[at : at + _CHUNK])
            reply = process.readall() or b""
            return Answer(process.finish(), reply, process.code)
        except OSError as error:
            return Answer(process.last_words or describe_error(error))


def _await_coordinator(place: KubeCluster, job: str, tell: Callable[[str], None]) -> str:
    """Return the name of the Job's pod, once it runs. Raises SetupError if it never will."""
    told = ""
    while (running := _coordinator_pod(place, job)) is None:
        pods = sorted(place.list("pods", labels={"job-name": job}), key=_newness)
        state = _state_of(place, place.get(f"batch/jobs/{job}"), pods[-1] if pods else None)
        if state.end is not None:
            raise SetupError(state.end.reason, fix=state.end.fix)
        if state.reason != told:
            tell(told := state.reason)
        time.sleep(_POLL_S)
    return running


def explain_end(job: str, *, cluster: str, patience_s: float) -> JobEnd:
    """Return the end that the coordinator has left at its Job, else what became of the Job."""
    place = _reach(cluster, patience_s)
    with _silence():
        found = place.find(f"batch/jobs/{job}")
    return end_of(job, found)


def restart_orphaned(job: str, *, cluster: str) -> None:
    """Do nothing: a Job replaces its pod by itself."""


def stop(job: str, *, cluster: str, now: bool) -> None:
    """Ask the coordinator to stop the run, or the next one if its pod is being replaced.

    All is deleted `now`, the second time, and if no coordinator has ever started. The second time
    only aborts the copying of a coordinator whose tasks have ended: their files stay in the pods.
    """
    place = _reach(cluster, _STOP_S)
    with _silence():
        if (found := place.find(f"batch/jobs/{job}")) is None:
            return
        notes = found["metadata"].get("annotations", {})
        pod = _coordinator_pod(place, job)
        if not now and notes.get(STOP) == _TOLD:
            if pod is not None and _abort_copying(place, pod, run_of(found)):
                return
            now = True
        _note_stop(place, job, "now" if now else "asked")
        if now or (pod is None and LEADER not in notes):
            _delete_all(place, job, now=now)
            return
        _signal(place, run_of(found), job)
        _note_stop(place, job, _TOLD)


def _abort_copying(place: KubeCluster, pod: str, run: str) -> bool:
    """Have the coordinator leave the last files where they are; return False if tasks still run.

    Raises SetupError if that is not known.
    """
    argv = ["python", "-P", "-m", "tfcluster.in_pod", "--stop-again", run]
    answer = _ask(place, pod, _token_of(place, run), argv, timeout_s=_TELL_S)
    if answer.why and answer.code != NOT_COPYING:
        raise SetupError(
            f"the coordinator in the pod {pod} cannot be asked whether it copies files:"
            f" {answer.why}",
            fix=f"`tfcluster down --now {run}` deletes its Job, with what is not copied yet",
        )
    return answer.code == 0


def _note_stop(place: KubeCluster, job: str, word: str) -> None:
    """Note at the Job that the run is to stop, for a coordinator that starts later."""
    place.patch(f"batch/jobs/{job}", {"metadata": {"annotations": {STOP: word}}})


def _signal(place: KubeCluster, run: str, job: str) -> None:
    """Have the coordinator stop its run, as `tfcluster down` does on one machine.

    One whose pod is gone has a successor, which reads the note.
    """
    if why := _tell(place, run, job, "--stop"):
        raise SetupError(
            f"the coordinator cannot be told to stop: {why}",
            fix=f"`tfcluster down --now {run}` deletes its Job",
        )


def _tell(place: KubeCluster, run: str, job: str, word: str) -> str:
    """Run ``tfcluster.in_pod WORD RUN`` in the coordinator's pod, if there is one.

    It is tried again where it certainly was not started. Return the reason why it failed; empty if
    it did not.
    """
    argv = ["python", "-P", "-m", "tfcluster.in_pod", word, run]
    until = time.monotonic() + _STOP_S
    while (pod := _coordinator_pod(place, job)) is not None:
        answer = _ask(place, pod, _token_of(place, run), argv, timeout_s=_TELL_S)
        if not answer.why or answer.was_heard or time.monotonic() >= until:
            return answer.why and f"pod {pod}: {answer.why}"
        time.sleep(_POLL_S)
    return ""


@contextlib.contextmanager
def connect_coordinator(paths: RunPaths, job: str, *, cluster: str) -> Iterator[socket.socket]:
    """Yield a connection that a process in the coordinator's pod carries."""
    place = _reach(cluster, _STOP_S)
    with _silence():
        if (pod := _coordinator_pod(place, job)) is None:
            raise SetupError("the coordinator's pod does not run", fix="try again in a moment")
        token = _token_of(place, paths.run_id)
    folder = f"{run_pods.STATE_FOLDER}/runs/{paths.run_id}"
    argv = ["python", "-P", "-m", "tfcluster.rundir.control_client", folder]
    why = ""
    try:
        with port_forward.start(place, pod, token, argv, timeout_s=None) as process:
            try:
                with as_socket(process) as connection:
                    yield connection
            except (OSError, ValueError):
                why = process.last_words
                raise
    except (OSError, ValueError) as error:
        problem = why or describe_error(error)
        raise SetupError(f"the coordinator in the pod {pod} cannot be asked: {problem}") from None


def make_copy(paths: RunPaths, job: str, *, cluster: str) -> JobSubmitted:
    """Make the folder as the submitter has made it: the run's package holds it."""
    place = _reach(cluster, _STOP_S)
    with _silence():
        labels = place.get(f"batch/jobs/{job}")["metadata"]["labels"]
        listed = place.list("secrets", labels={RUN: labels[RUN]})
    held = {key: value for each in listed for key, value in (each.get("data") or {}).items()}
    pieces = {k: base64.b64decode(v) for k, v in held.items() if k.startswith(kube_package.KEY)}
    kube_package.unpack_copy(pieces, paths)
    submitted = foreign_json.read_json_object(paths.root / kube_package.SUBMITTED)
    return JobSubmitted(backend="kubernetes", **submitted)


def follow(paths: RunPaths, job: str, *, cluster: str) -> Mirror | None:
    """Copy the run folder of the coordinator's pod to this machine, in a thread."""
    if JOB_VARIABLE in os.environ:
        return None
    from tfcluster.backends.kubernetes.submitted.kube_mirror import Mirror  # it imports asyncio

    return Mirror(paths, PodFolder(paths, job, cluster)).start()


@dataclass(slots=True)
class PodFolder:
    """The run folder in the coordinator's pod (`kube_mirror.PodFolder`)."""

    paths: RunPaths
    job: str
    cluster: str

    @property
    def folder(self) -> str:
        return f"{run_pods.STATE_FOLDER}/runs/{self.paths.run_id}"

    def open(self) -> PodProcess | None:
        place = _reach(self.cluster, 5.0)
        with _silence():
            pod = _coordinator_pod(place, self.job)
            if pod is None:
                return None
            token = _token_of(place, self.paths.run_id)
        argv = ["python", "-P", "-m", "tfcluster.agent.files.file_process"]
        return port_forward.start(place, pod, token, argv, timeout_s=_SILENT_S)

    def release(self) -> None:
        """Have the pod end, without the run's files on a volume, and delete all of the run."""
        place = _reach(self.cluster, 5.0)
        _tell(place, self.paths.run_id, self.job, "--remove")
        owner = place.find(f"batch/jobs/{self.job}")
        if owner is not None and not _kept_pods(place, owner):
            _delete_all(place, self.job, is_released=True)


def find(endpoint: str, run_id: str | None, *, patience_s: float) -> Mapping[str, Sequence[str]]:
    """Return run → its Job with the pods that were kept (`backends.past_runs.Finder`)."""
    place = _reach(endpoint, patience_s)
    found: dict[str, list[str]] = {}
    with _silence(refusals=True):
        for job in place.list("batch/jobs", labels={MANAGED_BY: "tfcluster"}):
            run, metadata = run_of(job), job["metadata"]
            is_asked_for = run == run_id or (run_id is None and _is_left(job))
            if is_asked_for and "deletionTimestamp" not in metadata:
                found[run] = [f"Job {metadata['name']}", *_kept_pods(place, job)]
    return found


def _is_left(job: Object) -> bool:
    """Return whether nobody needs a Job any more that this machine has made."""
    if (visitor := job["metadata"].get("annotations", {}).get(VISITOR)) is not None:
        return past_runs.is_orphan(visitor)
    folder = RunPaths.of(run_of(job)).root
    return folder.exists() and not past_runs.is_live_job(folder)


def remove(endpoint: str, run_id: str) -> str:
    """Delete the Job of a run with all that it owns."""
    place = _reach(endpoint, _STOP_S)
    try:
        with _silence():
            _delete_all(place, run_objects.object_name(run_id), now=True)
    except KubeError as error:
        return error.message
    return ""


def _reach(name: str, patience_s: float) -> KubeCluster:
    """Return the cluster called `name`; raise UnreachableError where nothing leads to it."""
    try:
        return reach_again(name, patience_s=patience_s)
    except SetupError as error:
        raise UnreachableError(error.message) from error


@contextlib.contextmanager
def _silence(*, refusals: bool = False) -> Any:
    """Turn the error of a cluster that does not answer into SilentError; with `refusals`, that of
    one that refuses the request into RefusedError."""
    try:
        yield
    except KubeSilentError as error:
        raise SilentError(error.message) from error
    except KubeError as error:
        if not refusals:
            raise
        raise RefusedError(error.message) from error


def _coordinator_pod(place: KubeCluster, job: str) -> str | None:
    """Return the name of the running pod of a Job; one whose container waits runs nothing."""
    pods = sorted(place.list("pods", labels={"job-name": job}), key=_newness, reverse=True)
    for pod in pods:
        statuses = pod.get("status", {}).get("containerStatuses") or ()
        is_running = any("running" in (each.get("state") or {}) for each in statuses)
        if is_running and "deletionTimestamp" not in pod["metadata"]:
            return str(pod["metadata"]["name"])
    return None


def _newness(pod: Object) -> tuple[bool, str]:
    """Return a key that sorts the pod that counts last."""
    metadata = pod["metadata"]
    return "deletionTimestamp" not in metadata, str(metadata.get("creationTimestamp", ""))


def _kept_pods(place: KubeCluster, owner: Object) -> list[str]:
    """Return the tasks' pods of a run that nobody deletes, because they hold files."""
    labels = {RUN: owner["metadata"]["labels"][RUN], ROLE: "task"}
    pods = [pod["metadata"] for pod in place.list("pods", labels=labels)]
    return [f"pod {each['name']}" for each in pods if "deletionTimestamp" not in each]


def _delete_all(
    place: KubeCluster, name: str, *, now: bool = False, is_released: bool = False
) -> None:
    """Delete the Job and, before it is gone, all that it owns.

    A kubelet keeps the object of an ended pod for up to a minute: it is removed here. `now`: the
    tasks get no time to save. `is_released`: the coordinator's pod has nothing to do any more, so
    it is not waited for if its kubelet is slow to report its end.
    """
    path = f"batch/jobs/{name}"
    if (owner := place.find(path)) is None:
        return
    labels, until = {RUN: owner["metadata"]["labels"][RUN]}, time.monotonic() + _ENDS_S
    if now:  # first: a kubelet that has begun to wait for a grace does not shorten it
        for pod in place.list("pods", labels={**labels, ROLE: "task"}):
            _delete_pod(place, pod, grace_s=0 if runs_nothing(pod) else 1)
        for made in place.list("apps/statefulsets", labels=labels):  # else it makes them again
            place.delete(f"apps/statefulsets/{made['metadata']['name']}")
    place.delete(path, background=False)
    while pods := place.list("pods", labels=labels):
        is_late = time.monotonic() >= until
        for pod in pods:
            is_free = is_late and is_released and _is_coordinator(pod)
            if has_terminated(pod) or is_free or now:
                is_dead = has_terminated(pod) or is_free or runs_nothing(pod)
                _delete_pod(place, pod, grace_s=0 if is_dead else 1)
        if is_late:
            break
        time.sleep(_POLL_S)
    if not place.list("pods", labels=labels) and place.find(path) is not None:
        # The garbage collector lets the owner wait longer, by its own back-off.
        place.delete(path, uid=owner["metadata"].get("uid"))


def _is_coordinator(pod: Object) -> bool:
    return bool(pod["metadata"]["labels"].get(ROLE) == "coordinator")


def _delete_pod(place: KubeCluster, pod: Object, *, grace_s: int) -> None:
    with contextlib.suppress(KubeError):  # another pod has that name meanwhile
        path, uid = f"pods/{pod['metadata']['name']}", pod["metadata"]["uid"]
        place.delete(path, grace_s=grace_s, uid=uid)


def _token_of(place: KubeCluster, run: str) -> bytes:
    """Return the token of the exec server of a run's coordinator."""
    secret = place.get(f"secrets/{run_objects.object_name(run)}")
    return base64.b64decode(secret["data"][run_objects.COORDINATOR_TOKEN])
