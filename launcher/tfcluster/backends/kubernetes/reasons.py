"""Says why a pod does not run, does not answer, ended or was refused, and what follows (pure).

The class comes from the codes of the API, and the words are the server's; only where they mislead,
or say nothing, `CODES` has a sentence of ours, with the server's text beneath. Sources: the kubelet
(pkg/kubelet: container/sync_result.go, images/types.go, eviction/helpers.go, nodeshutdown,
preemption, lifecycle/predicate.go), the controllers of nodes (pkg/controller/tainteviction, podgc,
util/node), the scheduler (pkg/scheduler), and
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions (1.25).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from tfcluster.backends.kubernetes import MEMORY_FIX
from tfcluster.backends.kubernetes.run_pods import COORDINATOR_CONTAINER, TASK_CONTAINER
from tfcluster.node_loss import LossNature, NodeLoss

Object = Mapping[str, Any]
_OWN = frozenset({TASK_CONTAINER, COORDINATOR_CONTAINER})
"""The containers of ours; a template or an admission webhook may add others."""
_UNITS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3} | {
    f"{prefix}{i}": base**power
    for power, prefix in enumerate("KMGTPE", 1)
    for base, i in ((1000.0, ""), (1024.0, "i"))
}
_STARTS = frozenset({"Pulling", "Pulled", "Created", "Started"})
"""Events of a pod whose network and volumes are there."""
_NORMAL = frozenset({None, "ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that only takes its time."""


class Words(NamedTuple):
    """The class of a reason, and the words for it."""

    nature: LossNature | None = None
    """The class; None: the pod only waits, and that may pass without anybody's help."""
    what: str = ""
    """A sentence of ours; else the code is named."""
    fix: str = ""
    patience_s: float | None = None
    """Seconds after which a waiting reason is permanent: what a Secret that is created a moment
    later would fix, or a registry that is away for a moment, must not end a run."""
    tries: int | None = None
    """The attempt of the kubelet after which it is permanent, too."""


_READ_MESSAGE: Final = "the message names what the cluster's rules do not allow"
_PULL = Words(
    None,
    "the image {image} cannot be pulled",
    "does it exist, also for the nodes' processors? Correct runtime.kubernetes.image, or push it. A"
    " private one needs a Secret: `kubectl create secret docker-registry NAME ...`, named in"
    " runtime.kubernetes.image_pull_secrets",
    patience_s=60.0,
    tries=3,
)
_NO_REGISTRY = Words(
    None,
    "the node cannot get the image {image} from its registry",
    "is the registry up, and may the nodes reach it? A registry that the cluster can reach, or the"
    " image on every node, helps",
    patience_s=300.0,
)
_NOT_STARTED = Words(fix=_READ_MESSAGE, patience_s=60.0)
_NO_SETUP = Words(
    fix="the message says why; `kubectl describe pvc` shows the state of a claim", patience_s=300.0
)
_MISSING = Words(
    fix="create what is not found, or correct env_from or volumes in runtime.kubernetes: `kubectl"
    " get secrets,configmaps,pvc`",
    patience_s=60.0,
)
_DELETED = Words(
    LossNature.PREEMPTED, "the pod was deleted (kubectl delete, or a controller of the cluster)"
)
_LOST = Words(LossNature.INFRASTRUCTURE)
_OUTRANKED = Words(
    LossNature.PREEMPTED,
    fix="runtime.kubernetes.priority_class decides which pods may be preempted",
)

