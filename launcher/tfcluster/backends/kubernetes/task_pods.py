"""The pods of a run's tasks: their certain end (`TaskPod`), and the wait until all run (`Wait`)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfcluster.backends.base import Tell
from tfcluster.backends.kubernetes import pod_reasons
from tfcluster.backends.kubernetes.kube_client import (
    Cluster,
    KubeError,
    KubeSilentError,
    Object,
    soon,
)
from tfcluster.backends.kubernetes.pod_reasons import Nature, Reason, has_terminated, is_over
from tfcluster.backends.kubernetes.run_objects import CLAIMED, GENERATION
from tfcluster.errors import SetupError

_POLL_S, _LONGEST_POLL_S = 0.3, 3.0
_END_POLL_S = 0.3
_GONE_S = 30.0
_QUIET_S = 4.0
"""Seconds that the end of a pod may take without a word."""
_GRACE_S = 1
_EXPLAIN_S = 2.0
"""Seconds after which pods that wait are explained by their events, again and again."""
_LOSS_PAUSE_S, _PLACE_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0, 600.0
_MOST_FAULTS = 6
"""The times that the cluster may lose pods before all run; as `backoffLimit` of its own Jobs."""
_EXPLAINED = 4
"""Pods that are explained at once; others wait for the same, as a rule."""


class TaskPod:
    """A pod; the `relayed.Place` of its agent."""

    def __init__(self, cluster: Cluster, made: Object) -> None:
        """`made`: the pod as the API server returned it."""
        metadata = made["metadata"]
        self._cluster, self._uid = cluster, metadata["uid"]
        self.name: str = metadata["name"]
        self.generation = int(metadata["labels"][GENERATION])
        self.user: str | None = metadata.get("annotations", {}).get(CLAIMED)
        """The coordinator that uses it, if any does."""
        self.explanation = ""
        self.say_slow: Callable[[str], None] = lambda pod: None
        """Called with its name if its end is not confirmed for `_QUIET_S`."""
        self._leaves_orderly = self._is_gone = self._is_left = False
        """`_leaves_orderly`: its deletion waits for the kubelet, which ends its processes first.
        `_is_left`: we end it."""

    async def claim(self, user: str) -> None:
        """Note at the pod which coordinator uses it. Raises SetupError."""
        body = {"metadata": {"uid": self._uid, "annotations": {CLAIMED: user}}}
        await soon(self._cluster.patch, f"pods/{self.name}", body)
        self.user = user

    async def has_ended(self, stderr: str) -> bool:
        """Return whether a kubelet has reported its end; a missing object proves nothing."""
        await self.explain()
        return self._is_gone

    async def is_over(self) -> bool:
        """Return whether it has ended or is being deleted. Raises SetupError."""
        pod = await self._find()
        return pod is None or is_over(pod)

    async def explain(self) -> None:
        """Update `explanation`; it stays as it is if the API server does not answer."""
        if self._is_left:  # its deletion is no reason for anything
            return
        try:
            pod = await self._find()
            reason = await explain(self._cluster, self.name, pod)
        except SetupError:
            return
        self.explanation = reason.of_lost(self.name) if reason else ""

    async def end(self, within_s: float | None = None) -> bool:
        """Delete it; return whether certainly no process in it is alive.

        A kubelet keeps the object of an ended pod for up to a minute, until its folders are gone,
        so the object is removed as soon as the kubelet has reported the end.
        """
        self._is_left = True
        slow = asyncio.get_running_loop().call_later(_QUIET_S, self.say_slow, self.name)
        try:
            async with asyncio.timeout(_GONE_S if within_s is None else within_s):
                pod = await self._find()
                if pod is not None and not self._is_gone:
                    path = f"pods/{self.name}"
                    await soon(self._cluster.delete, path, grace_s=_GRACE_S, uid=self._uid)
                    self._leaves_orderly = True
                while pod is not None and not self._is_gone:
                    await asyncio.sleep(_END_POLL_S)
                    pod = await self._find()
                if pod is not None:
                    await self.force()
        except (KubeError, TimeoutError):
            pass
        finally:
            slow.cancel()
        return self._is_gone

    @property
    def has_no_end(self) -> bool:
        """True if its end was waited for in vain."""
        return self._is_left and not self._is_gone

    async def force(self) -> None:
        """Remove its object; to be called once certainly no task in it is alive."""
        try:
            await soon(self._cluster.delete, f"pods/{self.name}", grace_s=0, uid=self._uid)
        except KubeError as error:
            if not error.is_conflict:  # else it is another pod of that name
                raise

    async def _find(self) -> Object | None:
        """Return the pod, and note whether its processes have ended."""
        pod = await soon(self._cluster.find, f"pods/{self.name}")
        if pod is not None and pod["metadata"]["uid"] != self._uid:
            pod = None
        if pod is None:
            self._is_gone = self._is_gone or self._leaves_orderly
        else:
            has_grace = bool(pod["metadata"].get("deletionGracePeriodSeconds"))
            self._leaves_orderly = has_grace and not pod_reasons.is_on_silent_node(pod)
            self._is_gone = has_terminated(pod)
        return pod


@dataclass(frozen=True, slots=True)
class Clock:
    """The time, which stands still in tests."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a wait for pods: all run, unless one of these is set."""

    lost: Collection[str] = ()
    """Pods that ended or were deleted before all ran."""
    unplaced: bool = False
    """True if not all pods were given a node in time."""
    reason: str = ""
    """The reason why a pod was lost, or has no node."""
    is_fault: bool = False
    """True if a pod was lost by a fault of the cluster, not to other pods."""


