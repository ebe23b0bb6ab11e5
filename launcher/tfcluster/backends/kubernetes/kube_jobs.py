"""Runs whose coordinator is a Job of a Kubernetes cluster (`backends.jobs.Jobs`).

`submit` makes all objects of a run; the Job owns the others, so deleting it removes everything.
A stop goes through the seat of the coordinator's pod, so that the run saves its work first.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tfcluster.agent import foreign_json
from tfcluster.backends.base import Tell
from tfcluster.backends.jobs import JobEnd, JobState, Phase, Submission
from tfcluster.backends.kubernetes import kube_package, pod_dial, pod_reasons, run_objects, run_pods
from tfcluster.backends.kubernetes.kube_checks import check as check
from tfcluster.backends.kubernetes.kube_client import (
    JOB_VARIABLE,
    Cluster,
    KubeError,
    KubeSilentError,
    Object,
    reach,
)
from tfcluster.backends.kubernetes.kube_mirror import Mirror
from tfcluster.backends.kubernetes.kube_own_job import ENDED
from tfcluster.backends.kubernetes.kube_own_job import can_come_back as can_come_back
from tfcluster.backends.kubernetes.kube_own_job import ending as ending
from tfcluster.backends.kubernetes.kube_own_job import own as own
from tfcluster.backends.kubernetes.kube_own_job import requeue as requeue
from tfcluster.backends.kubernetes.run_objects import MANAGED_BY, ROLE, RUN, RUN_ID, STOP, PodRun
from tfcluster.backends.past_runs import SilentError, is_live_job
from tfcluster.errors import SetupError
from tfcluster.plans.plan import Plan
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status
from tfcluster.spec.sections import Runtime

_TOKEN: Final = ".seat-token"
_STOP_S: Final = 20.0
_SUBMIT_S: Final = 30.0


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


def submit(job: Submission) -> str:
    """Create all objects of the run; return the name of its Job. A failure leaves nothing."""
    assert job.plan is not None
    place = reach(job.runtime.kubernetes, patience_s=_SUBMIT_S)
    run = PodRun(job.run_id, job.plan, job.runtime)
    home = run_pods.STATE_FOLDER
    paths = RunPaths(job.folder)
    pieces = kube_package.build(paths, job.plan, cluster=place.name, job=run.name, home=home)
    values = _environment(job.plan, foreign_json.read_json_object(paths.spec))
    template = run_pods.coordinator_template(run, secrets=sorted(values))
    if not job.runtime.kubernetes.coordinator.service_account:
        _require_account(place)
    token = secrets.token_hex(32)
    made = [("secrets", run_objects.secret(run, token, values))]
    made += [("secrets", one) for one in run_objects.package_secrets(run, kube_package.KEY, pieces)]
    made += [("services", run_objects.service(run))]
    made += [("networking/networkpolicies", run_objects.network_policy(run))]
    if (group := run_objects.pod_group(run)) is not None:
        path = f"/apis/{group['apiVersion']}/namespaces/{place.namespace}/podgroups"
        made.append((path, group))
    main = run_objects.coordinator_job(run, template, server=_version(place))
    try:
        owner = main | place.create("batch/jobs", main)
        for path, body in made:
            place.create(path, run_objects.with_owner(body, owner))
        for node in job.plan.nodes:
            pod = run_pods.task_pod(run, node.name, 1)
            _create_pod(place, run_objects.with_owner(pod, owner))
    except BaseException:
        with contextlib.suppress(SetupError):
            _delete_all(place, run.name)
        raise
    _write_token(paths, token)
    return run.name


def warnings(job: Submission) -> Sequence[str]:
    """Return where the run's checkpoints will be."""
    assert job.plan is not None
    settings, checkpoints = job.runtime.kubernetes, job.plan.checkpoints
    if checkpoints.dir is not None:
        return []
    kept = (
        f"on the volume {settings.run_volume}"
        if settings.run_volume
        else "in the coordinator's pod, and are lost with its node (runtime.kubernetes.run_volume"
        " keeps them)"
    )
    return [
        f"until the end of the run its checkpoints are {kept}; then they are copied to this"
        " machine by `up`, or by the next command about the run, within"
        f" {settings.collect_s / 3600:.3g} h (runtime.kubernetes.collect_s)"
    ]