CODES: Final[Mapping[str, Words]] = {
    # A container that waits.
    **dict.fromkeys(("ErrImagePull", "ImagePullBackOff", "ImageInspectError"), _PULL),
    "SignatureValidationFailed": _PULL,
    "RegistryUnavailable": _NO_REGISTRY,
    "InvalidImageName": Words(LossNature.PERMANENT, fix="correct runtime.kubernetes.image"),
    "ErrImageNeverPull": Words(
        LossNature.PERMANENT,
        fix="load the image on every node, or remove imagePullPolicy from"
        " runtime.kubernetes.pod_template",
    ),
    **dict.fromkeys(("CreateContainerConfigError", "CreateContainerError"), _NOT_STARTED),
    "RunContainerError": _NOT_STARTED,
    "CrashLoopBackOff": Words(fix="`kubectl logs --previous POD` says why"),
    # A pod that waits.
    "SchedulingGated": Words(
        None,
        "the pod waits for its queue: a controller (such as Kueue) holds it back",
        "`kubectl get workloads` shows Kueue's queue; runtime.kubernetes.queue names it",
    ),
    "FailedScheduling": Words(
        None,
        "no node has a place for the pod now",
        "wait for other pods, ask for less in runtime.kubernetes.resources, or correct"
        " node_selector, affinity or tolerations: `kubectl describe nodes` shows all of it",
    ),
    **dict.fromkeys(("FailedMount", "FailedMapVolume", "FailedCreatePodSandBox"), _NO_SETUP),
    "FailedAttachVolume": Words(
        fix="a claim with access mode ReadWriteOnce serves one node only: use ReadWriteMany, or end"
        " the pods that use it",
        # The attach/detach controller takes a volume from a lost node after 6 minutes
        # (pkg/controller/volume/attachdetach, ReconcilerMaxWaitForUnmountDuration).
        patience_s=480.0,
    ),
    # A container that has ended.
    "OOMKilled": Words(
        LossNature.OUT_OF_MEMORY,
        "its container was killed: it used more memory than its limit (OOMKilled)",
        MEMORY_FIX,
    ),
    **dict.fromkeys(
        ("StartError", "ContainerCannotRun"),
        Words(
            LossNature.PERMANENT,
            fix="the image needs Python 3.9 or newer at the path of runtime.python",
        ),
    ),
    # A pod that has ended, or is being removed. A node's graceful shutdown (Shutdown in 1.20,
    # Terminated since 1.22) is how clouds take back spot machines.
    **dict.fromkeys(
        ("PreemptionByScheduler", "Preempted", "Preempting", "EvictedByVolcano"), _OUTRANKED
    ),
    **dict.fromkeys(("EvictionByEvictionAPI", "DeletionByTaintManager"), _OUTRANKED),
    **dict.fromkeys(("NodeShutdown", "Shutdown", "Terminated"), Words(LossNature.PREEMPTED)),
    "TerminationTarget": Words(LossNature.PREEMPTED, "the queue (Kueue) took its place back"),
    "Evicted": Words(
        LossNature.INFRASTRUCTURE,
        "it was evicted",
        "a memory request as high as the real use keeps the pod: it is evicted last",
    ),
    **dict.fromkeys(
        ("NodeLost", "NodeNotReady", "TaintManagerEviction"),
        Words(LossNature.SILENT, "its node {node} does not answer"),
    ),
    **dict.fromkeys(("DeletionByPodGC", "TerminationByKubelet"), _LOST),
    **dict.fromkeys(("ContainerStatusUnknown", "Unknown"), _LOST),
    **dict.fromkeys(("UnexpectedAdmissionError", "NodeAffinity"), _LOST),
    **dict.fromkeys(
        ("AppArmor", "SysctlForbidden", "DeadlineExceeded"),
        Words(LossNature.PERMANENT, fix=_READ_MESSAGE),
    ),
}
"""Code (the reason of a state, a status, a condition or an event) → what follows from it."""

