"""The spec's `runtime.kubernetes`: the pods of a run, in Kubernetes' words, and their rules.

kubernetes.io/docs/concepts/overview/working-with-objects describes names and labels,
kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity amounts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema, model_validator

from tfcluster.spec import shorten
from tfcluster.spec.fields import (
    Listed,
    Mistake,
    RulesBroken,
    Seconds,
    Section,
    documented,
    field_error,
    matching,
    required,
)
from tfcluster.spec.job import Text

OWN_PREFIX: Final = "tfcluster.dev/"
"""The prefix of tfcluster's own labels and annotations."""
OWN_FOLDER: Final = "/tfcluster"
"""The folder of tfcluster's own files in each pod."""

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = re.compile(rf"({_WORD})?", re.ASCII)
_TOLERATION = frozenset({"key", "operator", "value", "effect", "tolerationSeconds"})
_METADATA = frozenset({"labels", "annotations"})
_FIXED = frozenset({"hostname", "subdomain", "restartPolicy", "setHostnameAsFQDN", "hostNetwork"})
"""Fields of a pod on which tfcluster relies."""


def _check_own_key(value: str) -> str:
    if value.startswith(OWN_PREFIX) or value == "app.kubernetes.io/managed-by":
        raise field_error(f"{value} is set by tfcluster for each pod", "leave it out")
    return value


def is_label_value(value: str) -> bool:
    """Return whether a label can have this value."""
    return _LABEL_VALUE.fullmatch(value) is not None


def _number_to_text(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


def _check_mount(value: str) -> str:
    parts = value.split("/")
    if not value.startswith("/") or ":" in value or ".." in parts:
        raise field_error(f"{shorten(value)} is not an absolute path", 'write for example "/data"')
    path = "/" + "/".join(part for part in parts if part not in ("", "."))
    if path == "/" or path == OWN_FOLDER or path.startswith(f"{OWN_FOLDER}/"):
        message = f"{path} cannot be mounted: a pod needs its own"
        raise field_error(message, 'use another folder, such as "/data"')
    return path


def _check_sub_path(value: str) -> str:
    if value.startswith("/") or ".." in value.split("/"):
        fix = "write a path below the root of the volume, without '..'"
        raise field_error(f"{shorten(value)} is not a folder inside the volume", fix)
    return value


def _check_toleration(value: dict[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(value) - _TOLERATION):
        fix = f"write it as in a pod, with {', '.join(sorted(_TOLERATION))}"
        raise field_error(f"a toleration has no key {shorten(unknown[0])}", fix)
    return value


def _check_pod_template(value: dict[str, Any]) -> dict[str, Any]:
    for key, part in value.items():
        if key not in ("metadata", "spec") or not isinstance(part, dict):
            fix = 'write for example {"spec": {"runtimeClassName": "nvidia"}}'
            raise field_error("a pod template has metadata and spec, two objects", fix)
    if unknown := sorted(set(value.get("metadata", ())) - _METADATA):
        fix = "keep labels and annotations"
        raise field_error(f"metadata.{unknown[0]} is set by tfcluster for each pod", fix)
    if fixed := sorted(set(value.get("spec", ())) & _FIXED):
        raise field_error(f"tfcluster relies on its own {fixed[0]} of each pod", "leave it out")
    return value


DnsLabel = Annotated[
    str,
    matching(
        re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII),
        "a name in Kubernetes (a DNS label)",
        "use 1 to 63 lower-case letters, digits or '-', no '-' at either end",
    ),
]
ObjectName = Annotated[
    str,
    matching(
        re.compile(rf"(?=.{{1,253}}\Z){_SUBDOMAIN}", re.ASCII),
        "a name in Kubernetes",
        "use lower-case letters, digits, '-' and '.', as `kubectl get` shows it",
    ),
]
Key = Annotated[
    str,
    matching(
        re.compile(rf"((?=[^/]{{1,253}}/){_SUBDOMAIN}/)?{_WORD}", re.ASCII),
        "the key of a label",
        'write it as "team" or "example.com/team"',
    ),
]
OwnKey = Annotated[Key, AfterValidator(_check_own_key)]
LabelValue = Annotated[
    str,
    matching(
        _LABEL_VALUE,
        "the value of a label",
        "use at most 63 letters, digits, '-', '_' or '.', a letter or digit at either end",
    ),
]
Quantity = Annotated[
    str,
    BeforeValidator(_number_to_text),
    matching(
        re.compile(
            r"(\d{1,18}(\.\d{0,9})?|\.\d{1,9})([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d{1,2})?", re.ASCII
        ),
        "an amount in Kubernetes",
        'write for example 4, "500m" or "8Gi" (a lower-case m means thousandths)',
    ),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}]}),
]
EnvPrefix = Annotated[
    str,
    matching(
        re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}", re.ASCII),
        "the beginning of a variable's name",
        'use letters, digits and _, for example "DB_"',
    ),
]
Toleration = Annotated[dict[str, Any], AfterValidator(_check_toleration)]
PodTemplate = Annotated[dict[str, Any], AfterValidator(_check_pod_template)]


