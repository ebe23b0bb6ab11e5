"""Says why a pod does not run, does not answer, ended or was refused, and what follows (pure).

Kubernetes spreads the reason over the pod's status, its conditions, its containers' states and
its events, and the words differ between versions; here each gets our words, with the server's
text beneath. Sources: the kubelet (pkg/kubelet: container/sync_result.go, images/types.go,
eviction/helpers.go, nodeshutdown, preemption, lifecycle/predicate.go), the controllers of nodes
(pkg/controller/tainteviction, podgc, util/node), the scheduler (pkg/scheduler), and
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions (1.25).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from tfcluster.backends.kubernetes import pod_words
from tfcluster.backends.kubernetes.pod_words import Words
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


class Nature(StrEnum):
    """The class of a reason; the restart policy depends on it."""

    WAITING = "waiting"
    """Nothing failed, and it may pass without anybody's help."""
    PERMANENT = "permanent"
    """Another pod would meet the same: the spec or the cluster must change. The run ends."""
    INFRASTRUCTURE = "infrastructure"
    """The cluster lost the pod: a lost node, which another pod replaces."""
    PREEMPTION = "preemption"
    """Somebody took the pod's place on purpose: a restart that is not counted."""
    SILENT = "silent"
    """A lost node, like `INFRASTRUCTURE`: it did not answer, so the cluster gave the pod up."""
    FAILURE = "failure"
    """The pod's own processes are the cause: a failure that is counted."""
    OUT_OF_MEMORY = "out_of_memory"
    """A failure, like `FAILURE`: they took more memory than the pod may use."""


_LOSSES: Mapping[Nature, LossNature] = {
    Nature.WAITING: LossNature.INFRASTRUCTURE,
    Nature.PERMANENT: LossNature.PERMANENT,
    Nature.INFRASTRUCTURE: LossNature.INFRASTRUCTURE,
    Nature.SILENT: LossNature.SILENT,
    Nature.PREEMPTION: LossNature.PREEMPTED,
    Nature.FAILURE: LossNature.OWN_FAILURE,
    Nature.OUT_OF_MEMORY: LossNature.OUT_OF_MEMORY,
}


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a pod does not run or does not answer."""

    what: str
    """A sentence in our words."""
    nature: Nature
    fix: str = ""
    event: str = ""
    """The server's text."""
    patience_s: float | None = None
    """Seconds after which a waiting reason is permanent; None: as long as the run waits."""
    has_failed_often: bool = False
    """True once the kubelet has tried in vain as often as it may."""

    def after(self, lasted_s: float) -> Reason:
        """Return the reason as it is to be judged when a pod has had it for `lasted_s`."""
        is_late = self.patience_s is not None and lasted_s >= self.patience_s
        is_over = is_late or self.has_failed_often
        if self.nature is Nature.WAITING and is_over:
            return replace(self, nature=Nature.PERMANENT)
        return self

    def __str__(self) -> str:
        return f"{self.what}: {self.event}" if self.event else self.what

    def loss_of(self, pod: str) -> NodeLoss:
        """Return the loss of the node that is this pod."""
        return NodeLoss(f"its pod {pod} is lost: {self}", _LOSSES[self.nature])


def explain(pod: Object | None, events: Sequence[Object] = ()) -> Reason | None:
    """Return why a pod does not run or does not answer, or None if nothing is wrong.

    `pod`: None if its object does not exist any more; `events`: the pod's own. Nobody reads the
    node: the coordinator's account has rights in its namespace only.
    """
    ordered = sorted(events, key=_time)
    if pod is None:
        return _gone(ordered)
    phase = _status(pod).get("phase")
    finders = (_out_of_memory, _disrupted, _ended_by_status, _exited)
    for find in finders:
        if (found := find(pod, ordered)) is not None:
            return found
    if phase in ("Failed", "Succeeded"):
        return _as_it_is(pod)
    if phase == "Running":
        return _silent(pod, ordered)
    return _waits(pod, ordered)


def container_id(pod: Object) -> str:
    """Return the id of the container of ours in a pod; empty before it is made."""
    own = _own_status(pod)
    return str(own.get("containerID") or "")


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


def _own_status(pod: Object) -> Object:
    statuses = _status(pod).get("containerStatuses") or ()
    return next((each for each in statuses if each.get("name") in _OWN), {})


