"""Maps the pod of one replica type: a program, and the section `runtime.kubernetes`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tfcluster.errors import UsageError
from tfcluster.spec.fields import RESERVED_VARIABLES
from tfcluster.spec.job import UNKNOWN_PROGRAM
from tfcluster.tfjob.manifest import Fields

_CONTAINER = "tensorflow"
"""The name of the container that TFJob gives TF_CONFIG to (`SetClusterSpec`)."""
_PORT = "tfjob-port"
_OWN_POD_FIELDS = ("hostNetwork", "hostname", "subdomain", "setHostnameAsFQDN")
_COORDINATOR_TOO = "the pod of the coordinator gets it, too"
_TFJOB_LABEL = re.compile(r'"((training\.kubeflow\.org/|tf-|group[-_]name)[^"]*)"')
_REFERENCE = re.compile(r"\$(\$)?\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_RELATIVE = re.compile(r"(?![-/$~])[^\s=:]*\.(py|sh)")


@dataclass(frozen=True, slots=True)
class Replica:
    """The pods of one replica type: the program, its environment, the section of the spec."""

    fields: Fields
    """The object of the manifest, for notes about it."""
    count: int
    restart_policy: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: dict[str, str]
    pods: dict[str, Any]
    """Fields of `runtime.kubernetes`."""
    user: str | None
    """`runtime.user`; None if the image says who the user is."""
    grace_s: int | None


def map_replica(fields: Fields) -> Replica:
    """Return the tasks of a replica type; notes go to the list of `fields`."""
    count = fields.take("replicas", int)
    policy, template = fields.take("restartPolicy", str) or "Never", fields.below("template")
    metadata, pod = template.below("metadata"), template.below("spec")
    metadata.take("creationTimestamp", str)
    metadata.take("name", str)
    main = _choose_container(pod)
    env, raw_env = _map_env(main)
    command, args = _map_program(main, env)
    volumes, raw_volumes, raw_mounts = _map_volumes(pod, main)
    grace_s = pod.take("terminationGracePeriodSeconds", int)
    user = _map_user(pod, main)
    own = _map_container(main)
    pods = {
        "image": own.pop("image", None),
        "resources": own.pop("resources", None),
        **_map_pod(pod),
        "env_from": _map_env_from(main),
        "volumes": volumes,
        "labels": metadata.take("labels", dict),
        "annotations": metadata.take("annotations", dict),
    }
    own |= main.take_rest() | {"env": raw_env, "volumeMounts": raw_mounts}
    own = {key: value for key, value in own.items() if value}
    pods["pod_template"] = _map_pod_template(pod, raw_volumes, own)
    metadata.note_rest()
    template.note_rest()
    fields.note_rest()
    return Replica(
        fields=fields,
        count=1 if count is None else count,
        restart_policy=policy,
        command=command,
        args=args,
        env=env,
        pods={key: value for key, value in pods.items() if value},
        user=user,
        grace_s=grace_s,
    )


def _choose_container(pod: Fields) -> Fields:
    containers = pod.each("containers")
    if not containers:
        fix = f"give it a container called {_CONTAINER}"
        raise UsageError(f"{pod.at('containers')} is empty", fix=fix)
    named = [each for each in containers if each.values.get("name") == _CONTAINER]
    main = (named or containers)[0]
    if not named:
        message = f"none is called {_CONTAINER}, which TFJob asks for: the first is the task"
        pod.note("changed", "containers", message)
    for other in containers:
        if other is not main:
            message = f"a second container, {other.values.get('name')}, beside the task"
            fix = "start what it does from the command of the task, or in a pod of its own"
            other.note("missing", "", message, fix)
    main.take("name", str)
    return main


def _map_env(main: Fields) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the variables with a value, and those that the pod takes from elsewhere."""
    env: dict[str, str] = {}
    others: list[dict[str, Any]] = []
    for variable in main.each("env"):
        name, value = str(variable.values.get("name", "")), variable.values.get("value")
        if name in RESERVED_VARIABLES:
            message = f"{name} is left out: tfcluster writes it for each task"
            variable.note("changed", "", message)
        elif variable.values.get("valueFrom"):
            others.append(variable.values)
        elif value is not None and not isinstance(value, str):
            fix = "put it in quotes, as Kubernetes asks for"
            raise UsageError(f"{variable.at('value')} of {name} is not a string", fix=fix)
        else:
            env[name] = _expand(value or "", env)
            _note_unknown(variable, "", [env[name]])
    return env, others


def _expand(text: str, env: dict[str, str]) -> str:
    """Replace ``$(NAME)`` as Kubernetes does: unknown names stay, ``$$`` before it is a ``$``."""

    def replaced(match: re.Match[str]) -> str:
        return match[0][1:] if match[1] else env.get(match[2], match[0])

    return _REFERENCE.sub(replaced, text)


