"""The objects of a run, as few fields as `KubeNodes` needs: to be replaced by `run_objects` and
`run_pods`, which are being written on another branch."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from tfcluster.agent import pod_seat
from tfcluster.spec.kubernetes import Kubernetes

Object = dict[str, Any]
_FOLDER = "/tfcluster/run"


def object_name(run_id: str) -> str:
    """Return the name of a run's objects, a DNS label of at most 40 characters."""
    if re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", run_id):
        return run_id
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:8]
    plain = re.sub(r"[^a-z0-9]+", "-", run_id.lower()).strip("-")[:29].strip("-")
    return f"r-{plain}-{digest}"


def labels(run_id: str, **more: str) -> dict[str, str]:
    """Return the labels of an object of a run."""
    own = {f"tfcluster.dev/{key}": value for key, value in more.items()}
    run = {"tfcluster.dev/run": object_name(run_id), "app.kubernetes.io/managed-by": "tfcluster"}
    return {**run, **own}


def service(run_id: str) -> Object:
    """Return the Service by which the run's pods find each other."""
    name = object_name(run_id)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels(run_id)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"tfcluster.dev/run": name},
        },
    }


def secret(run_id: str, token: str) -> Object:
    """Return the Secret with the run's token and the program of its pods."""
    source = Path(pod_seat.__file__).read_bytes()
    data = {"token": token.encode(), "seat.py": source}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": object_name(run_id), "labels": labels(run_id)},
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def network_policy(run_id: str) -> Object:
    """Return the policy that lets only the run's pods reach each other's ports."""
    name = object_name(run_id)
    own = {"podSelector": {"matchLabels": {"tfcluster.dev/run": name}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": labels(run_id)},
        "spec": {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]},
    }


def task_pod(
    settings: Kubernetes, run_id: str, node: str, generation: int, *, image: str, grace_s: int
) -> Object:
    """Return the pod of a task, whose first program waits for the coordinator."""
    name = object_name(run_id)
    task: Object = {
        "name": "task",
        "image": image,
        "command": ["python3", "-I", "-S", f"{_FOLDER}/seat.py"],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "resources": settings.resources.model_dump(),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tfcluster-run", "mountPath": _FOLDER, "readOnly": True},
            {"name": "tfcluster-tmp", "mountPath": "/tmp"},
        ],
    }
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{node}-g{generation}",
            "labels": labels(run_id, role="task", task=node, generation=str(generation)),
        },
        "spec": {
            "hostname": node,
            "subdomain": name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace_s,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [task],
            "volumes": [
                {"name": "tfcluster-run", "secret": {"secretName": name, "defaultMode": 0o444}},
                {"name": "tfcluster-tmp", "emptyDir": {}},
            ],
        },
    }
    if settings.priority_class:
        pod["spec"]["priorityClassName"] = settings.priority_class
    return merged(pod, settings.pod_template)


def merged(base: Object, more: Object) -> Object:
    """Merge objects key by key, and lists by the `name` of their entries."""
    result = dict(base)
    for key, value in more.items():
        before = result.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            result[key] = merged(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            result[key] = _merged_lists(before, value)
        else:
            result[key] = value
    return result


def _merged_lists(base: list[Any], more: list[Any]) -> list[Any]:
    if not all(isinstance(each, dict) and "name" in each for each in [*base, *more]):
        return [*base, *more]
    by_name = {each["name"]: each for each in base}
    for each in more:
        by_name[each["name"]] = merged(by_name.get(each["name"], {}), each)
    return list(by_name.values())