def look(cluster: str, *, patience_s: float) -> dict[str, JobState]:
    """Return run → the state of its Job."""
    place, _ = _reach(cluster, patience_s)
    with _silence():
        jobs = place.list("batch/jobs", labels={MANAGED_BY: "tfcluster"})
        pods = place.list("pods", labels={MANAGED_BY: "tfcluster", ROLE: "coordinator"})
    by_job = {pod["metadata"].get("labels", {}).get("job-name"): pod for pod in pods}
    return {_run_of(job): describe(job, by_job.get(job["metadata"]["name"])) for job in jobs}


def describe(job: Object, pod: Object | None) -> JobState:
    """Return the state of a Job whose newest pod is `pod`."""
    name, notes = job["metadata"]["name"], job["metadata"].get("annotations", {})
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return JobState(Phase.OVER, job=name)
    if "deletionTimestamp" in job["metadata"]:
        return JobState(Phase.ENDING, "it is being deleted", job=name)
    if ENDED in notes:
        status = json.loads(notes[ENDED])["status"]
        return JobState(Phase.ENDING, f"{status}; its files wait to be fetched", job=name)
    if pod is None:
        return JobState(Phase.QUEUED, "the coordinator's pod is not made yet", job=name)
    if pod.get("status", {}).get("phase") == "Pending":
        reason = pod_reasons.explain(pod, ())
        why = f"the coordinator's pod waits: {reason}" if reason else ""
        return JobState(Phase.QUEUED, why, job=name)
    return JobState(Phase.RUNNING, job=name)


def explain_end(job: str, *, cluster: str, patience_s: float) -> JobEnd:
    """Return the end that the coordinator has left at its Job, else what became of the Job."""
    place, _ = _reach(cluster, patience_s)
    with _silence():
        found = place.find(f"batch/jobs/{job}")
    return end_of(job, found)


def end_of(name: str, job: Object | None) -> JobEnd:
    """Return how a Job ended."""
    if job is None:
        return JobEnd(f"the Job {name} was deleted", status=Status.INTERRUPTED)
    notes = job["metadata"].get("annotations", {})
    if ENDED in notes:
        end = json.loads(notes[ENDED])
        return JobEnd(
            end["reason"] or "",
            end["hint"] or "",
            Status(end["status"]),
            exit_code=end["exit_code"],
        )
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["type"] == "Failed":
            return JobEnd(f"the Job {name} failed: {condition.get('message', '')}")
    return JobEnd(f"the coordinator of the Job {name} ended without a word")


def stop(job: str, *, cluster: str, now: bool) -> None:
    """Ask the coordinator to stop the run; a Job without a running pod is deleted, or `now`."""
    place, context = _reach(cluster, _STOP_S)
    with _silence():
        if place.find(f"batch/jobs/{job}") is None:
            return
        note = {"metadata": {"annotations": {STOP: "now" if now else "down"}}}
        place.patch(f"batch/jobs/{job}", note)
        pod = _coordinator_pod(place, job)
        if pod is not None and not now:
            _signal(place, context, job, pod)
        else:
            _delete_all(place, job)