@dataclass(slots=True)
class Pauses:
    """The growing pauses between the tries to have all pods run."""

    pause_s: float = 0.0
    faults: int = 0
    """The tries that ended by a fault of the cluster."""

    def count(self, outcome: Outcome) -> None:
        """Choose the pause after a try that ended so."""
        first_s = _PLACE_PAUSE_S if outcome.unplaced else _LOSS_PAUSE_S
        self.pause_s = min(max(first_s, 2 * self.pause_s), _LONGEST_PAUSE_S)
        self.faults += outcome.is_fault

    @property
    def is_long(self) -> bool:
        """True if no pod may keep others from running meanwhile."""
        return self.pause_s >= _PLACE_PAUSE_S

    @property
    def are_in_vain(self) -> bool:
        return self.faults >= _MOST_FAULTS


@dataclass(slots=True)
class Wait:
    """The wait until all of a run's pods run."""

    cluster: Cluster
    labels: Mapping[str, str]
    """The labels of the run's pods, by which they are listed at once."""
    say: Tell
    clock: Clock
    deadline_s: float | None = None
    """The time in which all must be given a node."""
    _started: float = field(init=False)
    _explained_at: float = field(init=False)
    _reason: str = ""
    """The newest reason why a pod waits or is lost."""
    _is_fault: bool = False
    """True if the cluster is the cause of one of the newest reasons."""
    _told: set[str] = field(default_factory=set)
    _since: dict[tuple[str, str], float] = field(default_factory=dict)
    """Pod and reason → since when the pod has it."""

    def __post_init__(self) -> None:
        self._started = self._explained_at = self.clock.now()

    async def until_running(self, names: Collection[str]) -> Outcome:
        """Wait, and `say` why they do not run. Raises SetupError for a pod that never will."""
        while True:
            began = self.clock.now()
            try:
                if (outcome := await self._check(names)) is not None:
                    return outcome
            except KubeSilentError as error:
                self._tell(f"{error.message}; tfcluster keeps asking")
                self._started += self.clock.now() - began
            waited_s = self.clock.now() - self._started
            await self.clock.sleep(min(max(_POLL_S, waited_s / 30), _LONGEST_POLL_S))

    async def _check(self, names: Collection[str]) -> Outcome | None:
        listed = await soon(self.cluster.list, "pods", labels=self.labels)
        found = {each["metadata"]["name"]: each for each in listed}
        waiting = [name for name in sorted(names) if not _is_running(found.get(name))]
        if not waiting:
            return Outcome()
        now = self.clock.now()
        lost = [name for name in waiting if name not in found or is_over(found[name])]
        unplaced = [name for name in waiting if not _has_node(found.get(name))]
        is_late = self.deadline_s is not None and now - self._started >= self.deadline_s
        if lost or (is_late and unplaced) or now >= self._explained_at + _EXPLAIN_S:
            self._explained_at = now
            await self._explain({name: found.get(name) for name in lost or unplaced or waiting})
        if lost:
            return Outcome(lost=lost, reason=self._reason, is_fault=self._is_fault)
        if is_late and unplaced:
            return Outcome(unplaced=True, reason=self._reason or f"{unplaced[0]} has no node")
        return None

    async def _explain(self, pods: Mapping[str, Object | None]) -> None:
        """Say why the first pods wait; raise SetupError for one that another pod would follow."""
        reason, natures = "", set[Nature]()
        for name, pod in [*pods.items()][:_EXPLAINED]:
            if (why := await explain(self.cluster, name, pod)) is not None:
                since = self._since.setdefault((name, why.what), self.clock.now())
                _require_hope(name, why.after(self.clock.now() - since))
                reason = reason or f"{name}: {why}"
                natures.add(why.nature)
        self._reason = reason or self._reason
        self._is_fault = Nature.INFRASTRUCTURE in natures
        if reason:
            self._tell(reason)

    def _tell(self, sentence: str) -> None:
        if sentence not in self._told:  # a pull and its back-off take turns
            self.say(sentence)
            self._told.add(sentence)


def _require_hope(pod: str, reason: Reason) -> None:
    """Raise SetupError for a reason that another pod would meet, too."""
    if reason.nature in (Nature.PERMANENT, Nature.FAILURE):
        raise SetupError(f"the pod {pod}: {reason}", fix=reason.fix)


async def explain(cluster: Cluster, name: str, pod: Object | None) -> Reason | None:
    """Return why a pod does not run or does not answer, or None. Raises SetupError."""
    events = await soon(cluster.list, "events", fieldSelector=f"involvedObject.name={name}")
    return pod_reasons.explain(pod, events)


def _is_running(pod: Mapping[str, Any] | None) -> bool:
    if pod is None or is_over(pod):
        return False
    return bool(pod.get("status", {}).get("phase") == "Running")


def _has_node(pod: Mapping[str, Any] | None) -> bool:
    return pod is not None and bool(pod.get("spec", {}).get("nodeName"))
