"""Runs whose coordinator is a Job of a Kubernetes cluster (`backends.jobs.Jobs`).

`submit` makes all objects of a run; the Job owns the others, so deleting it removes everything.
A stop goes through the seat of the coordinator's pod, so that the run saves its work first.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tfcluster.backends.base import Tell
from tfcluster.backends.jobs import JobEnd, JobState, Submission
from tfcluster.backends.kubernetes import pod_dial, run_objects, run_pods
from tfcluster.backends.kubernetes.kube_checks import check as check
from tfcluster.backends.kubernetes.kube_client import (
    JOB_VARIABLE,
    Cluster,
    KubeError,
    KubeSilentError,
    Object,
    context_names,
    reach,
)
from tfcluster.backends.kubernetes.run_objects import CLAIMED, MANAGED_BY, ROLE, RUN, STOP
from tfcluster.backends.kubernetes.submitted.kube_job_states import (
    describe,
    end_of,
    has_stopped,
    run_of,
)
from tfcluster.backends.kubernetes.submitted.kube_mirror import Mirror
from tfcluster.backends.kubernetes.submitted.kube_own_job import can_come_back as can_come_back
from tfcluster.backends.kubernetes.submitted.kube_own_job import ending as ending
from tfcluster.backends.kubernetes.submitted.kube_own_job import own as own
from tfcluster.backends.kubernetes.submitted.kube_own_job import requeue as requeue
from tfcluster.backends.kubernetes.submitted.kube_submit import TOKEN, write_token
from tfcluster.backends.kubernetes.submitted.kube_submit import hints as hints
from tfcluster.backends.kubernetes.submitted.kube_submit import submit as submit
from tfcluster.backends.kubernetes.submitted.kube_submit import warnings as warnings
from tfcluster.backends.past_runs import SilentError, is_live_job
from tfcluster.errors import SetupError
from tfcluster.rundir.paths import RunPaths
from tfcluster.spec.sections import Runtime

_STOP_S: Final = 20.0
_TELL_S: Final = 60.0
_ENDS_S: Final = 5.0
"""Seconds in which the last pods of an ended run usually stop."""
_POLL_S: Final = 0.3


def cluster(of: str | Runtime, *, patience_s: float) -> str:
    """Return the cluster and namespace of a run: ``https://HOST:PORT/NAMESPACE``."""
    if JOB_VARIABLE in os.environ:
        return str(of)
    if isinstance(of, str):
        return _reach(of, patience_s)[0].name
    return reach(of.kubernetes, patience_s=patience_s).name


def run_inside(job: Submission, argv: Sequence[str], *, tell: Tell) -> None:
    """Refuse: no pod has the paths of this machine."""
    raise SetupError(
        "`doctor --deep` does not run in a Kubernetes cluster",
        fix="`tfcluster up SPEC` checks each pod before the tasks start",
    )


def look(cluster: str, *, patience_s: float) -> dict[str, JobState]:
    """Return run → the state of its Job."""
    place, _ = _reach(cluster, patience_s)
    with _silence():
        jobs = place.list("batch/jobs", labels={MANAGED_BY: "tfcluster"})
        pods = place.list("pods", labels={MANAGED_BY: "tfcluster", ROLE: "coordinator"})
        pods.sort(key=_newness)
        by_job = {pod["metadata"].get("labels", {}).get("job-name"): pod for pod in pods}
        found = {}
        for job in jobs:
            name = job["metadata"]["name"]
            selector = f"involvedObject.kind=Job,involvedObject.name={name}"
            is_new = name not in by_job and not job.get("status", {}).get("conditions")
            events = place.list("events", fieldSelector=selector) if is_new else ()
            found[run_of(job)] = describe(job, by_job.get(name), events)
    return found


def explain_end(job: str, *, cluster: str, patience_s: float) -> JobEnd:
    """Return the end that the coordinator has left at its Job, else what became of the Job."""
    place, _ = _reach(cluster, patience_s)
    with _silence():
        found = place.find(f"batch/jobs/{job}")
    return end_of(job, found)


def stop(job: str, *, cluster: str, now: bool) -> None:
    """Ask the coordinator to stop the run; a Job without a running pod is deleted, or `now`."""
    place, context = _reach(cluster, _STOP_S)
    with _silence():
        if (found := place.find(f"batch/jobs/{job}")) is None:
            return
        note = {"metadata": {"annotations": {STOP: "now" if now else "down"}}}
        place.patch(f"batch/jobs/{job}", note)
        pod = _coordinator_pod(place, job)
        if pod is not None and not now:
            _signal(place, context, run_of(found), pod)
        else:
            _delete_all(place, job, now=now)


def _signal(place: Cluster, context: str | None, run: str, pod: str) -> None:
    """Have the coordinator stop its run, as `tfcluster down` does on one machine."""
    secret = place.get(f"secrets/{run_objects.object_name(run)}")
    with _token_file(_decode(secret)) as token:
        argv = pod_dial.forward_argv(
            pod,
            token,
            ["python", "-P", "-m", "tfcluster.in_pod", "--stop", run],
            namespace=place.namespace,
            context=context,
        )
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, check=False, timeout=_TELL_S
            )
            why = done.stderr.strip() if done.returncode else ""
        except subprocess.TimeoutExpired:
            why = f"it does not answer within {_TELL_S:.0f} s"
    if why:
        raise SetupError(
            f"the coordinator in the pod {pod} cannot be told to stop: {why}",
            fix="`tfcluster down --now` deletes its Job",
        )


