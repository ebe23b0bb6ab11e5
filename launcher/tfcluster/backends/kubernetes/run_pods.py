"""The makers of a run's pods as plain dicts: StatefulSets for tasks, the coordinator's template.

They pass the Pod Security Standard "restricted" unless `runtime.user` or `pod_template` say
otherwise (kubernetes.io/docs/concepts/security/pod-security-standards), and write nowhere but to
their own volumes, so that a read-only root file system works.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tfcluster.agent.containers import exec_server
from tfcluster.backends.kubernetes.kube_client import JOB_VARIABLE
from tfcluster.backends.kubernetes.run_objects import (
    ACCOUNT,
    COORDINATOR_TOKEN,
    ENV_KEY,
    EXEC_SERVER,
    HOME_FOLDER,
    ROLE,
    RUN,
    TASK_TYPE,
    TASKS,
    TOKEN,
    Object,
    PodRun,
    package_name,
)
from tfcluster.spec.kubernetes import Kubernetes, PodResources, Volume

RUN_FOLDER: Final = "/tfcluster/run"
PACKAGE_FOLDER: Final = "/tfcluster/package"
STATE_FOLDER: Final = "/tfcluster/state"
"""The coordinator's TFCLUSTER_HOME: `runtime.kubernetes.run_volume`, or the pod's own."""
_STATE_VOLUME: Final = "tfcluster-runs"
SHM: Final = "/dev/shm"
TASK_CONTAINER, COORDINATOR_CONTAINER = "task", "coordinator"
COORDINATOR: Final = ("python", "-P", "-m", "tfcluster.in_pod")
"""The command of the coordinator, before the id of its run and the time for its files."""
_MORE_GRACE_S: Final = 30
"""The time after `grace_s` in which the agent ends its tasks and reports it."""
_USER: Final = "1000:1000"
_SCHEDULERS: Final = {"volcano": "volcano", "coscheduling": "scheduler-plugins-scheduler"}
_MERGED_BY: Final = {"volumeMounts": "mountPath", "ports": "containerPort"}
"""Lists of a pod whose items are not known by their name (as for `kubectl patch`)."""


def stateful_sets(run: PodRun) -> list[Object]:
    """Return the StatefulSet of each task type; its pods run the exec server, which waits.

    They begin without pods: `up` cannot know when the coordinator has a place, and pods without
    one would keep others from running. All pods of one are made at once, and a change of the
    template replaces none.
    """
    return [_stateful_set(run, role, number) for role, number in run.roles.items()]


def _stateful_set(run: PodRun, role: str, number: int) -> Object:
    own = {ROLE: "task", TASK_TYPE: role}
    metadata = run.metadata(f"{run.name}-{role}", **own)
    metadata["annotations"] |= {TASKS: str(number)}
    if run.settings.gang == "kueue":
        metadata["labels"] |= {"kueue.x-k8s.io/queue-name": run.settings.queue or ""}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata,
        "spec": {
            "serviceName": run.name,
            "replicas": 0,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {RUN: run.labels[RUN], **own}},
            "template": _task_template(run, role),
        },
    }


def _task_template(run: PodRun, role: str) -> Object:
    settings = run.settings_of(role)
    shm = SHM if any("/" in name for name in settings.resources.limits) else None
    volumes = [_secret_volume(run), *_own_folders(shm, settings.volumes)]
    spec = {
        "automountServiceAccountToken": False,
        **_common_spec(run, settings.tolerations, settings.node_selector),
        **_scheduling(settings),
        "containers": [_task_container(run, role, volumes)],
        "volumes": [*map(_source, volumes), *map(_user_volume, settings.volumes)],
    }
    metadata = run.metadata("", **{ROLE: "task", TASK_TYPE: role})
    del metadata["name"]
    if settings.gang == "coscheduling":
        metadata["labels"] |= {"scheduling.x-k8s.io/pod-group": run.name}
    if settings.gang == "volcano":
        metadata["annotations"] |= {"scheduling.k8s.io/group-name": run.name}
    metadata["annotations"] = {**settings.annotations, **metadata["annotations"]}
    template = {"metadata": metadata, "spec": _without_empty(spec)}
    merged: Object = merge(template, _template_for(TASK_CONTAINER, settings.pod_template))
    return merged


def _task_container(run: PodRun, role: str, volumes: Sequence[Object]) -> Object:
    settings = run.settings_of(role)
    node = next(each for each in run.plan.nodes if each.name.rpartition("-")[0] == role)
    assert node.container is not None
    has_shm = SHM in [*(v["mountPath"] for v in volumes), *(v.mount for v in settings.volumes)]
    # What a container has left there counts towards the memory of the one that follows it.
    command = [node.python, *_server_argv(), *([f"--empty={SHM}"] if has_shm else ())]
    return {
        **_served_container(TASK_CONTAINER, node.container.image, command),
        "env": _environment(),
        "envFrom": [dict(_env_source(entry)) for entry in settings.env_from],
        "resources": _resources(settings.resources),
        "volumeMounts": [*_mounts(volumes), *map(_user_mount, settings.volumes)],
    }


def _served_container(name: str, image: str, command: Sequence[str]) -> Object:
    """Return the fields that the containers of tasks and of the coordinator have alike."""
    return {
        "name": name,
        "image": image,
        **_pull_policy(image),
        "command": [*command],
        "ports": [{"name": "exec", "containerPort": exec_server.PORT, "protocol": "TCP"}],
        "securityContext": _container_security(),
    }


def coordinator_template(
    run: PodRun,
    *,
    secrets: Sequence[str] = (),
    pieces: int = 1,
    program: Sequence[str] | None = None,
) -> Object:
    """Return the template of the coordinator's pod.

    `secrets`: the names of the variables whose values the run's Secret has; they are mounted.
    `pieces`: the number of Secrets with the run's package. A kubelet lists and watches each Secret
    of a pod, at 5 requests per second before Kubernetes 1.27. `program`: what the exec server
    starts; None: the coordinator.
    """
    settings, own = run.settings, run.settings.coordinator
    keys = (f"{ENV_KEY}{name}" for name in sorted(secrets))
    secret = _secret_volume(run, COORDINATOR_TOKEN, *keys)
    volumes = [secret, *([_package_volume(run, pieces)] if pieces else ()), _state_volume(settings)]
    volumes += _own_folders(None, ())
    spec = {
        "restartPolicy": "OnFailure",
        "serviceAccountName": own.service_account or ACCOUNT,
        "automountServiceAccountToken": True,
        **_common_spec(run, own.tolerations, own.node_selector),
        "containers": [_coordinator_container(run, volumes, program)],
        "volumes": [*map(_source, volumes)],
    }
    metadata = run.metadata(run.name, **{ROLE: "coordinator"})
    del metadata["name"]
    metadata["annotations"] = {**settings.annotations, **metadata["annotations"]}
    template = {"metadata": metadata, "spec": _without_empty(spec)}
    merged: Object = merge(template, _template_for(COORDINATOR_CONTAINER, settings.pod_template))
    return merged


def _coordinator_container(
    run: PodRun, volumes: Sequence[Object], program: Sequence[str] | None
) -> Object:
    own = run.settings.coordinator
    if program is None:
        program = (*COORDINATOR, run.run_id, f"{run.settings.collect_s:g}")
    token = f"--token={RUN_FOLDER}/{COORDINATOR_TOKEN}"
    command = ["python3", *_server_argv(), token, *(("--then", *program) if program else ())]
    state = {JOB_VARIABLE: run.name, "TFCLUSTER_HOME": STATE_FOLDER}
    return {
        **_served_container(COORDINATOR_CONTAINER, run.coordinator_image, command),
        "env": [*_environment(), *variables(state)],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": _resources(own.resources),
        "volumeMounts": _mounts(volumes),
    }


def merge(base: Any, over: Any, key: str = "") -> Any:
    """Return `base` with `over` merged into it, as `kubectl patch` does for the most part.

    Objects are merged key by key, and null removes a key. Lists of objects are merged by the name
    of their items, those of `_MERGED_BY` by another field; all other lists are replaced.
    """
    if isinstance(base, dict) and isinstance(over, dict):
        merged = {**base, **{k: merge(base.get(k), value, k) for k, value in over.items()}}
        return {k: value for k, value in merged.items() if k not in over or over[k] is not None}
    by = _MERGED_BY.get(key, "name")
    if not (isinstance(base, list) and isinstance(over, list) and _are_named([*base, *over], by)):
        return over
    changes = {item[by]: item for item in over}
    known = {item[by] for item in base}
    return [
        *(merge(item, changes.get(item[by], {})) for item in base),
        *(item for item in over if item[by] not in known),
    ]


def _are_named(items: Sequence[Any], by: str) -> bool:
    return all(isinstance(item, dict) and by in item for item in items)


def _template_for(container: str, template: Mapping[str, Any]) -> Object:
    """Return the user's template without what is for the other pod's container.

    Init containers prepare tasks: the coordinator's pod has none of the tasks' volumes.
    """
    other = {TASK_CONTAINER, COORDINATOR_CONTAINER} - {container}
    spec = dict(_with_run_as_non_root(template.get("spec", {})))
    if container == COORDINATOR_CONTAINER:
        spec.pop("initContainers", None)
    for kind in ("containers", "initContainers"):
        if isinstance(listed := spec.get(kind), list):
            spec[kind] = [
                _with_run_as_non_root(item)
                for item in listed
                if not (isinstance(item, dict) and item.get("name") in other)
            ]
    return {**template, "spec": spec}


def _with_run_as_non_root(part: Any) -> Any:
    """Return a pod's spec or a container, whose runAsNonRoot follows its runAsUser.

    A kubelet does not start a container with the user 0 beside our own runAsNonRoot.
    """
    security = part.get("securityContext") if isinstance(part, dict) else None
    if not isinstance(security, dict) or not isinstance(user := security.get("runAsUser"), int):
        return part
    return {**part, "securityContext": {"runAsNonRoot": user != 0, **security}}


def _common_spec(
    run: PodRun, tolerations: Sequence[Object], node_selector: Mapping[str, str]
) -> Object:
    """Return the fields that pods of tasks and of the coordinator have alike."""
    settings = run.settings
    grace_s = math.ceil(run.plan.supervision.grace_s) + _MORE_GRACE_S
    return {
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_s,
        "securityContext": _pod_security(run.runtime.user or _USER),
        "priorityClassName": settings.priority_class,
        "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets],
        "nodeSelector": dict(node_selector),
        "tolerations": [*tolerations],
    }


def _scheduling(settings: Kubernetes) -> Object:
    return {
        "serviceAccountName": settings.service_account,
        "schedulerName": settings.scheduler_name or _SCHEDULERS.get(settings.gang),
        "affinity": settings.affinity,
    }


def _pod_security(user: str) -> Object:
    uid, _, gid = user.partition(":")
    group = int(gid or uid)
    return {
        "runAsNonRoot": int(uid) != 0,
        "runAsUser": int(uid),
        "runAsGroup": group,
        "fsGroup": group,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security() -> Object:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _pull_policy(image: str) -> Object:
    """Return the policy for images of `tfcluster build`, which no registry has."""
    if image.startswith(("tfcluster-worker:", "tfcluster-join:")):
        return {"imagePullPolicy": "IfNotPresent"}
    return {}


def _server_argv() -> tuple[str, ...]:
    return ("-I", "-S", f"{RUN_FOLDER}/{EXEC_SERVER}")


def _environment() -> list[Object]:
    """Return variables for a user that the image's /etc/passwd may not have."""
    values = {"HOME": HOME_FOLDER, "USER": "tfcluster", "LOGNAME": "tfcluster"}
    return variables(values)