_ABSENT: Final = (
    r"(secret|configmap|persistentvolumeclaim) \S+ not found|couldn't find key"
    r"|references non-existent",
    _MISSING,
)
_AWAY: Final = (
    r"toomanyrequests|no such host|dial tcp|i/o timeout|connection refused|connection reset"
    r"|TLS handshake|x509|server misbehaving|\b50[0234]\b|deadline exceeded|unexpected EOF",
    _NO_REGISTRY,
)
_OVER_OWN_LIMITS: Final = (
    r"emptyDir volume .* exceeds|usage exceeds the total limit|exceeded its local ephemeral",
    Words(
        LossNature.OWN_FAILURE,
        "it was evicted: it wrote more to local disk than its limits allow",
        "raise ephemeral-storage in runtime.kubernetes.resources.limits, or `size` of the emptyDir;"
        " checkpoints belong on a claim or in an object store",
    ),
)
_TEXTS: Final = {
    **dict.fromkeys(("FailedScheduling", "FailedMount", "CreateContainerConfigError"), _ABSENT),
    **dict.fromkeys(("ErrImagePull", "ImagePullBackOff"), _AWAY),
    "Evicted": _OVER_OWN_LIMITS,
}
"""Code → a pattern in the server's text with what follows, where a code has two classes."""
_LATE_MOUNT: Final = (
    r"Unable to attach or mount volumes: .*: (timed out waiting for the condition"
    r"|context deadline exceeded)"
)
"""The end of a later event of the kubelet, which does not say why a mount has failed."""
_EXIT_CODES: Mapping[int, Words] = {
    137: Words(LossNature.INFRASTRUCTURE, "its container was killed (SIGKILL: exit code 137)"),
    143: Words(LossNature.INFRASTRUCTURE, "its container was ended (SIGTERM: exit code 143)"),
}
"""Exit codes of a container that no known reason explains: PID 1 never ends by a signal of ours."""
_REFUSALS: Final = (
    ("exceeded quota", Words(fix="wait, or ask for less in runtime.kubernetes.resources")),
    ("failed calling webhook", Words(patience_s=300.0)),
    # What is used of a new quota is counted a moment later.
    ("status unknown for quota", Words(patience_s=60.0)),
    # A new namespace gets its account a moment later.
    ("service ?account", Words(fix="`kubectl get sa` lists the accounts", patience_s=30.0)),
)
"""Patterns in the message of a refusal, whose code says nothing, and what follows."""
_LARGER_THAN_QUOTA: Final = (
    "use fewer tasks, or ask for less in runtime.kubernetes.resources: the run's pods alone are"
    " more than the quota allows"
)


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a pod does not run or does not answer."""

    what: str
    """A sentence in our words."""
    nature: LossNature | None
    """The class; None: the pod only waits."""
    fix: str = ""
    event: str = ""
    """The server's text."""
    patience_s: float | None = None
    """Seconds after which a waiting reason is permanent; None: as long as the run waits."""
    has_failed_often: bool = False
    """True once the kubelet has tried in vain as often as it may."""

    @property
    def is_hopeless(self) -> bool:
        """Return whether another pod would meet the same."""
        return self.nature is not None and self.nature.is_own_end

    def after(self, lasted_s: float) -> Reason:
        """Return the reason as it is to be judged when a pod has had it for `lasted_s`."""
        is_late = self.patience_s is not None and lasted_s >= self.patience_s
        if self.nature is None and (is_late or self.has_failed_often):
            return replace(self, nature=LossNature.PERMANENT)
        return self

    def __str__(self) -> str:
        return f"{self.what}: {self.event}" if self.event else self.what

    def loss_of(self, pod: str) -> NodeLoss:
        """Return the loss of the node that is this pod."""
        nature = self.nature or LossNature.INFRASTRUCTURE
        return NodeLoss(f"its pod {pod} is lost: {self}", nature)


def explain(pod: Object | None, events: Sequence[Object] = ()) -> Reason | None:
    """Return why a pod does not run or does not answer, or None if nothing is wrong.

    `pod`: None if its object does not exist any more; `events`: the pod's own. Nobody reads the
    node: the coordinator's account has rights in its namespace only.
    """
    ordered = sorted(events, key=_time)
    if pod is None:
        return _gone(ordered)
    ended = _removed(pod, ordered) or _ended_by_status(pod) or _exited(pod)
    if ended is not None:
        return ended
    status = _status(pod)
    phase = status.get("phase")
    if phase in ("Failed", "Succeeded"):
        what = f"the pod ended ({status.get('reason') or f'phase {phase}'})"
        return Reason(what, LossNature.INFRASTRUCTURE, event=str(status.get("message") or ""))
    for each in _containers(pod):
        waiting = (each.get("state") or {}).get("waiting")
        if waiting is not None and (phase == "Running" or waiting.get("reason") not in _NORMAL):
            return _container_waits(pod, waiting, ordered)
    return _node_lost(pod, ordered) if phase == "Running" else _not_started(pod, ordered)


def last_end(pod: Object) -> Reason | None:
    """Return why a container of a pod ended that waits for its next start; None without one."""
    statuses = [
        {**each, "state": each.get("lastState") or {}}
        for each in _status(pod).get("containerStatuses") or ()
        if "waiting" in (each.get("state") or {})
    ]
    return _exited({**pod, "status": {"containerStatuses": statuses}})


def reported_s(reason: Reason, events: Sequence[Object]) -> float:
    """Return for how long the cluster has reported a reason again and again, by its own clock."""
    same = [each for each in events if reason.event and reason.event in _message(each)]
    times = [datetime.fromisoformat(text) for each in same for text in _times(each)]
    return (max(times) - min(times)).total_seconds() if times else 0.0


def refused(message: str, *, tasks: int = 1, others: int = 0) -> Reason:
    """Return why the API server did not accept a pod.

    tasks: the run's pods like this one. others: its other pods.
    """
    other = Words(LossNature.PERMANENT, fix=_READ_MESSAGE)
    words = next((w for text, w in _REFUSALS if re.search(text, message, re.IGNORECASE)), other)
    if "exceeded quota" in message and not _can_fit_quota(message, tasks, others):
        words = Words(LossNature.PERMANENT, fix=_LARGER_THAN_QUOTA)
    return _reason(words._replace(what="the cluster refuses the pod"), message)


def _can_fit_quota(message: str, tasks: int, others: int) -> bool:
    """Return whether the run's pods alone are within the quota, so that they fit once others end.

    ``exceeded quota: Q, requested: pods=1,cpu=2, used: pods=4, limited: pods=4``
    (apiserver/pkg/admission/plugin/resourcequota/controller.go).
    """
    asked, limits = (_amounts(message, word) for word in ("requested", "limited"))
    more = dict.fromkeys(("pods", "count/pods"), others)
    return all(
        name not in limits or value * tasks + more.get(name, 0) <= limits[name]
        for name, value in asked.items()
    )


def _amounts(message: str, word: str) -> dict[str, float]:
    """Return resource → amount in base units: cores, bytes, pieces.

    Grammar: apimachinery/pkg/api/resource/quantity.go.
    """
    match = re.search(rf"{word}: (\S+=[^\s,]+(?:,\S+=[^\s,]+)*)", message)
    amounts = dict[str, float]()
    for part in match[1].split(",") if match else ():
        name, _, text = part.partition("=")
        number = text.rstrip("numkMGTPEi")
        amounts[name] = float(number) * _UNITS[text.removeprefix(number)]
    return amounts


# ── Pods that have ended, or are being removed ──


def _gone(events: Sequence[Object]) -> Reason:
    """Return why a pod's object does not exist any more, as far as its events say."""
    removals = (LossNature.PREEMPTED, LossNature.SILENT, LossNature.INFRASTRUCTURE)
    for event in reversed(events):
        words = CODES.get(str(event.get("reason")))
        if words is not None and words.nature in removals:
            return _of_code({}, str(event.get("reason")), event)
    return _reason(_DELETED)


def _removed(pod: Object, events: Sequence[Object]) -> Reason | None:
    """Return the reason of a pod that somebody or something removes.

    A container that the kernel has killed for its memory limit comes first: what deletes the pod
    later is not its cause.
    """
    for ended in _terminations(pod):
        if ended.get("reason") == "OOMKilled":
            return _of_code(pod, "OOMKilled", ended)
    taken = _condition(pod, "DisruptionTarget")
    code = str(taken.get("reason", "")) if taken.get("status") == "True" else ""
    if code == "TerminationByKubelet" and (reason := _ended_by_status(pod)) is not None:
        return reason
    if code and code != "DeletionByTaintManager":
        return _of_code(pod, code, taken, Words(LossNature.PREEMPTED))
    if (queue := _condition(pod, "TerminationTarget")).get("status") == "True":
        return _of_code(pod, "TerminationTarget", queue)
    if text := _last(events, "Preempted"):
        return _of_code(pod, "Preempted", {"message": text})
    if not code and pod["metadata"].get("deletionTimestamp") is None:
        return None
    return _node_lost(pod, events) or _of_code(pod, code, taken, _DELETED)


def _ended_by_status(pod: Object) -> Reason | None:
    """Return the reason that the kubelet or a controller wrote into the pod's status."""
    code, message = (str(_status(pod).get(key) or "") for key in ("reason", "message"))
    is_rejected = "Pod was rejected" in message or code.startswith("OutOf")
    if code not in CODES and not (code and is_rejected):
        return None
    return _of_code(pod, code, _status(pod), _LOST)


def _exited(pod: Object) -> Reason | None:
    """Return the reason of a container that ended by itself."""
    for ended in _terminations(pod):
        word, code = str(ended.get("reason") or ""), ended.get("exitCode")
        what = f"its container ended with exit code {code}"
        if word not in ("", "Error", "Completed"):
            what += f" ({word})"
        by_code = _EXIT_CODES.get(code or 0, Words(LossNature.OWN_FAILURE, what))
        return _of_code(pod, word, ended, by_code)
    return None