def follow(paths: RunPaths, job: str, *, cluster: str) -> Mirror | None:
    """Copy the run folder of the coordinator's pod to this machine, in a thread."""
    if JOB_VARIABLE in os.environ:
        return None
    return Mirror(paths, PodFolder(paths, job, cluster)).start()


@dataclass(slots=True)
class PodFolder:
    """The run folder in the coordinator's pod (`kube_mirror.Source`)."""

    paths: RunPaths
    job: str
    cluster: str

    def command(self) -> list[str] | None:
        place, context = _reach(self.cluster, 5.0)
        pod = _coordinator_pod(place, self.job)
        if pod is None:
            return None
        token = self.paths.root / TOKEN
        if not token.exists():
            write_token(self.paths, _decode(place.get(f"secrets/{self.job}")))
        folder = f"{run_pods.STATE_FOLDER}/runs/{self.paths.run_id}"
        module = "tfcluster.wire.folder_stream"
        argv = ["python", "-P", "-m", module, folder]
        return pod_dial.forward_argv(pod, token, argv, namespace=place.namespace, context=context)

    def release(self) -> None:
        place, context = _reach(self.cluster, 5.0)
        if (pod := _coordinator_pod(place, self.job)) is not None:
            token = self.paths.root / TOKEN
            argv = pod_dial.forward_argv(pod, token, [], namespace=place.namespace, context=context)
            subprocess.run([*argv, "--done"], capture_output=True, check=False, timeout=60)
        if not _kept_pods(place, self.job):
            _delete_all(place, self.job)


def find(endpoint: str, run_id: str | None, *, patience_s: float) -> Mapping[str, Sequence[str]]:
    """Return run → its Job, with its pods that were kept (`backends.past_runs.Finder`)."""
    place, _ = _reach(endpoint, patience_s)
    with _silence():
        jobs = place.list("batch/jobs", labels={MANAGED_BY: "tfcluster"})
    found: dict[str, list[str]] = {}
    for job in jobs:
        run = run_of(job)
        folder = RunPaths.of(run).root
        is_left = folder.exists() and not is_live_job(folder)
        if "deletionTimestamp" in job["metadata"]:
            continue
        if run == run_id or (run_id is None and is_left):
            name = job["metadata"]["name"]
            found[run] = [f"Job {name}", *_kept_pods(place, name)]
    return found


def remove(endpoint: str, run_id: str) -> str:
    """Delete the run's Job, and all it owns."""
    place, _ = _reach(endpoint, _STOP_S)
    try:
        with _silence():
            _delete_all(place, run_objects.object_name(run_id))
    except KubeError as error:
        return error.message
    return ""


def _reach(name: str, patience_s: float) -> tuple[Cluster, str | None]:
    """Return the cluster called `name`, and the kubeconfig's context that leads to it.

    Raises SilentError where none does.
    """
    if JOB_VARIABLE in os.environ:
        return reach(SimpleNamespace(context=None, namespace=None), patience_s=patience_s), None
    host, _, namespace = name.rpartition("/")
    why = f"no context of the kubeconfig leads to {host}"
    for context in (None, *context_names(namespace)):
        try:
            wanted = SimpleNamespace(context=context, namespace=namespace)
            found = reach(wanted, patience_s=patience_s)
        except SetupError as error:  # a context that is broken hides no other
            why = error.message
            continue
        if found.host == host:
            return found, context
    raise SilentError(why)


@contextlib.contextmanager
def _silence() -> Any:
    """Turn the error of a cluster that does not answer into SilentError."""
    try:
        yield
    except KubeSilentError as error:
        raise SilentError(error.message) from error


def _coordinator_pod(place: Cluster, job: str) -> str | None:
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


def _kept_pods(place: Cluster, job: str) -> list[str]:
    """Return the tasks' pods of a run that nobody deletes, because they hold files.

    A pod that no coordinator has used holds none.
    """
    labels = place.get(f"batch/jobs/{job}")["metadata"]["labels"]
    pods = place.list("pods", labels={RUN: labels[RUN], ROLE: "task"})
    found = [pod["metadata"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return [f"pod {each['name']}" for each in found if CLAIMED in each.get("annotations", {})]


def _delete_all(place: Cluster, name: str, *, now: bool = False) -> None:
    """Delete the Job and, before it is gone, all that it owns.

    A kubelet keeps the object of an ended pod for up to a minute: it is removed here. `now`: the
    tasks get no time to save.
    """
    job = place.find(f"batch/jobs/{name}")
    if job is None:
        return
    place.delete(f"batch/jobs/{name}", background=False)
    labels, until = {RUN: job["metadata"]["labels"][RUN]}, time.monotonic() + _ENDS_S
    while (pods := place.list("pods", labels=labels)) and time.monotonic() < until:
        for pod in pods:
            if has_stopped(pod) or now:
                grace_s = 0 if has_stopped(pod) else 1
                with contextlib.suppress(KubeError):  # another pod has that name meanwhile
                    path, uid = f"pods/{pod['metadata']['name']}", pod["metadata"]["uid"]
                    place.delete(path, grace_s=grace_s, uid=uid)
        time.sleep(_POLL_S)


def _decode(secret: Object) -> str:
    import base64

    return base64.b64decode(secret["data"][run_objects.COORDINATOR_TOKEN]).decode()


@contextlib.contextmanager
def _token_file(token: str) -> Any:
    import tempfile

    with tempfile.NamedTemporaryFile("w", prefix="tfcluster-") as file:
        file.write(token)
        file.flush()
        yield Path(file.name)