def variables(values: Mapping[str, str]) -> list[Object]:
    """Return a container's variables; Kubernetes would replace ``$(NAME)`` in their values."""
    return [{"name": name, "value": value.replace("$(", "$$(")} for name, value in values.items()]


def _env_source(entry: Any) -> Iterator[tuple[str, Any]]:
    if entry.prefix is not None:
        yield "prefix", entry.prefix
    if entry.secret is not None:
        yield "secretRef", {"name": entry.secret}
    else:
        yield "configMapRef", {"name": entry.config_map}


def _resources(resources: PodResources) -> Object:
    found = {"requests": dict(resources.requests), "limits": dict(resources.limits)}
    return {name: amounts for name, amounts in found.items() if amounts}


def _secret_volume(run: PodRun, *more_keys: str) -> Object:
    items = [{"key": key, "path": key} for key in (TOKEN, EXEC_SERVER, *more_keys)]
    source = {"secret": {"secretName": run.name, "items": items, "defaultMode": 0o440}}
    return {"name": "tfcluster-run", "mountPath": RUN_FOLDER, "readOnly": True, **source}


def _package_volume(run: PodRun, pieces: int) -> Object:
    """Return the volume with the run's package."""
    sources = [{"secret": {"name": package_name(run, number)}} for number in range(pieces)]
    source = {"projected": {"sources": sources, "defaultMode": 0o440}}
    return {"name": "tfcluster-package", "mountPath": PACKAGE_FOLDER, "readOnly": True, **source}