def _map_program(main: Fields, env: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    words = {key: _words(main, key, env) for key in ("command", "args")}
    for key in words:
        _note_unknown(main, key, words[key])
    command: tuple[str, ...] = words["command"]
    folder: str | None = main.take("workingDir", str)
    if not command:
        image = main.values.get("image") or "IMAGE"
        message = "none is given: the image's own ENTRYPOINT, which tfcluster does not read"
        fix = "write it into job.command: docker image inspect --format "
        fix += f"'{{{{json .Config.Entrypoint}}}} {{{{json .Config.Cmd}}}}' {image}"
        main.note("needed", "command", message, fix)
        command = (UNKNOWN_PROGRAM,)
    if folder:
        command = ("sh", "-c", 'cd "$0" && exec "$@"', folder, *command)
        main.note("changed", "workingDir", "the command changes to it itself")
    elif relative := [word for word in (*command, *words["args"]) if _RELATIVE.fullmatch(word)]:
        message = f"{relative[0]} is relative, and tasks do not start in the image's WORKDIR"
        fix = "write its absolute path, or put the file beside the spec: it is sent along"
        main.note("needed", "command", message, fix)
    return command, words["args"]


def _note_unknown(fields: Fields, key: str, words: Iterable[str]) -> None:
    for name in (match[2] for word in words for match in _REFERENCE.finditer(word)):
        message = f"$({name}) is not replaced: its value is known only in the pod"
        fix = f'let a shell read it: "command": ["sh", "-c", "... ${name}"]'
        fields.note("missing", key, message, fix)


def _words(main: Fields, key: str, env: dict[str, str]) -> tuple[str, ...]:
    words = main.take(key, list) or []
    if strange := [word for word in words if not isinstance(word, str)]:
        message = f"{main.at(key)}: {strange[0]!r} is not a string"
        raise UsageError(message, fix="put it in quotes, as Kubernetes asks for")
    return tuple(_expand(word, env) for word in words)


def _map_env_from(main: Fields) -> list[dict[str, str]]:
    entries = []
    for source in main.each("envFrom"):
        entry = {}
        for key, field in (("secretRef", "secret"), ("configMapRef", "config_map")):
            reference = source.below(key)
            if name := reference.take("name", str):
                entry[field] = name
            if reference.take("optional", bool):
                reference.note("changed", "optional", "the object must exist")
            reference.note_rest()
        if prefix := source.take("prefix", str):
            entry["prefix"] = prefix
        source.note_rest()
        entries.append(entry)
    return entries


Raw = list[dict[str, Any]]


def _map_mount(name: str, mount: Fields, source: dict[str, Any]) -> dict[str, Any]:
    """Return the spec's volume for a mount of what `source` says."""
    entry = {"name": name, "mount": mount.values.get("mountPath"), **source}
    if mount.values.get("readOnly"):
        entry["read_only"] = True
    if below := mount.values.get("subPath"):
        entry["sub_path"] = below
    return entry


def _map_volumes(pod: Fields, main: Fields) -> tuple[Raw, Raw, Raw]:
    """Return the spec's volumes, then the volumes and mounts that only `pod_template` can say."""
    sources = {str(volume.values.get("name")): volume for volume in pod.each("volumes")}
    volumes, raw_mounts = Raw(), Raw()
    raw, used, mounted = dict[str, dict[str, Any]](), set[str](), list[str]()
    for mount in main.each("volumeMounts"):
        name = str(mount.values.get("name"))
        used.add(name)
        source = _map_source(sources[name].values) if name in sources else None
        known = {"name", "mountPath", "readOnly", "subPath"}
        number = mounted.count(name)
        is_shared = bool(number) and source is not None and "empty_dir" in source
        if source is None or is_shared or set(mount.values) - known:
            raw_mounts.append(mount.values)
            if name in sources and not is_shared:  # else the spec's volume has that name
                raw[name] = sources[name].values
            continue
        mounted.append(name)
        volumes.append(_map_mount(f"{name}-{number + 1}" if number else name, mount, source))
    for init in pod.values.get("initContainers") or ():
        for mount in init.get("volumeMounts") or ():
            if (name := str(mount.get("name"))) in sources and name not in used:
                used.add(name)
                raw[name] = sources[name].values
    _note_volumes(sources, used, raw)
    return volumes, list(raw.values()), raw_mounts


def _note_volumes(
    sources: Mapping[str, Fields], used: Collection[str], raw: Mapping[str, Mapping[str, Any]]
) -> None:
    """Note the volumes that no mount uses, and the `raw` ones, which only `pod_template` has."""
    for name, volume in sources.items():
        if name not in used:
            message = f"the volume {name} is mounted nowhere in the task's container"
            volume.note("missing", "", message, "nothing, if no sidecar uses it")
    for name, values in raw.items():
        kind = next((key for key in values if key != "name"), "emptyDir")
        message = f"{kind}: written into pod_template, so {_COORDINATOR_TOO}, unmounted"
        refused = "the Pod Security Standard `restricted` refuses it; use a claim"
        fix = refused if kind == "hostPath" else ""
        sources[name].note("changed", "", message, fix)


def _map_source(volume: dict[str, Any]) -> dict[str, Any] | None:
    """Return the source of a volume in the words of the spec, or None if it has none."""
    kinds = {key: value for key, value in volume.items() if key != "name"}
    if len(kinds) != 1:
        return None
    ((kind, value),) = kinds.items()
    value = value or {}
    match kind, sorted(value):
        case "persistentVolumeClaim", ["claimName"] | ["claimName", "readOnly"]:
            claim = {"claim": value["claimName"]}
            return claim | ({"read_only": True} if value.get("readOnly") else {})
        case "configMap", ["name"]:
            return {"config_map": value["name"]}
        case "secret", ["secretName"]:
            return {"secret": value["secretName"]}
        case "emptyDir", [*keys] if set(keys) <= {"medium", "sizeLimit"}:
            names = {"medium": "medium", "sizeLimit": "size"}
            return {"empty_dir": {names[key]: value[key] for key in keys}}
    return None


def _map_user(pod: Fields, main: Fields) -> str | None:
    """Return user and group of the task's container, which may differ from those of its pod."""
    both = [(part, part.below("securityContext")) for part in (pod, main)]
    users = [n for _, security in both if (n := security.take("runAsUser", int)) is not None]
    groups = [
        n for _, security in both if users and (n := security.take("runAsGroup", int)) is not None
    ]
    for part, security in both:
        if rest := security.take_rest():
            part.values["securityContext"] = rest
    return ":".join(str(numbers[-1]) for numbers in (users, groups) if numbers) or None


def _map_container(main: Fields) -> dict[str, Any]:
    """Return image, resources, and the fields that go into the container of `pod_template`."""
    section = main.below("resources")
    amounts = {key: section.take(key, dict) for key in ("requests", "limits")}
    section.note_rest()
    for port in main.each("ports"):
        number = port.values.get("containerPort")
        if port.values.get("name") != _PORT and number != 2222:
            message = f"only the run's own pods reach port {number}"
            fix = "`kubectl port-forward` reaches it from outside, or write a NetworkPolicy"
            main.note("changed", "ports", message, fix)
    resources = {key: amount for key, amount in amounts.items() if amount}
    return {"image": main.take("image", str), "resources": resources}


def _map_pod(pod: Fields) -> dict[str, Any]:
    pod.take("restartPolicy", str)  # TFJob overwrites it with the one of the replica type
    account = pod.take("serviceAccountName", str) or pod.values.get("serviceAccount")
    pod.values.pop("serviceAccount", None)
    secrets = [secret.take("name", str) for secret in pod.each("imagePullSecrets")]
    scheduler = pod.take("schedulerName", str)
    if (label := _TFJOB_LABEL.search(json.dumps(pod.values.get("affinity")))) is not None:
        message = f"selects pods by {label[1]}, which TFJob writes; pods of a run lack it"
        fix = "select by tfcluster.dev/task-type (worker), or by runtime.kubernetes.labels"
        pod.note("needed", "affinity", message, fix)
    return {
        "node_selector": pod.take("nodeSelector", dict),
        "tolerations": pod.take("tolerations", list),
        "affinity": pod.take("affinity", dict),
        "service_account": account,
        "image_pull_secrets": secrets,
        "priority_class": pod.take("priorityClassName", str),
        "scheduler_name": None if scheduler == "default-scheduler" else scheduler,
    }


def _map_pod_template(pod: Fields, volumes: Raw, container: dict[str, Any]) -> dict[str, Any]:
    for key in _OWN_POD_FIELDS:
        if pod.values.pop(key, None):
            pod.note("missing", key, "tfcluster gives each pod its own", "leave it out")
    if pod.values.pop("automountServiceAccountToken", None) is not None:
        fix = "give runtime.kubernetes.service_account an account that says so"
        pod.note("missing", "automountServiceAccountToken", "the coordinator needs its token", fix)
    spec: dict[str, Any] = pod.take_rest()
    for key in spec.keys() - {"initContainers"}:
        pod.note("changed", key, f"written into pod_template, so {_COORDINATOR_TOO}")
    if volumes:
        spec["volumes"] = volumes
    if container:
        spec["containers"] = [{"name": "task", **container}]
    return {"spec": spec} if spec else {}