def last_end(pod: Object) -> Reason | None:
    """Return why a container of a pod ended that waits for its next start; None without one."""
    statuses = [
        {**each, "state": each.get("lastState") or {}}
        for each in _status(pod).get("containerStatuses") or ()
        if "waiting" in (each.get("state") or {})
    ]
    return _exited({**pod, "status": {"containerStatuses": statuses}}, ())


def reported_s(reason: Reason, events: Sequence[Object]) -> float:
    """Return for how long the cluster has reported a reason again and again, by its own clock."""
    same = [each for each in events if reason.event and reason.event in _message(each)]
    times = [datetime.fromisoformat(text) for each in same for text in _times(each)]
    return (max(times) - min(times)).total_seconds() if times else 0.0


def refused(message: str, fix: str = "", *, tasks: int = 1, others: int = 0) -> Reason:
    """Return why the API server did not accept a pod; `fix` helps where no word is known.

    tasks: the run's pods like this one. others: its other pods.
    """
    reason = _from_table(pod_words.REFUSALS, message)
    if reason is None:
        what, fix = "the cluster refuses the pod", fix or pod_words.READ_MESSAGE
        return Reason(what, Nature.PERMANENT, event=message, fix=fix)
    if "exceeded quota" in message and not _can_fit_quota(message, tasks, others):
        return replace(reason, nature=Nature.PERMANENT, fix=pod_words.LARGER_THAN_QUOTA)
    return reason


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
    match = re.search(rf"{word}: (\S+=[^\s,]+(?:,\S+=[^\s,]+)*)", message)
    pairs = (part.partition("=") for part in match[1].split(",")) if match else ()
    return {name: _parse_quantity(value) for name, _, value in pairs}


def _parse_quantity(text: str) -> float:
    """Return an amount in base units: cores, bytes, pieces.

    Grammar: apimachinery/pkg/api/resource/quantity.go.
    """
    number = text.rstrip("numkMGTPEi")
    return float(number) * _UNITS[text.removeprefix(number)]


def _out_of_memory(pod: Object, events: Sequence[Object]) -> Reason | None:
    """Return the reason of a container that the kernel killed for its memory limit.

    It comes first: what deletes the pod later is not its cause.
    """
    for ended in _terminations(pod):
        if ended.get("reason") == "OOMKilled":
            return _reason(pod_words.OUT_OF_MEMORY, str(ended.get("message") or ""))
    return None


def _disrupted(pod: Object, events: Sequence[Object]) -> Reason | None:
    """Return the reason of a pod that somebody or something removes."""
    for type_ in ("DisruptionTarget", "TerminationTarget"):
        condition = _condition(pod, type_)
        if condition is not None and condition.get("status") == "True":
            found = _by_condition(type_, condition, pod, events)
            if found is not None:
                return found
    if (event := _last(events, "Preempted")) is not None:
        return _reason(pod_words.PREEMPTED, event)
    if pod["metadata"].get("deletionTimestamp") is None:
        return None
    return _node_lost(pod, events) or _reason(pod_words.DELETED, "")


def _by_condition(
    type_: str, condition: Object, pod: Object, events: Sequence[Object]
) -> Reason | None:
    reason, message = str(condition.get("reason", "")), str(condition.get("message", ""))
    if type_ == "TerminationTarget":
        return _reason(pod_words.BY_QUEUE, message)
    if reason == "TerminationByKubelet":
        return _ended_by_status(pod, events) or _reason(pod_words.BY_KUBELET, message)
    if reason == "DeletionByTaintManager":
        return _node_lost(pod, events) or _reason(pod_words.TAINTED, message)
    words = pod_words.DISRUPTIONS.get(reason)
    if words is None:
        return Reason(f"the cluster ends the pod ({reason})", Nature.PREEMPTION, event=message)
    return _reason(words, message, node=_node_name(pod))


def _node_lost(pod: Object, events: Sequence[Object]) -> Reason | None:
    """Return the reason of a pod whose node does not answer."""
    name = _node_name(pod)
    if _status(pod).get("reason") == "NodeLost":
        return _reason(pod_words.NODE_LOST, str(_status(pod).get("message", "")), node=name)
    event = _last(events, "NodeNotReady")
    if event is None or not is_on_silent_node(pod):
        return None
    return _reason(pod_words.NODE_LOST, event, node=name)


def is_on_silent_node(pod: Object) -> bool:
    """Return whether the node controller takes the pod's node for lost.

    It sets the pod's Ready condition to False although its containers are said to run
    (pkg/controller/util/node/controller_utils.go).
    """
    ready = _condition(pod, "Ready") or {}
    return ready.get("status") != "True" and any(map(_is_running, _containers(pod)))


