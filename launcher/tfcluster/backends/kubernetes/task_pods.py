"""The pods of a run's tasks: whether one has certainly ended, and the wait until all run."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tfcluster.backends.base import Tell
from tfcluster.backends.kubernetes import reasons
from tfcluster.backends.kubernetes.kube_client import (
    KubeCluster,
    KubeError,
    KubeSilentError,
    Object,
    in_thread,
)
from tfcluster.backends.kubernetes.reasons import Reason, is_leaving
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.node_loss import LossNature, NodeLoss

_POLL_S, _LONGEST_POLL_S = 0.3, 3.0
_GONE_S: Final = 30.0
_UNUSED_S: Final = 5.0
"""Seconds that a pod without a living task may take to end, before its object is removed."""
_EXPLAIN_S: Final = 2.0
"""Seconds after which pods that wait are explained by their events, again and again."""
_FAULTS = (LossNature.INFRASTRUCTURE, LossNature.SILENT)


class TaskPod:
    """A pod with an agent; the `relayed.AgentContainer` of the agent."""

    def __init__(self, cluster: KubeCluster, pod: Object) -> None:
        """`pod`: as the API server returned it."""
        self._cluster, self._container = cluster, reasons.container_id(pod)
        self.name: str = pod["metadata"]["name"]
        self.uid: str = pod["metadata"]["uid"]
        self.loss: NodeLoss | None = None
        self._is_gone = self._leaves_orderly = False
        """`_leaves_orderly`: its deletion waits for the kubelet, which ends its processes first."""

    async def has_ended(self, stderr: str) -> bool:
        """Return whether a kubelet has reported its end; a missing object proves nothing."""
        await self.explain()
        return self._is_gone

    async def explain(self) -> None:
        """Update `loss`; it stays as it is if the API server does not answer."""
        try:
            pod = await self._find()
            reason = await explain(self._cluster, self.uid, pod, self._container)
        except SetupError:
            return
        self.loss = reason.loss_of(self.name) if reason else None

    async def end(self) -> bool:
        """Return whether certainly no process of its agent is alive, at the end of a deletion."""
        try:
            async with asyncio.timeout(_GONE_S):
                while (pod := await self._find()) is not None and not self._is_gone:
                    if "deletionTimestamp" not in pod["metadata"]:
                        break
                    await asyncio.sleep(_POLL_S)
        except (KubeError, TimeoutError):
            pass
        return self._is_gone

    async def force(self) -> None:
        """Remove its object; to be called once certainly no task in it is alive."""
        await _remove(self._cluster, self.name, self.uid)

    async def _find(self) -> Object | None:
        """Return the pod, and note whether the processes of its agent have ended."""
        pod = await in_thread(self._cluster.find, f"pods/{self.name}")
        if pod is not None and pod["metadata"]["uid"] != self.uid:
            pod = None
        if pod is None:
            self._is_gone = self._is_gone or self._leaves_orderly
        else:
            has_grace = bool(pod["metadata"].get("deletionGracePeriodSeconds"))
            self._leaves_orderly = has_grace and not reasons.is_on_silent_node(pod)
            has_restarted = reasons.end_of_container(pod, self._container) is not None
            self._is_gone = has_restarted or reasons.has_terminated(pod)
        return pod


async def _remove(cluster: KubeCluster, name: str, uid: str, *, grace_s: int = 0) -> None:
    try:
        await in_thread(cluster.delete, f"pods/{name}", grace_s=grace_s, uid=uid)
    except KubeError as error:
        if not error.is_conflict:  # else it is another pod of that name
            raise


@dataclass(frozen=True, slots=True)
class Clock:
    """The time, which stands still in tests."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class WaitResult:
    """The end of a wait for pods."""

    running: Mapping[str, Object] = field(default_factory=dict)
    """The pods, if all run."""
    reason: str = ""
    """The reason why a pod was lost, or has no place in time; empty if all run."""
    is_unplaced: bool = False
    """True if not all pods were given a place in time."""
    is_fault: bool = False
    """True if a pod was lost by a fault of the cluster, not to other pods."""