class PodResources(Section):
    """Requests and limits of a container, by the name of the resource."""

    requests: dict[Key, Quantity] = documented(
        {}, "What the scheduler keeps free for each container.", {"cpu": "4", "memory": "16Gi"}
    )
    limits: dict[Key, Quantity] = documented(
        {},
        "What each container may use at most; GPUs are written here.",
        {"memory": "32Gi", "nvidia.com/gpu": 1},
    )

    @model_validator(mode="after")
    def _check_devices(self) -> Self:
        RulesBroken.check(self._device_mistakes())
        return self

    def _device_mistakes(self) -> Iterator[Mistake]:
        """Yield devices that the API server would refuse: their limit must be their request."""
        for name, number in self.requests.items():
            if "/" in name and self.limits.get(name) != number:
                message = f"the request of {name} is not its limit"
                fix = f'write "limits": {{"{name}": {number}}}; the request follows'
                yield Mistake(("requests", name), message, fix)


class EmptyDir(Section):
    """A folder of the pod, empty at its start."""

    medium: Literal["", "Memory"] = documented(
        "", "`Memory`: kept in memory, which counts towards the pod's limit.", "Memory"
    )
    size: Quantity | None = documented(None, "Largest size; null: no limit.", "8Gi")


_SOURCES = ("claim", "config_map", "secret", "empty_dir")


class Volume(Section):
    """A volume of each task's pod: one source, mounted at one place."""

    name: DnsLabel = required("Required. Name of the volume in the pod.", "data")
    mount: Annotated[Text, AfterValidator(_check_mount)] = required(
        "Required. Absolute path of the folder in the pod.", "/data"
    )
    claim: ObjectName | None = documented(None, "A PersistentVolumeClaim.", "mnist")
    config_map: ObjectName | None = documented(None, "A ConfigMap; its keys are files.", "settings")
    secret: ObjectName | None = documented(None, "A Secret; its keys are files.", "certificates")
    empty_dir: EmptyDir | None = documented(
        None, "A folder of the pod, such as shared memory.", {"medium": "Memory", "size": "8Gi"}
    )
    read_only: bool = documented(False, "Mount it read-only.", True)
    sub_path: Annotated[Text, AfterValidator(_check_sub_path)] | None = documented(
        None, "Folder inside the volume to mount; null: its root.", "mnist/v1"
    )

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        given = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            choices = ", ".join(_SOURCES)
            sources = f"both {given[0]} and {given[1]}" if given else "no source"
            message = f"the volume {self.name} has {sources}"
            RulesBroken.check([Mistake((), message, f"keep exactly one of {choices}")])
        return self


class EnvFrom(Section):
    """An object of the namespace whose keys become variables of the tasks."""

    secret: ObjectName | None = documented(None, "A Secret.", "wandb")
    config_map: ObjectName | None = documented(None, "A ConfigMap.", "settings")
    prefix: EnvPrefix | None = documented(None, "Text before each name; null: none.", "DB_")

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.secret is None) == (self.config_map is None):
            message = "an entry of env_from has one of secret and config_map"
            RulesBroken.check([Mistake((), message, 'write for example {"secret": "wandb"}')])
        return self


_TOLERATION_EXAMPLE = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


class CoordinatorPod(Section):
    """The pod of the coordinator, which needs no GPU."""

    image: Text | None = documented(
        None,
        "Image with `tfcluster[kubernetes]`; null: that of all tasks, `image`.",
        "registry.example.com/tfcluster-join:latest",
    )
    service_account: ObjectName | None = documented(
        None,
        "ServiceAccount that may manage the run's pods; null: `tfcluster`, which is created with "
        "its Role if it is missing.",
        "trainer",
    )
    resources: PodResources = documented(
        PodResources.model_construct(requests={"cpu": "100m", "memory": "256Mi"}, limits={}),
        "Requests and limits. A coordinator of many tasks needs more memory.",
        {"requests": {"cpu": "250m", "memory": "512Mi"}},
    )
    node_selector: dict[Key, LabelValue] = documented(
        {}, "Labels that its node must have.", {"pool": "cpu"}
    )
    tolerations: Listed[Toleration] = documented(
        (), "Tolerations, as in a pod.", [_TOLERATION_EXAMPLE]
    )


class RolePods(Section):
    """The pods of one role; null: as all others, from `runtime.kubernetes`."""

    image: Text | None = documented(None, "Image of its tasks.", "tensorflow/tensorflow:2.15.0")
    resources: PodResources | None = documented(
        None, "Requests and limits of each of its tasks.", {"requests": {"cpu": "2"}}
    )
    node_selector: dict[Key, LabelValue] | None = documented(
        None, "Labels that its nodes must have.", {"pool": "cpu"}
    )
    tolerations: Listed[Toleration] | None = documented(
        None, "Tolerations, as in a pod.", [_TOLERATION_EXAMPLE]
    )


