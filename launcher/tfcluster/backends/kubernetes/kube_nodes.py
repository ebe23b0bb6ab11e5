"""`KubeNodes`: one pod per task, made, reached and replaced by the coordinator.

A pod's first program is a seat (`agent.containers.pod_seat`), which starts what the coordinator
sends. The agent listens there instead of dialling a coordinator, so one mechanism serves that in
the cluster, which connects directly, and one on a laptop, which goes through the API server. Direct
connections do not notice that the API server or a kubelet is away. A pod that ended is replaced by
one of the next generation, with another name, so a pod of a lost node never meets its successor's.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tfcluster.agent.containers.pod_seat import PORT
from tfcluster.backends import relayed
from tfcluster.backends.base import Nodes, RunContext
from tfcluster.backends.kubernetes import pod_dial, pod_reasons, run_objects, run_pods
from tfcluster.backends.kubernetes.kube_client import (
    JOB_VARIABLE,
    Cluster,
    KubeError,
    Object,
    reach,
    soon,
)
from tfcluster.backends.kubernetes.pod_reasons import Nature, Reason
from tfcluster.backends.kubernetes.run_objects import ROLE, RUN, PodRun
from tfcluster.backends.relayed import STARTER
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.plans.plan import NodePlan
from tfcluster.wire.link import AgentLink

_PATIENCE_S = 30.0
_POLL_S = 0.3
_EVENTS_AFTER_S = 2.0
"""Seconds after which a pod that waits is explained by its events."""
_GONE_S = 30.0
_RESOLVE_S = 30.0
_TOKEN = Path("/tfcluster/run/token")
"""The run's token in the coordinator's pod."""


class TaskPod:
    """A pod; the `relayed.Place` of its agent."""

    def __init__(self, cluster: Cluster, name: str, uid: str, generation: int) -> None:
        self._cluster, self.name, self._uid, self.generation = cluster, name, uid, generation
        self.explanation = ""
        self._leaves_orderly = self._is_gone = False
        """`_leaves_orderly`: its deletion waits for the kubelet, which ends its processes first."""

    async def has_ended(self, stderr: str) -> bool:
        """Return whether a kubelet has reported its end; a missing object proves nothing."""
        await self.explain()
        return self._is_gone

    async def is_over(self) -> bool:
        """Return whether it has ended or is being deleted. Raises SetupError."""
        pod = await self._find()
        return self._is_gone or pod is None or "deletionTimestamp" in pod["metadata"]

    async def explain(self) -> None:
        """Update `explanation`; it stays as it is if the API server does not answer."""
        try:
            pod = await self._find()
            events = await soon(_events, self._cluster, self.name)
        except SetupError:
            return
        reason = pod_reasons.explain(pod, events)
        self.explanation = f"its pod {self.name}: {reason}" if reason else ""

    async def end(self) -> bool:
        """Delete it; return whether it is certainly gone."""
        try:
            await soon(self._cluster.delete, f"pods/{self.name}", grace_s=1, uid=self._uid)
            self._leaves_orderly = True
            async with asyncio.timeout(_GONE_S):
                while await self._find() is not None:
                    if self._is_gone:
                        break
                    await asyncio.sleep(_POLL_S)
        except KubeError as error:
            return error.is_conflict
        except TimeoutError:
            return self._is_gone
        return self._is_gone

    async def force(self) -> None:
        """Remove its object; to be called once certainly no process in it is alive."""
        await soon(self._cluster.delete, f"pods/{self.name}", grace_s=0, uid=self._uid)

    async def _find(self) -> Object | None:
        """Return the pod, and note whether its processes have ended."""
        pod = await soon(self._cluster.find, f"pods/{self.name}")
        if pod is not None and pod["metadata"]["uid"] != self._uid:
            pod = None
        if pod is None:
            self._is_gone = self._is_gone or self._leaves_orderly
        else:
            self._leaves_orderly = bool(pod["metadata"].get("deletionGracePeriodSeconds"))
            self._is_gone = has_terminated(pod)
        return pod


class KubeNodes(Nodes):
    """The task pods of a run, and what they share unless a Job of the cluster has made it."""

    def __init__(self, planned: Sequence[NodePlan], run: RunContext) -> None:
        super().__init__(planned, run)
        assert run.plan is not None
        assert run.runtime is not None
        self._pod_run = PodRun(run.run_id, run.plan, run.runtime)
        self._settings = self._pod_run.settings
        self._is_inside = JOB_VARIABLE in os.environ
        self._name = self._pod_run.name
        self._pods: dict[str, TaskPod] = {}
        self._reached: set[str] = set()
        """Pods that had an agent."""
        self._token = _TOKEN
        self._owner: Object | None = None
        self._cluster: Cluster

    async def __aenter__(self) -> Self:
        """Make the pods and wait until all run. Raises SetupError."""
        self._cluster = await soon(reach, self._settings, patience_s=_PATIENCE_S)
        self.allocation = f"{self._name} in the namespace {self._cluster.namespace}"
        self.hosts = {node.name: self._pod_run.host(node.name) for node in self.planned}
        try:
            if not self._is_inside:
                await self._make_shared_objects()
                self.run.tell(
                    "the coordinator runs here, outside the cluster: if this machine sleeps or"
                    f" loses its network for more than {self.run.lease_s:g} s, the tasks end"
                )
            await asyncio.gather(*(self._make(node, 1) for node in self.planned))
            await self._await_running(list(self._pods.values()))
        except BaseException:
            await asyncio.shield(self._end())
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.shield(self._end())

    async def connect(self, node: NodePlan, *, token: str, is_fenced: bool = False) -> AgentLink:
        """Connect to the agent of the node's pod, which is replaced if it ended or was left.

        Raises SetupError.
        """
        pod = self._pods[node.name]
        if pod.name in self._reached or await pod.is_over():
            pod = await self._replace(node, pod, is_fenced=is_fenced)
        self._reached.add(pod.name)
        argv = await self._argv(node, pod)
        settings = {"announces": True, "echo": "/proc/1/fd/1"}
        try:
            return await relayed.connect(
                node.name, argv, self.run, token=token, place=pod, settings=settings
            )
        except relayed.Unreached as error:
            await pod.explain()
            raise NodeLostError(
                f"{node.name} cannot be reached: {pod.explanation or error}",
                fix=f"`kubectl -n {self._cluster.namespace} describe pod {pod.name}` shows more",
            ) from error

    async def _replace(self, node: NodePlan, pod: TaskPod, *, is_fenced: bool) -> TaskPod:
        """Return the running pod of the next generation, once the old one is gone."""
        if not await pod.end():
            if not is_fenced:
                await pod.explain()
                why = pod.explanation or "its kubelet has not reported its end"
                raise NodeLostError(f"{node.name} may still run: {why}")
            await pod.force()
        following = await self._make(node, pod.generation + 1)
        await self._await_running([following])
        return following

    async def _make(self, node: NodePlan, generation: int) -> TaskPod:
        """Create a pod, or adopt the one that was made with the run's Job."""
        body = run_pods.task_pod(self._pod_run, node.name, generation)
        if self._owner is not None:
            body = run_objects.with_owner(body, self._owner)
        name = body["metadata"]["name"]
        try:
            made = await soon(self._cluster.create, "pods", body)
        except KubeError as error:
            if error.is_conflict:
                made = await soon(self._cluster.get, f"pods/{name}")
            else:
                reason = pod_reasons.refused(error.message)
                raise SetupError(str(reason), fix=reason.fix or error.fix) from error
        pod = self._pods[node.name] = TaskPod(
            self._cluster, name, made["metadata"]["uid"], generation
        )
        return pod

    async def _await_running(self, pods: Sequence[TaskPod]) -> None:
        """Wait until the pods run; raises SetupError for one that never will."""
        started = asyncio.get_running_loop().time()
        names, said = {pod.name for pod in pods}, ""
        while True:
            labels = {RUN: self._pod_run.labels[RUN], ROLE: "task"}
            listed = await soon(self._cluster.list, "pods", labels=labels)
            found = {each["metadata"]["name"]: each for each in listed}
            waiting = [name for name in names if not _is_running(found.get(name))]
            if not waiting:
                return
            waited_s = asyncio.get_running_loop().time() - started
            if waited_s > _EVENTS_AFTER_S:
                name = min(waiting)
                reason = await self._explain(name, found.get(name))
                if reason is not None:
                    if reason.after(waited_s).nature not in (Nature.WAITING, Nature.PREEMPTION):
                        raise SetupError(f"the pod {name}: {reason}", fix=reason.fix)
                    if str(reason) != said:
                        said = str(reason)
                        self.run.queued(f"{name}: {said}")
            await asyncio.sleep(_POLL_S)

    async def _explain(self, name: str, pod: Object | None) -> Reason | None:
        events = await soon(_events, self._cluster, name)
        return pod_reasons.explain(pod, events)

    async def _argv(self, node: NodePlan, pod: TaskPod) -> list[str]:
        """Return the transport to a pod."""
        starter = ["python", "-I", "-S", "-c", STARTER]
        if not self._is_inside:
            return pod_dial.forward_argv(
                pod.name,
                self._token,
                starter,
                namespace=self._cluster.namespace,
                context=self._settings.context,
            )
        found = await soon(self._cluster.get, f"pods/{pod.name}")
        address = str(found["status"]["podIP"])
        await self._await_name(self.hosts[node.name], address)
        return pod_dial.address_argv(f"{address}:{PORT}", self._token, starter)

    async def _await_name(self, host: str, address: str) -> None:
        """Wait until the cluster's DNS knows the pod of this generation."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _RESOLVE_S
        while loop.time() < deadline:
            try:
                found = await loop.getaddrinfo(host, PORT, type=socket.SOCK_STREAM)
            except OSError:
                found = []
            if address in [where[4][0] for where in found]:
                return
            await asyncio.sleep(_POLL_S)
        self.run.tell(f"the cluster's DNS does not resolve {host} to {address}")

    async def _make_shared_objects(self) -> None:
        """Make what a submitted run's Job owns; here the Service owns it."""
        token = secrets.token_hex(32)
        self._token = self.run.runtime_dir / f"{self._name}.token"
        self._token.touch(mode=0o600)
        self._token.write_text(token)
        service = run_objects.service(self._pod_run)
        self._owner = service | await soon(self._cluster.create, "services", service)
        for path, body in (
            ("secrets", run_objects.secret(self._pod_run, token, {})),
            ("networking/networkpolicies", run_objects.network_policy(self._pod_run)),
        ):
            await soon(self._cluster.create, path, run_objects.with_owner(body, self._owner))

    async def _end(self) -> None:
        """Delete the pods, unless files in them must stay, and what they share."""
        if self.keeps_folders:
            names = ", ".join(pod.name for pod in self._pods.values())
            self.run.warn_at_end(f"files were not gathered, so the pods stay: {names}")
            return
        try:
            for pod in self._pods.values():
                await soon(self._cluster.delete, f"pods/{pod.name}")
            if not self._is_inside:
                self._token.unlink(missing_ok=True)
                await soon(self._cluster.delete, f"networking/networkpolicies/{self._name}")
                await soon(self._cluster.delete, f"secrets/{self._name}")
                await soon(self._cluster.delete, f"services/{self._name}")
        except SetupError as error:
            self.run.warn_at_end(f"objects of {self._name} may be left: {error.message}")


def has_terminated(pod: Mapping[str, Any]) -> bool:
    """Return whether the kubelet has reported the end of a pod's task, or never had the pod.

    The phase proves nothing: a controller writes Failed for a pod whose node is lost.
    """
    if not pod.get("spec", {}).get("nodeName"):
        return True
    found = pod.get("status", {}).get("containerStatuses") or ()
    ended = [each["name"] for each in found if "terminated" in each.get("state", {})]
    return run_pods.TASK_CONTAINER in ended


def _is_running(pod: Mapping[str, Any] | None) -> bool:
    return pod is not None and pod.get("status", {}).get("phase") == "Running"


def _events(cluster: Cluster, pod: str) -> list[Object]:
    return cluster.list("events", fieldSelector=f"involvedObject.name={pod}")