@dataclass(slots=True)
class Wait:
    """The wait until pods run, which their controllers make, and make again if they are lost."""

    cluster: KubeCluster
    labels: Mapping[str, str]
    """The labels of the run's pods, by which they are listed at once."""
    run: str
    """The name of the run's objects."""
    names: Mapping[str, str]
    """Pod → its node."""
    tasks: int
    """The number of the run's task pods."""
    say: Tell
    clock: Clock
    may_remove: Callable[[str], bool]
    """Returns whether certainly no task is alive in the pod with a uid."""
    refusals: Mapping[str, int]
    """The uid of an event about a pod that was refused → how often that had occurred before."""
    is_first: bool
    """True before all pods of the run have run: one that fails by itself then never will."""
    deadline_s: float | None = None
    """The time in which all must be given a node."""
    _started: float = field(init=False)
    _explained_at: float = field(init=False)
    _told: set[str] = field(default_factory=set)
    _seen: dict[str, str] = field(default_factory=dict)
    """Pod → the uid that it had last."""
    _leaving: dict[str, float] = field(default_factory=dict)
    """The uid of a pod that is over → since when."""
    _since: dict[tuple[str, str], float] = field(default_factory=dict)
    """Pod and reason → since when the pod has it."""

    def __post_init__(self) -> None:
        self._started = self._explained_at = self.clock.now()

    async def until_running(self) -> WaitResult:
        """Wait, and `say` why they do not run. Raises SetupError for a pod that never will."""
        while True:
            began = self.clock.now()
            try:
                if (outcome := await self._check()) is not None:
                    return outcome
            except KubeSilentError as error:
                self._tell(f"{error.message}; tfcluster keeps asking")
                self._started += self.clock.now() - began
            waited_s = self.clock.now() - self._started
            await self.clock.sleep(min(max(_POLL_S, waited_s / 30), _LONGEST_POLL_S))

    async def _check(self) -> WaitResult | None:
        listed = await in_thread(self.cluster.list, "pods", labels=self.labels)
        pods = {each["metadata"]["name"]: each for each in listed}
        waiting = [name for name in sorted(self.names) if not _is_running(pods.get(name))]
        if not waiting:
            return WaitResult({name: pods[name] for name in self.names})
        if (lost := await self._clear_away(pods, waiting)) is not None:
            return lost
        now = self.clock.now()
        unplaced = [name for name in waiting if not _has_node(pods.get(name))]
        is_late = self.deadline_s is not None and now - self._started >= self.deadline_s
        if not ((is_late and unplaced) or now >= self._explained_at + _EXPLAIN_S):
            return None
        self._explained_at = now
        first = (unplaced or waiting)[0]  # the others wait for the same, as a rule
        reason = await self._explain(first, pods.get(first))
        is_refused = bool(reason) and unplaced != [] and unplaced[0] not in pods
        if is_refused or (is_late and unplaced):
            return WaitResult(reason=reason or f"{unplaced[0]} has no node", is_unplaced=True)
        return None

    async def _clear_away(
        self, pods: Mapping[str, Object], waiting: list[str]
    ) -> WaitResult | None:
        """Remove the objects of pods that are over, for which their successors wait.

        Return the outcome if another pod is lost. Raises NodeLostError for one that may still run.
        """
        is_first, lost = not self._seen, list[tuple[str, str, Object | None]]()
        for name in waiting:
            pod, former = pods.get(name), self._seen.get(name)
            uid = "" if pod is None else pod["metadata"]["uid"]
            if former not in (None, uid) and former not in self._leaving:
                lost.append((name, former, None))
            if pod is None:
                continue
            is_new = uid not in self._leaving
            if _crashes(pod):
                self._leaving.setdefault(uid, self.clock.now())
                await self._end_crashing(pod)
            elif is_leaving(pod):
                self._leaving.setdefault(uid, self.clock.now())
                lost += [(name, uid, pod)] if is_new and not is_first else []
                await self._bury(pod)
        self._seen |= {name: pod["metadata"]["uid"] for name, pod in pods.items()}
        if not lost:
            return None
        name, uid, pod = lost[0]
        reason = await explain(self.cluster, uid, pod)
        if self.is_first:
            _require_hope(name, reason)
        loss = f"{name}: {reason or 'it was lost'}"
        self._tell(loss)
        is_fault = reason is not None and reason.nature in _FAULTS
        return WaitResult(reason=loss, is_fault=is_fault)

    async def _end_crashing(self, pod: Object) -> None:
        """End a pod whose container ends again and again: in a new one it starts at once, and a
        kubelet waits for up to five minutes. Raises SetupError for one that never will run."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if self.is_first:
            _require_hope(name, reasons.last_end(pod))
        await _remove(self.cluster, name, uid, grace_s=1)

    async def _bury(self, pod: Object) -> None:
        """Remove the object of a pod that is over, once no task in it can be alive.

        A kubelet keeps it for up to a minute, until the pod's folders are gone.
        """
        name, uid, now = pod["metadata"]["name"], pod["metadata"]["uid"], self.clock.now()
        lasted_s = now - self._leaving.get(uid, now)
        if reasons.has_terminated(pod) or (self.may_remove(uid) and lasted_s >= _UNUSED_S):
            await _remove(self.cluster, name, uid)
            self._started = now  # from now on its successor looks for a place
        elif lasted_s >= _GONE_S and not (self.is_first or self.may_remove(uid)):
            reason = await explain(self.cluster, uid, pod)
            loss = reason.loss_of(name) if reason else "its kubelet has not reported its end"
            raise NodeLostError(f"may still run: {loss}", node=self.names[name])

    async def _explain(self, name: str, pod: Object | None) -> str:
        """Say why a pod waits; raise SetupError if another one would, too."""
        if pod is None:
            reason = await self._explain_missing(name)
        else:
            reason = await explain(self.cluster, pod["metadata"]["uid"], pod)
        if reason is None:
            return ""
        since = self._since.setdefault((name, reason.what), self.clock.now())
        _require_hope(name, reason.after(self.clock.now() - since))
        self._tell(f"{name}: {reason}")
        return f"{name}: {reason}"

    async def _explain_missing(self, name: str) -> Reason | None:
        """Return why the controller cannot make a pod, as far as it has said so since we wait."""
        for event in await list_refusals(self.cluster, self.run):
            message = str(event.get("message") or "")
            known = self.refusals.get(event["metadata"]["uid"], 0)
            if f"Pod {name} in" in message and reasons.count(event) > known:
                refusal = message.partition("failed error: ")[2] or message
                return reasons.refused(refusal, tasks=self.tasks, others=1)
        return None

    def _tell(self, sentence: str) -> None:
        if sentence not in self._told:  # a pull and its back-off take turns
            self.say(sentence)
            self._told.add(sentence)


def _require_hope(pod: str, reason: Reason | None) -> None:
    """Raise SetupError for a reason that another pod would meet, too."""
    if reason is not None and reason.is_hopeless:
        raise SetupError(f"the pod {pod}: {reason}", fix=reason.fix)


async def explain(
    cluster: KubeCluster, uid: str, pod: Object | None, container: str = ""
) -> Reason | None:
    """Return why a pod does not run or does not answer, or None. Raises SetupError.

    `container`: the one whose end counts, although the kubelet may have started another one.
    """
    events = await in_thread(cluster.list, "events", fieldSelector=f"involvedObject.uid={uid}")
    ended_pod = None if pod is None else reasons.as_it_ended(pod, container)
    return reasons.explain(ended_pod, events)


async def list_refusals(cluster: KubeCluster, run: str) -> list[Object]:
    """Return the events about pods of a run that the API server did not accept."""
    selector = "involvedObject.kind=StatefulSet,reason=FailedCreate"
    events = await in_thread(cluster.list, "events", fieldSelector=selector)
    return [each for each in events if each["involvedObject"]["name"].startswith(f"{run}-")]


def _is_running(pod: Object | None) -> bool:
    return pod is not None and not is_leaving(pod) and reasons.runs(pod)


def _crashes(pod: Object) -> bool:
    """Return whether a kubelet waits until it starts the container of a pod again."""
    return not is_leaving(pod) and reasons.waits_to_restart(pod)


def _has_node(pod: Object | None) -> bool:
    return pod is not None and bool(pod.get("spec", {}).get("nodeName"))