def _state_volume(settings: Kubernetes) -> Object:
    claim = settings.run_volume
    source: Object = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    return {"name": _STATE_VOLUME, "mountPath": STATE_FOLDER, **source}


def run_volume(job: Object) -> str:
    """Return the claim with the run folder of a Job's coordinator; empty if the pod has it."""
    volumes = job["spec"]["template"]["spec"].get("volumes", ())
    own: Object = next((each for each in volumes if each["name"] == _STATE_VOLUME), {})
    return str(own.get("persistentVolumeClaim", {}).get("claimName", ""))


def _own_folders(shm: str | None, users: Sequence[Volume]) -> list[Object]:
    """Return the folders that tasks write to, but those where the user mounts a volume."""
    taken = {volume.mount for volume in users}
    folders: list[Object] = [
        {"name": "tfcluster-home", "mountPath": HOME_FOLDER, "emptyDir": {}},
        {"name": "tfcluster-tmp", "mountPath": "/tmp", "emptyDir": {}},
    ]
    if shm is not None:  # Kubernetes' default of 64 MB is too small for NCCL
        folders.append(
            {"name": "tfcluster-shm", "mountPath": shm, "emptyDir": {"medium": "Memory"}}
        )
    return [folder for folder in folders if folder["mountPath"] not in taken]