def _node_lost(pod: Object, events: Sequence[Object]) -> Reason | None:
    """Return the reason of a pod whose node does not answer."""
    if _status(pod).get("reason") == "NodeLost":
        return _of_code(pod, "NodeLost", _status(pod))
    text = _last(events, "NodeNotReady")
    if not (text and is_on_silent_node(pod)):
        return None
    return _of_code(pod, "NodeNotReady", {"message": text})


# ── Pods that wait ──


def _not_started(pod: Object, events: Sequence[Object]) -> Reason | None:
    """Return why a pod has not started yet; None if its start only takes its time."""
    if not pod.get("spec", {}).get("nodeName"):
        scheduled = _condition(pod, "PodScheduled")
        if scheduled.get("reason") == "SchedulingGated":
            return _of_code(pod, "SchedulingGated", scheduled)
        text = _last(events, "FailedScheduling") or _message(scheduled)
        if not text:
            scheduler = pod.get("spec", {}).get("schedulerName", "default-scheduler")
            fix = f"does the scheduler {scheduler} run (runtime.kubernetes.scheduler_name)?"
            return Reason("no scheduler has looked at the pod yet", None, fix)
        return _of_code(pod, "FailedScheduling", {"message": text})
    if any(each.get("reason") in _STARTS for each in events):
        return None  # what failed before has worked since
    for code in ("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"):
        if texts := [_message(each) for each in events if each.get("reason") == code]:
            telling = [text for text in texts if not re.match(_LATE_MOUNT, text)]
            return _of_code(pod, code, {"message": (telling or texts)[-1]})
    return None


def _container_waits(pod: Object, waiting: Object, events: Sequence[Object]) -> Reason | None:
    """Return why a container waits.

    Before 1.31 the text of a pull's back-off does not hold the registry's answer; an event does.
    Pull and back-off, which take turns, so are one reason.
    """
    code = str(waiting.get("reason") or "")
    if CODES.get(code) is not _PULL:
        return _of_code(pod, code, waiting, Words())
    pulls = [
        each for each in events if each.get("reason") == "Failed" and "pull image" in _message(each)
    ]
    newest = pulls[-1] if pulls else waiting
    return _of_code(pod, code, newest, tries=sum(map(count, pulls)))


# ── Words ──


def _of_code(
    pod: Object, code: str, said: Object, unknown: Words = _DELETED, *, tries: int = 0
) -> Reason:
    """Return the reason of a code; `said`: what holds the server's `message`."""
    text = _message(said)
    words = CODES.get(code, unknown)
    if code in _TEXTS and re.search(_TEXTS[code][0], text, re.IGNORECASE):
        words = _TEXTS[code][1]
    return _reason(words, text, tries=tries, code=code, **_names(pod))


def _reason(words: Words, text: str = "", *, tries: int = 0, **names: str) -> Reason:
    return Reason(
        (words.what or "{code}").format(**names),
        words.nature,
        fix=words.fix.format(**names),
        event=text.strip(),
        patience_s=words.patience_s,
        has_failed_often=words.tries is not None and tries >= words.tries,
    )


def _names(pod: Object) -> dict[str, str]:
    """Return what sentences may name: the pod's node and its image."""
    spec = pod.get("spec", {})
    image = (spec.get("containers") or [{}])[0].get("image", "")
    return {"node": str(spec.get("nodeName") or ""), "image": str(image)}


# ── Facts of a pod's status ──


def container_id(pod: Object) -> str:
    """Return the id of the container of ours in a pod; empty before it is made."""
    return str(_own_status(pod).get("containerID") or "")


def runs(pod: Object) -> bool:
    """Return whether the container of ours in a pod is running."""
    return _is_running(_own_status(pod))


def waits_to_restart(pod: Object) -> bool:
    """Return whether the kubelet waits until it starts the container of ours again."""
    own = _own_status(pod)
    waiting = (own.get("state") or {}).get("waiting") or {}
    has_ended = "terminated" in (own.get("lastState") or {})
    return has_ended and waiting.get("reason") in ("CrashLoopBackOff", "RunContainerError")


def end_of_container(pod: Object, container: str) -> Object | None:
    """Return how a container of ours has ended; None if it has not.

    A kubelet starts it again in the same pod, with another id, and keeps only the last end.
    """
    own = _own_status(pod)
    for state in ("state", "lastState"):
        ended: Object | None = (own.get(state) or {}).get("terminated")
        if ended is not None and ended.get("containerID") == container != "":
            return ended
    return {} if container and own.get("containerID", container) != container else None