class Kubernetes(Section):
    """The pods of a run in Kubernetes; null leaves a field to the cluster's own default."""

    context: Text | None = documented(
        None, "Context of the kubeconfig; null: the current one.", "training"
    )
    namespace: DnsLabel | None = documented(
        None, "Namespace of the run; null: that of the context.", "vision"
    )
    image: Text | None = documented(
        None,
        "Image of the tasks, with Python 3.9 or newer and TensorFlow; null: `runtime.image`.",
        "tensorflow/tensorflow:2.15.0",
    )
    resources: PodResources = documented(
        PodResources.model_construct(),
        "Requests and limits of each task; GPUs by the name of their resource.",
        {"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": 1}},
    )
    node_selector: dict[Key, LabelValue] = documented(
        {}, "Labels that the nodes must have.", {"accelerator": "a100"}
    )
    tolerations: Listed[Toleration] = documented(
        (), "Tolerations of the nodes' taints, as in a pod.", [_TOLERATION_EXAMPLE]
    )
    affinity: dict[str, Any] | None = documented(
        None,
        "Affinity, as in a pod.",
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
    )
    service_account: ObjectName | None = documented(
        None, "ServiceAccount of the tasks' pods; null: the namespace's default.", "trainer"
    )
    image_pull_secrets: Listed[ObjectName] = documented(
        (), "Secrets with which the images are pulled.", ["registry"]
    )
    env_from: Listed[EnvFrom] = documented(
        (),
        "Secrets and ConfigMaps whose keys become variables of the tasks.",
        [{"secret": "wandb"}],
    )
    volumes: Listed[Volume] = documented(
        (),
        "Volumes of the tasks' pods, each with one source.",
        [{"name": "data", "mount": "/data", "claim": "mnist", "read_only": True}],
    )
    labels: dict[OwnKey, LabelValue] = documented(
        {}, "More labels of all objects of a run.", {"team": "vision"}
    )
    annotations: dict[OwnKey, str] = documented(
        {}, "More annotations of the pods.", {"sidecar.istio.io/inject": "false"}
    )
    priority_class: ObjectName | None = documented(
        None, "PriorityClass of the pods; null: the cluster's default.", "training"
    )
    scheduler_name: ObjectName | None = documented(
        None, "Scheduler of the tasks' pods; null: the default, or that of `gang`.", "my-scheduler"
    )
    gang: Literal["none", "kueue", "volcano", "coscheduling"] = documented(
        "none",
        "Gang scheduler that starts all pods or none. `none`: tfcluster gives all pods back if "
        "they do not fit within `start_deadline_s`, and tries again later.",
        "kueue",
    )
    queue: ObjectName | None = documented(
        None, "Queue of `kueue` (a LocalQueue; required) or `volcano`.", "team-vision"
    )
    pod_template: PodTemplate = documented(
        {},
        "Any other field of the pods of tasks and coordinator, merged last. Objects are merged "
        "key by key; of lists, entries with the same `name`. The containers are called `task` and "
        "`coordinator`; an entry with one of these names goes to that pod only.",
        {"spec": {"runtimeClassName": "nvidia"}},
    )
    run_volume: ObjectName | None = documented(
        None,
        "PersistentVolumeClaim for the run's folder, from which a replaced coordinator goes on; "
        "null: it is in the coordinator's pod.",
        "runs",
    )
    coordinator: CoordinatorPod = documented(
        CoordinatorPod.model_construct(),
        "The pod of the coordinator.",
        {"image": "registry.example.com/tfcluster-join:latest"},
    )
    collect_s: Seconds = documented(
        3600.0,
        "How long the coordinator waits at the end for its files to be fetched, without a "
        "`run_volume`.",
        "1d",
    )

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        RulesBroken.check((*self._check_volumes(), *self._check_gang()))
        return self

    def _check_volumes(self) -> Iterator[Mistake]:
        for field in ("name", "mount"):
            values = [getattr(volume, field) for volume in self.volumes]
            for value in (value for value, count in Counter(values).items() if count > 1):
                index = len(values) - 1 - values[::-1].index(value)
                message = f"two volumes have the {field} {value}"
                yield Mistake(("volumes", index, field), message, "give each its own")
        for index, volume in enumerate(self.volumes):
            if volume.name.startswith("tfcluster"):
                message = f"tfcluster calls its own volumes so: {volume.name}"
                yield Mistake(("volumes", index, "name"), message, "choose another name")

    def _check_gang(self) -> Iterator[Mistake]:
        if self.queue is not None and self.gang not in ("kueue", "volcano"):
            fix = 'add "gang": "kueue" or "gang": "volcano", or leave the queue out'
            yield Mistake(("queue",), f"gang is {self.gang}, which has no queues", fix)
        if self.gang == "kueue" and self.queue is None:
            fix = 'add "queue", the name of a LocalQueue: `kubectl get localqueues` lists them'
            yield Mistake(("gang",), "kueue starts only pods with a queue", fix)