def has_terminated(pod: Object) -> bool:
    """Return whether the kubelet has reported that no process of ours in a pod is alive.

    A controller writes Failed for a pod whose node is lost, and leaves its containers as they were.
    The kubelet may have removed a container before it reported the end: 1.20 calls that waiting.
    """
    status, taken = _status(pod), _condition(pod, "DisruptionTarget") or {}
    own = [each for each in status.get("containerStatuses") or () if each.get("name") in _OWN]
    if own and None not in map(_terminated, own):
        return True
    is_lost = status.get("reason") == "NodeLost" or taken.get("reason") == "DeletionByPodGC"
    is_over = status.get("phase") in ("Failed", "Succeeded") and not is_lost
    return is_over and bool(own or status.get("reason")) and not any(map(_is_running, own))


def is_over(pod: Object) -> bool:
    """Return whether a pod has ended or is being deleted."""
    has_ended = _status(pod).get("phase") in ("Succeeded", "Failed")
    return has_ended or has_terminated(pod) or "deletionTimestamp" in pod["metadata"]


def _ended_by_status(pod: Object, events: Sequence[Object]) -> Reason | None:
    """Return the reason that the kubelet or a controller wrote into the pod's status."""
    word, message = (str(_status(pod).get(key) or "") for key in ("reason", "message"))
    if word == "Evicted":
        is_own = re.search(pod_words.OVER_OWN_LIMITS, message, re.IGNORECASE)
        return _reason(pod_words.EVICTED_FOR_ITSELF if is_own else pod_words.EVICTED, message)
    words = pod_words.STATUS.get(word)
    if words is None and word and "Pod was rejected" in message:
        words = pod_words.REJECTED
    if words is None and word.startswith("OutOf"):
        words = pod_words.REJECTED
    return _reason(words, message, node=_node_name(pod)) if words is not None else None


def _exited(pod: Object, events: Sequence[Object]) -> Reason | None:
    """Return the reason of a container that ended by itself."""
    for ended in _terminations(pod):
        word, code = str(ended.get("reason") or ""), ended.get("exitCode")
        message = str(ended.get("message") or "").strip()
        words = pod_words.TERMINATIONS.get(word) or pod_words.EXIT_CODES.get(code or 0)
        if words is not None:
            return _reason(words, message)
        what = f"its container ended with exit code {code}"
        if word not in ("", "Error", "Completed"):
            what += f" ({word})"
        return Reason(what, Nature.FAILURE, event=message)
    return None


def _as_it_is(pod: Object) -> Reason:
    """Return an unknown reason in the server's words."""
    status = _status(pod)
    word = status.get("reason") or f"phase {status.get('phase')}"
    message = str(status.get("message") or "")
    return Reason(f"the pod ended ({word})", Nature.INFRASTRUCTURE, event=message)


def _silent(pod: Object, events: Sequence[Object]) -> Reason | None:
    """Return why a pod that is said to run may not answer."""
    for each in _containers(pod):
        waiting = (each.get("state") or {}).get("waiting")
        if waiting is not None:
            return _container_waits(pod, waiting, events)
    return _node_lost(pod, events)


def _waits(pod: Object, events: Sequence[Object]) -> Reason | None:
    """Return why a pod has not started yet; None if its start only takes its time."""
    scheduled = _condition(pod, "PodScheduled")
    if not pod.get("spec", {}).get("nodeName"):
        return _unscheduled(pod, scheduled, events)
    for each in _containers(pod):
        waiting = (each.get("state") or {}).get("waiting")
        if waiting is not None and waiting.get("reason") not in pod_words.NORMAL:
            return _container_waits(pod, waiting, events)
    if any(each.get("reason") in _STARTS for each in events):
        return None  # what failed before has worked since
    for word in ("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"):
        if texts := _texts(events, word):
            telling = [text for text in texts if not re.match(pod_words.LATE_MOUNT, text)]
            return _from_table(pod_words.STARTS, (telling or texts)[-1])
    return None


def _unscheduled(pod: Object, condition: Object | None, events: Sequence[Object]) -> Reason:
    message = str((condition or {}).get("message") or "")
    word = (condition or {}).get("reason")
    if word == "SchedulingGated":
        return _reason(pod_words.GATED, message)
    event = _last(events, "FailedScheduling") or message
    if not event:
        scheduler = pod.get("spec", {}).get("schedulerName", "default-scheduler")
        return _reason(pod_words.NOT_SEEN, "", scheduler=scheduler)
    found = _from_table(pod_words.SCHEDULING, event)
    assert found is not None  # its last row fits every text
    return found