def as_it_ended(pod: Object, container: str) -> Object:
    """Return a pod as it was when a container of ours had ended, if it has."""
    if not (ended := end_of_container(pod, container)):
        return pod
    statuses = [{**_own_status(pod), "state": {"terminated": ended}}]
    return {**pod, "status": {**_status(pod), "containerStatuses": statuses}}


def is_on_silent_node(pod: Object) -> bool:
    """Return whether the node controller takes the pod's node for lost.

    It sets the pod's Ready condition to False although its containers are said to run
    (pkg/controller/util/node/controller_utils.go).
    """
    is_ready = _condition(pod, "Ready").get("status") == "True"
    return not is_ready and any(map(_is_running, _containers(pod)))


def has_terminated(pod: Object) -> bool:
    """Return whether the kubelet has reported that no process of ours in a pod is alive.

    A controller writes Failed for a pod whose node is lost, and leaves its containers as they were.
    The kubelet may have removed a container before it reported the end: 1.20 calls that waiting.
    """
    status, taken = _status(pod), _condition(pod, "DisruptionTarget")
    own = [each for each in status.get("containerStatuses") or () if each.get("name") in _OWN]
    if own and None not in map(_terminated, own):
        return True
    is_lost = status.get("reason") == "NodeLost" or taken.get("reason") == "DeletionByPodGC"
    has_failed = status.get("phase") in ("Failed", "Succeeded") and not is_lost
    return has_failed and bool(own or status.get("reason")) and not any(map(_is_running, own))


def runs_nothing(pod: Object) -> bool:
    """Return whether a pod has not started, and none of its containers runs.

    A kubelet may take a minute to let go of such a pod, in which nothing can be alive.
    """
    return _status(pod).get("phase") == "Pending" and not any(map(_is_running, _containers(pod)))


def is_leaving(pod: Object) -> bool:
    """Return whether a pod has ended for good, or is being deleted."""
    has_ended = _status(pod).get("phase") in ("Succeeded", "Failed")
    return has_ended or "deletionTimestamp" in pod["metadata"]


def is_over(pod: Object) -> bool:
    """Return whether a pod or its container has ended, or is being deleted."""
    return is_leaving(pod) or has_terminated(pod)


def count(event: Object) -> int:
    """Return how often an event has occurred."""
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


def _status(pod: Object) -> Object:
    status: Object = pod.get("status") or {}
    return status


def _own_status(pod: Object) -> Object:
    statuses = _status(pod).get("containerStatuses") or ()
    return next((each for each in statuses if each.get("name") in _OWN), {})


def _containers(pod: Object) -> Iterator[Object]:
    yield from _status(pod).get("initContainerStatuses") or ()
    yield from _status(pod).get("containerStatuses") or ()


def _terminations(pod: Object) -> Iterator[Object]:
    """Yield the ends of the containers that a pod needs.

    An init container that ended with 0 has done its work, and a sidecar's end is no end of ours.
    """
    for each in _status(pod).get("initContainerStatuses") or ():
        if (ended := _terminated(each)) is not None and ended.get("exitCode") != 0:
            yield ended
    for each in _status(pod).get("containerStatuses") or ():
        if (ended := _terminated(each)) is not None and each.get("name") in _OWN:
            yield ended


def _terminated(container: Object) -> Object | None:
    ended: Object | None = (container.get("state") or {}).get("terminated")
    return ended


def _is_running(container: Object) -> bool:
    return "running" in (container.get("state") or {})


def _condition(pod: Object, type_: str) -> Object:
    """Return a condition of a pod; an empty one if it has none of that type."""
    conditions = _status(pod).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == type_), {})


def _last(events: Iterable[Object], code: str) -> str:
    """Return the text of the last event with a reason; empty without one."""
    return next(reversed([_message(each) for each in events if each.get("reason") == code]), "")


def _message(said: Object) -> str:
    return str(said.get("message") or "")


def _times(event: Object) -> Iterator[str]:
    """Yield when an event occurred first and last."""
    series = event.get("series") or {}
    names = ("firstTimestamp", "lastTimestamp", "eventTime")
    for time in (*(event.get(name) for name in names), series.get("lastObservedTime")):
        if time:
            yield str(time)


def _time(event: Object) -> str:
    """Return when an event occurred last; times in UTC sort as strings.

    ``lastTimestamp`` is null in events of the newer API, which the scheduler uses.
    """
    series = event.get("series") or {}
    time = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(time or event.get("metadata", {}).get("creationTimestamp") or "")[:19]