def _signal(place: Cluster, context: str | None, job: str, pod: str) -> None:
    """Have the coordinator stop its run, as `tfcluster down` does on one machine."""
    secret = place.get(f"secrets/{job}")
    with _token_file(_decode(secret)) as token:
        argv = pod_dial.forward_argv(
            pod,
            token,
            ["python", "-P", "-m", "tfcluster.in_pod", "--stop"],
            namespace=place.namespace,
            context=context,
        )
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise SetupError(
            f"the coordinator in the pod {pod} cannot be told to stop: {done.stderr.strip()}",
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
        token = self.paths.root / _TOKEN
        if not token.exists():
            _write_token(self.paths, _decode(place.get(f"secrets/{self.job}")))
        folder = f"{run_pods.STATE_FOLDER}/runs/{self.paths.run_id}"
        module = "tfcluster.backends.kubernetes.folder_stream"
        argv = ["python", "-P", "-m", module, folder]
        return pod_dial.forward_argv(pod, token, argv, namespace=place.namespace, context=context)

    def release(self) -> None:
        place, context = _reach(self.cluster, 5.0)
        if (pod := _coordinator_pod(place, self.job)) is not None:
            token = self.paths.root / _TOKEN
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
        run = _run_of(job)
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
    try:
        here = reach(SimpleNamespace(context=None, namespace=namespace), patience_s=patience_s)
        if here.host == host:
            return here, None
        from kubernetes import config

        for context in config.list_kube_config_contexts()[0]:
            wanted = SimpleNamespace(context=context["name"], namespace=namespace)
            found = reach(wanted, patience_s=patience_s)
            if found.host == host:
                return found, str(context["name"])
    except SetupError as error:
        raise SilentError(error.message) from error
    raise SilentError(f"no context of the kubeconfig leads to {host}")


@contextlib.contextmanager
def _silence() -> Any:
    """Turn the error of a cluster that does not answer into SilentError."""
    try:
        yield
    except KubeSilentError as error:
        raise SilentError(error.message) from error


def _coordinator_pod(place: Cluster, job: str) -> str | None:
    """Return the name of the running pod of a Job."""
    for pod in place.list("pods", labels={"job-name": job}):
        is_running = pod.get("status", {}).get("phase") == "Running"
        if is_running and "deletionTimestamp" not in pod["metadata"]:
            return str(pod["metadata"]["name"])
    return None


def _kept_pods(place: Cluster, job: str) -> list[str]:
    """Return the tasks' pods of a run that nobody deletes, because they hold files."""
    labels = place.get(f"batch/jobs/{job}")["metadata"]["labels"]
    pods = place.list("pods", labels={RUN: labels[RUN], ROLE: "task"})
    names = [pod["metadata"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return [f"pod {each['name']}" for each in names]


def _run_of(made: Object) -> str:
    metadata = made["metadata"]
    return str(metadata.get("annotations", {}).get(RUN_ID, metadata["name"]))


def _delete_all(place: Cluster, name: str) -> None:
    """Delete the Job and, before it is gone, all that it owns."""
    place.delete(f"batch/jobs/{name}", background=False)


def _create_pod(place: Cluster, pod: Object) -> None:
    try:
        place.create("pods", pod)
    except KubeError as error:
        reason = pod_reasons.refused(error.message)
        raise SetupError(str(reason), fix=reason.fix or error.fix) from error


def _require_account(place: Cluster) -> None:
    """Make the coordinators' ServiceAccount with its Role if it is missing. Raises SetupError."""
    paths = ("serviceaccounts", "rbac/roles", "rbac/rolebindings")
    for path, body in zip(paths, run_objects.account_objects(), strict=True):
        try:
            if place.find(f"{path}/{run_objects.ACCOUNT}") is None:
                place.create(path, body)
        except KubeError as error:
            if error.is_conflict:
                continue
            if error.status != 403:
                raise
            text = json.dumps(
                {"apiVersion": "v1", "kind": "List", "items": run_objects.account_objects()}
            )
            raise SetupError(
                f"the ServiceAccount {run_objects.ACCOUNT} with its Role cannot be made in the"
                f" namespace {place.namespace}: {error.message}",
                fix="have an administrator apply it, or name another one"
                " (runtime.kubernetes.coordinator.service_account):"
                f" kubectl -n {place.namespace} apply -f - <<'END'\n{text}\nEND",
            ) from error


def _version(place: Cluster) -> tuple[int, int]:
    found = place.get("/version")
    digits: Callable[[str], int] = lambda text: int("".join(filter(str.isdigit, text)) or 0)  # noqa: E731
    return digits(found["major"]), digits(found["minor"])


def _environment(plan: Plan, spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that the coordinator's environment must have to plan the spec again.

    These are the values of null variables: those of the launcher's environment, and secrets.
    """
    commands = (*(task.command for task in plan.tasks), *plan.prepare.values())
    values = {var.name: var.value for command in commands for var in command.env}
    return {name: values[name] for name in sorted(_null_names(spec)) if name in values}


def _null_names(value: Any, key: str = "") -> set[str]:
    if isinstance(value, list):
        return set().union(*(_null_names(item) for item in value))
    if not isinstance(value, dict):
        return set()
    if key == "env":
        return {name for name, text in value.items() if text is None}
    return set().union(*(_null_names(item, name) for name, item in value.items()))


def _decode(secret: Object) -> str:
    import base64

    return base64.b64decode(secret["data"][run_objects.TOKEN]).decode()


def _write_token(paths: RunPaths, token: str) -> None:
    path = paths.root / _TOKEN
    path.touch(mode=0o600)
    path.write_text(token)


@contextlib.contextmanager
def _token_file(token: str) -> Any:
    import tempfile

    with tempfile.NamedTemporaryFile("w", prefix="tfcluster-") as file:
        file.write(token)
        file.flush()
        yield Path(file.name)