def _mounts(volumes: Sequence[Object]) -> list[Object]:
    fields = ("name", "mountPath", "readOnly")
    return [{key: volume[key] for key in fields if key in volume} for volume in volumes]


def _source(volume: Object) -> Object:
    return {key: value for key, value in volume.items() if key not in ("mountPath", "readOnly")}


def _user_mount(volume: Volume) -> Object:
    mount: Object = {"name": volume.name, "mountPath": volume.mount}
    if volume.read_only:
        mount["readOnly"] = True
    if volume.sub_path is not None:
        mount["subPath"] = volume.sub_path
    return mount


def _user_volume(volume: Volume) -> Object:
    if volume.claim is not None:
        return {"name": volume.name, "persistentVolumeClaim": {"claimName": volume.claim}}
    if volume.config_map is not None:
        return {"name": volume.name, "configMap": {"name": volume.config_map}}
    if volume.secret is not None:
        return {"name": volume.name, "secret": {"secretName": volume.secret}}
    assert volume.empty_dir is not None
    found = {"medium": volume.empty_dir.medium, "sizeLimit": volume.empty_dir.size}
    return {"name": volume.name, "emptyDir": {k: value for k, value in found.items() if value}}


def _without_empty(spec: Object) -> Object:
    """Return a pod's spec without the fields that the user left to the cluster."""
    containers = [
        {key: value for key, value in container.items() if value not in ([], {}, None)}
        for container in spec["containers"]
    ]
    kept = {key: value for key, value in spec.items() if value not in ([], {}, None)}
    return {**kept, "containers": containers}
