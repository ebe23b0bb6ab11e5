"""The submission of a run to a Kubernetes cluster: all its objects, or none of them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tfcluster.agent import foreign_json
from tfcluster.backends import past_runs
from tfcluster.backends.jobs import Submission
from tfcluster.backends.kubernetes import run_objects, run_pods
from tfcluster.backends.kubernetes.kube_client import (
    KubeCluster,
    KubeError,
    Object,
    reach,
)
from tfcluster.backends.kubernetes.run_objects import PodRun
from tfcluster.backends.kubernetes.submitted import kube_package
from tfcluster.errors import SetupError
from tfcluster.plans.plan import Plan
from tfcluster.plans.secrets import find_variables
from tfcluster.rundir.paths import RunPaths

_SUBMIT_S: Final = 30.0
_VISIT_S: Final = 1800
_UNDISTURBED_S: Final = 0.1
"""The time without requests after the coordinator's pod is made. Meanwhile the API server learns
which node it is on; a kubelet that asks for a pod's Secret before that is refused, and asks again
after 0.8 to 1.6 s. On a test cluster with two cores that happened in 10 of 16 starts without this
time, and in none of 16 with it."""


def submit(job: Submission) -> str:
    """Create all objects of the run; return the name of its Job. A failure leaves nothing."""
    assert job.plan is not None
    place = reach(job.runtime.kubernetes, patience_s=_SUBMIT_S)
    run = PodRun(job.run_id, job.plan, job.runtime)
    home = run_pods.STATE_FOLDER
    paths = RunPaths(job.folder)
    package = kube_package.build(
        paths, job.plan, job.code(), cluster=place.name, job=run.name, home=home
    )
    values = _environment(job.plan, foreign_json.read_json_object(paths.spec))
    if not job.runtime.kubernetes.coordinator.service_account:
        _require_account(place)
    template = run_pods.coordinator_template(run, secrets=sorted(values), pieces=len(package))
    _make_all(place, run, run_objects.coordinator_job(run, template), values, package)
    return run.name


def make_visit(job: Submission, place: KubeCluster) -> None:
    """Make the objects of a run whose coordinator's pod starts nothing.

    The pod ends after a while if nobody removes it. Raises SetupError.
    """
    assert job.plan is not None
    kubernetes = job.runtime.kubernetes.model_copy(update={"run_volume": None})
    runtime = job.runtime.model_copy(update={"kubernetes": kubernetes})
    run = PodRun(job.run_id, job.plan, runtime)
    template = run_pods.coordinator_template(run, pieces=0, program=())
    made = run_objects.coordinator_job(run, template)
    made["spec"]["activeDeadlineSeconds"] = _VISIT_S
    made["metadata"]["annotations"] |= {run_objects.VISITOR: past_runs.this_process()}
    if not kubernetes.coordinator.service_account:
        _require_account(place)
    _make_all(place, run, made, {}, ())


def _make_all(
    place: KubeCluster,
    run: PodRun,
    job: Object,
    values: Mapping[str, str],
    package: Sequence[Mapping[str, bytes]],
) -> None:
    """Make the Job and all that it owns, and then its pod; delete it if that fails.

    A pod that is made before its Secrets waits for the kubelet's next try to mount them.
    """
    owner = job
    try:
        owner = job | place.create("batch/jobs", {**job, "spec": job["spec"] | {"parallelism": 0}})
        for path, body in _needed_by_pods(place, run, values, package):
            place.create(path, run_objects.with_owner(body, owner))
        place.patch(f"batch/jobs/{run.name}", {"spec": {"parallelism": 1}})
        time.sleep(_UNDISTURBED_S)
    except BaseException as error:
        is_of_another_run = owner is job and isinstance(error, KubeError) and error.is_conflict
        if not is_of_another_run:
            with contextlib.suppress(SetupError):
                uid = owner["metadata"].get("uid")
                place.delete(f"batch/jobs/{run.name}", background=False, uid=uid)
        raise


def _needed_by_pods(
    place: KubeCluster,
    run: PodRun,
    values: Mapping[str, str],
    package: Sequence[Mapping[str, bytes]],
) -> Iterator[tuple[str, Object]]:
    """Yield the objects that the run's pods must not be without, and where they are made."""
    token, own_token = secrets.token_hex(32), secrets.token_hex(32)
    yield "secrets", run_objects.secret(run, token, values, own_token=own_token)
    yield "networking/networkpolicies", run_objects.network_policy(run)
    if (group := run_objects.pod_group(run)) is not None:
        yield run_objects.pod_groups(group, place.namespace), group
    yield "services", run_objects.service(run)
    for made in run_pods.stateful_sets(run):
        yield "apps/statefulsets", made
    for body in run_objects.package_secrets(run, package):
        yield "secrets", body


def warnings(job: Submission) -> Sequence[str]:
    """Return what of the workdir does not reach the cluster; doctor's checks say the rest."""
    return job.left_out()


def hints(job: Submission) -> Sequence[str]:
    """Return where the run's checkpoints will be."""
    assert job.plan is not None
    settings, checkpoints = job.runtime.kubernetes, job.plan.checkpoints
    if checkpoints.dir is not None:
        return [f"checkpoints are saved in {checkpoints.dir} (checkpoints.dir) and stay there"]
    kept = (
        f"gathered on the volume {settings.run_volume}"
        if settings.run_volume
        else "gathered in the coordinator's pod; if that is lost, the run goes on from those in"
        " the chief's pod (runtime.kubernetes.run_volume keeps both)"
    )
    return [
        f"checkpoints are {kept}. At the end they are copied to this machine by `up`, or by the"
        f" next command about the run within {settings.collect_s / 3600:.3g} h"
        " (runtime.kubernetes.collect_s)"
    ]


def _require_account(place: KubeCluster) -> None:
    """Make the coordinators' ServiceAccount with its Role if it is missing. Raises SetupError.

    The account is made last: where it exists, a user who may not read Roles relies on the others.
    """
    name = run_objects.ACCOUNT
    account, *others = run_objects.account_objects()
    try:
        if place.find(f"serviceaccounts/{name}") is not None:
            return
        paths = ("rbac/roles", "rbac/rolebindings", "serviceaccounts")
        for path, body in zip(paths, (*others, account), strict=True):
            try:
                place.create(path, body)
            except KubeError as error:
                if not error.is_conflict:
                    raise
    except KubeError as error:
        if error.status != 403:
            raise
        listed = {"apiVersion": "v1", "kind": "List", "items": [*others, account]}
        raise SetupError(
            f"the ServiceAccount {name} with its Role cannot be made in the namespace"
            f" {place.namespace}: {error.message}",
            fix="have an administrator apply it, or name another one"
            " (runtime.kubernetes.coordinator.service_account):\n"
            f"kubectl -n {place.namespace} apply -f - <<'END'\n{json.dumps(listed)}\nEND",
        ) from error


def _environment(plan: Plan, spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that the coordinator's environment must have to plan the spec again.

    These are secrets, and null variables, whose values are those of the launcher's environment.
    """
    return find_variables(plan) | {
        name: os.environ[name] for name in _null_names(spec) if name in os.environ
    }


def _null_names(value: Any, key: str = "") -> set[str]:
    if isinstance(value, list):
        return set().union(*(_null_names(item) for item in value))
    if not isinstance(value, dict):
        return set()
    if key == "env":
        return {name for name, text in value.items() if text is None}
    return set().union(*(_null_names(item, name) for name, item in value.items()))