def _container_waits(pod: Object, waiting: Object, events: Sequence[Object]) -> Reason | None:
    word, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if word in pod_words.IMAGE:
        # Before 1.31 the text of a back-off does not hold the registry's answer; an event does.
        # The pull has the same text, so that both, which take turns, are one reason.
        pulls = [text for text in _texts(events, "Failed") if "pull image" in text]
        text = pulls[-1] if pulls else message
        tries = sum(count(each) for each in events if _is_failed_pull(each))
        return _from_table(pod_words.PULLS, text or word, tries=tries, image=_image(pod))
    words = pod_words.CONTAINERS.get(word)
    if words is None:
        return Reason(f"its container waits ({word})", Nature.WAITING, event=message)
    return _from_table(pod_words.CONFIGS, message) or _reason(words, message)


def _gone(events: Sequence[Object]) -> Reason:
    """Return why a pod's object does not exist any more, as far as its events say."""
    for event in reversed(events):
        words = pod_words.GONE.get(str(event.get("reason")))
        if words is not None:
            return _reason(words, str(event.get("message") or ""))
    return _reason(pod_words.DELETED, "")


def _from_table(
    table: Iterable[tuple[str, Words]], text: str, *, tries: int = 0, **names: str
) -> Reason | None:
    """Return the reason of the first row whose pattern occurs in `text`."""
    for pattern, words in table:
        if re.search(pattern, text, re.IGNORECASE):
            return _reason(words, text, tries=tries, **names)
    return None


def _reason(words: Words, event: str, *, tries: int = 0, **names: str) -> Reason:
    return Reason(
        words.what.format(**names),
        Nature(words.nature),
        fix=words.fix.format(**names),
        event=event.strip(),
        patience_s=words.patience_s,
        has_failed_often=words.tries is not None and tries >= words.tries,
    )


def _is_failed_pull(event: Object) -> bool:
    return event.get("reason") == "Failed" and "pull image" in _message(event)


def _status(pod: Object) -> Object:
    status: Object = pod.get("status") or {}
    return status


def _node_name(pod: Object) -> str:
    return str(pod.get("spec", {}).get("nodeName") or "")


def _image(pod: Object) -> str:
    containers = pod.get("spec", {}).get("containers") or [{}]
    return str(containers[0].get("image", ""))


def _containers(pod: Object) -> Iterator[Object]:
    status = _status(pod)
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _terminations(pod: Object) -> Iterator[Object]:
    """Yield the ends of the containers that a pod needs.

    An init container that ended with 0 has done its work, and a sidecar's end is no end of ours.
    """
    status = _status(pod)
    for each in status.get("initContainerStatuses") or ():
        if (ended := _terminated(each)) is not None and ended.get("exitCode") != 0:
            yield ended
    for each in status.get("containerStatuses") or ():
        if (ended := _terminated(each)) is not None and each.get("name") in _OWN:
            yield ended


def _terminated(container: Object) -> Object | None:
    ended: Object | None = (container.get("state") or {}).get("terminated")
    return ended


def _is_running(container: Object) -> bool:
    return "running" in (container.get("state") or {})


def _condition(item: Object, type_: str) -> Object | None:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == type_), None)


def _texts(events: Iterable[Object], word: str) -> list[str]:
    return [_message(each) for each in events if each.get("reason") == word]


def _last(events: Iterable[Object], word: str) -> str | None:
    return next(reversed(_texts(events, word)), None)


def _message(event: Object) -> str:
    return str(event.get("message") or "")


def count(event: Object) -> int:
    """Return how often an event has occurred."""
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


def _times(event: Object) -> Iterator[str]:
    """Yield when an event occurred first and last."""
    series = event.get("series") or {}
    names = ("firstTimestamp", "lastTimestamp", "eventTime")
    for found in (*(event.get(name) for name in names), series.get("lastObservedTime")):
        if found:
            yield str(found)


def _time(event: Object) -> str:
    """Return when an event occurred last; times in UTC sort as strings.

    ``lastTimestamp`` is null in events of the newer API, which the scheduler uses.
    """
    series = event.get("series") or {}
    found = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(found or event.get("metadata", {}).get("creationTimestamp") or "")[:19]
