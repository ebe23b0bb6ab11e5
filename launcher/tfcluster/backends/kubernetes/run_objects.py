"""The objects of a run at the API server, but for what makes its pods: names, labels, Secrets, Job.

All are plain dicts, so that `export` prints exactly what `up` creates. Functions here read no
clock, no environment and no API server. kubernetes.io/docs/reference/kubernetes-api has the fields.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tfcluster.agent.containers import exec_server
from tfcluster.backends.kubernetes import GPU, KIND
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.spec.kubernetes import Kubernetes, is_label_value
from tfcluster.spec.sections import DEFAULT_IMAGE, Runtime

Object = dict[str, Any]

RUN: Final = "tfcluster.dev/run"
ROLE: Final = "tfcluster.dev/role"
TASK_TYPE: Final = "tfcluster.dev/task-type"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
"""Labels. A run's value is its id, or the name of its objects where the id is no label's value."""
RUN_ID: Final = "tfcluster.dev/run-id"
STOP: Final = "tfcluster.dev/stop"
VISITOR: Final = "tfcluster.dev/visitor"
TASKS: Final = "tfcluster.dev/tasks"
"""Annotations: the full id of a run, why its Job is stopped, the process that uses a Job without a
run, and the number of pods that a StatefulSet has while its run does."""

HOME_FOLDER: Final = "/tfcluster/home"
"""The home of a pod's processes."""
ACCOUNT: Final = "tfcluster"
"""The name of the coordinators' ServiceAccount, its Role and its RoleBinding."""
TOKEN, EXEC_SERVER = "token", "exec_server.py"
COORDINATOR_TOKEN: Final = "coordinator-token"
ENV_KEY: Final = "env."
"""The keys of a run's Secret; that of the secret variable X is ``env.X``."""
_KEPT_S: Final = 7 * 86400
_MOST_FAILURES: Final = 1000
_LONGEST_NAME: Final = 40
_POD_GROUPS: Final = {
    "volcano": "scheduling.volcano.sh/v1beta1",
    "coscheduling": "scheduling.x-k8s.io/v1alpha1",
}
"""The gang schedulers with an object for the group → its API (volcano.sh/en/docs/podgroup,
scheduler-plugins: KEP 42, coscheduling)."""


def object_name(run_id: str) -> str:
    """Return the name of a run's objects: a DNS label of at most 40 characters.

    Names of pods and Secrets are longer; a host name has 63 at most, as a label has, which the
    controller of a StatefulSet makes from its name and 11 characters.
    """
    name = re.sub(r"[^a-z0-9]+", "-", run_id.lower()).strip("-")
    if not name[:1].isalpha():  # a Service's name begins with a letter (RFC 1035)
        name = f"r-{name}"
    if name == run_id and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - len(digest) - 1].rstrip('-')}-{digest}"


@dataclass(frozen=True, slots=True)
class PodRun:
    """A run with pods: all that its objects are made from."""

    run_id: str
    plan: Plan
    runtime: Runtime

    @property
    def name(self) -> str:
        return object_name(self.run_id)

    @property
    def settings(self) -> Kubernetes:
        return self.runtime.kubernetes

    def settings_of(self, role: str) -> Kubernetes:
        """Return the settings of the pods of a task type; the tf.data service gets no GPU."""
        settings = self.runtime.of_role(role).kubernetes
        if not TaskId.parse(f"{role}-0").serves_data:
            return settings
        amounts = {
            field: {name: value for name, value in listed.items() if not GPU.search(name)}
            for field, listed in settings.resources
        }
        resources = settings.resources.model_copy(update=amounts)
        return settings.model_copy(update={"resources": resources})

    @property
    def coordinator_image(self) -> str:
        """The image of the coordinator: by default that of tasks whose role has none of its own."""
        return self.settings.coordinator.image or KIND.image(self.runtime) or DEFAULT_IMAGE

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all its objects."""
        return {**self.settings.labels, **run_labels(self.run_id)}

    def metadata(self, name: str, **labels: str) -> Object:
        """Return the metadata of the object `name` with more labels."""
        annotations = {RUN_ID: self.run_id}
        return {"name": name, "labels": {**self.labels, **labels}, "annotations": annotations}

    def pod(self, task: str) -> str:
        """Return the name of the pod of a task (``worker-0``), which its StatefulSet gives it."""
        return f"{self.name}-{task}"

    def host(self, task: str) -> str:
        """Return the host name of a task in TF_CONFIG."""
        return f"{self.pod(task)}.{self.name}"

    @property
    def roles(self) -> dict[str, int]:
        """Task type → the number of its tasks."""
        return Counter(node.name.rpartition("-")[0] for node in self.plan.nodes)


def run_labels(run_id: str) -> dict[str, str]:
    """Return the labels by which the objects of a run are found."""
    label = run_id if is_label_value(run_id) else object_name(run_id)
    return {MANAGED_BY: "tfcluster", RUN: label}


def owned_by(owner: Object) -> Object:
    """Return the reference that makes an object end with `owner`, as the API server returned it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }


def with_owner(made: Object, owner: Object) -> Object:
    """Return `made` as an object that ends with `owner`."""
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [owned_by(owner)]}}


def secret(run: PodRun, token: str, env: Mapping[str, str], *, own_token: str = "") -> Object:
    """Return the Secret of a run: the tokens and the program of its exec servers, and `env`.

    `token`: that of the tasks' exec servers. `own_token`: that of the coordinator's, which the pods
    of tasks do not have; else a task could use the coordinator's ServiceAccount.
    """
    values = {f"{ENV_KEY}{name}": env[name].encode() for name in sorted(env)}
    tokens = {TOKEN: token.encode()} | (
        {COORDINATOR_TOKEN: own_token.encode()} if own_token else {}
    )
    return _opaque(
        run, run.name, {**tokens, EXEC_SERVER: Path(exec_server.__file__).read_bytes(), **values}
    )


def package_name(run: PodRun, number: int) -> str:
    """Return the name of the Secret with a piece of the run's package."""
    return f"{run.name}-package-{number}"


def package_secrets(run: PodRun, held: Sequence[Mapping[str, bytes]]) -> list[Object]:
    """Return the Secrets with the run's package; `held`: the keys and values of each."""
    return [_opaque(run, package_name(run, number), data) for number, data in enumerate(held)]


def service(run: PodRun) -> Object:
    """Return the headless Service, which gives each task's pod its name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": run.metadata(run.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {RUN: run.labels[RUN], ROLE: "task"},
            "ports": [{"name": "exec", "port": exec_server.PORT, "protocol": "TCP"}],
        },
    }


def network_policy(run: PodRun) -> Object:
    """Return the NetworkPolicy that lets only pods of the run reach its pods."""
    selector = {"matchLabels": {RUN: run.labels[RUN]}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": run.metadata(run.name),
        "spec": {
            "podSelector": selector,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": selector}]}],
        },
    }


def pod_group(run: PodRun) -> Object | None:
    """Return the object by which the gang scheduler knows the run's pods; None without one."""
    settings = run.settings
    if (version := _POD_GROUPS.get(settings.gang)) is None:
        return None
    spec: Object = {"minMember": len(run.plan.nodes)}
    if settings.queue is not None:
        spec["queue"] = settings.queue
    if settings.priority_class is not None and settings.gang == "volcano":
        spec["priorityClassName"] = settings.priority_class
    return {
        "apiVersion": version,
        "kind": "PodGroup",
        "metadata": run.metadata(run.name),
        "spec": spec,
    }


def pod_groups(group: Object, namespace: str) -> str:
    """Return the path of the collection that a `pod_group` is made in."""
    return f"/apis/{group['apiVersion']}/namespaces/{namespace}/podgroups"


def coordinator_job(run: PodRun, template: Object) -> Object:
    """Return the Job of the coordinator, whose pods are made from `template`.

    It replaces a pod that is being deleted at once: the end of one on a lost node is never
    reported. The successor waits for its predecessor (`in_pod`) and takes the lead
    (`leadership`).
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": run.metadata(run.name, **{ROLE: "coordinator"}),
        "spec": {
            "backoffLimit": _MOST_FAILURES,
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": template,
        },
    }


def account_objects() -> list[Object]:
    """Return the ServiceAccount of coordinators, its Role and its RoleBinding.

    All runs of a namespace share them, so they belong to no run.
    """
    subject = {"kind": "ServiceAccount", "name": ACCOUNT}
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _shared()},
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": _shared(),
            "rules": _rules(),
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": _shared(),
            "roleRef": {"apiGroup": group, "kind": "Role", "name": ACCOUNT},
            "subjects": [subject],
        },
    ]


def _rules() -> list[Object]:
    """Return what a coordinator may do in its namespace."""

    def rule(group: str, resource: str, *verbs: str) -> Object:
        return {"apiGroups": [group], "resources": [resource], "verbs": [*verbs]}

    return [
        rule("", "pods", "get", "list", "delete"),
        rule("", "events", "list"),
        rule("apps", "statefulsets", "list", "patch"),
        rule("batch", "jobs", "get", "patch"),
    ]


def _shared() -> Object:
    return {"name": ACCOUNT, "labels": {MANAGED_BY: "tfcluster"}}


def _opaque(run: PodRun, name: str, data: Mapping[str, bytes]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": run.metadata(name),
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }
