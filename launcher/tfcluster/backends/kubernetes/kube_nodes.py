"""`KubeNodes`: one pod per task, which StatefulSets make, and the coordinator counts and reaches.

The coordinator is a pod of the run's Job. It gives the StatefulSets their pods and takes them away,
all at once; their controller replaces a pod that is lost. A task's pod has an exec server as its
first program (`agent.containers.exec_server`), which starts what the coordinator sends. The
coordinator connects to it directly, and does not notice that the API server or a kubelet is away.

A kubelet starts the container of a killed exec server again, in the same pod: what that server says
is alive, is all that lives. Two pods never have one name, so a pod whose kubelet is silent keeps
its name until its agent's lease is over; then the coordinator removes it by force.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shlex
import socket
import tarfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final, ParamSpec, Self, TypeVar

from tfcluster.agent.containers.exec_server import PORT
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.message_fields import replace
from tfcluster.backends import relayed
from tfcluster.backends.base import Nodes, RunContext
from tfcluster.backends.kubernetes import exec_client, port_forward, reasons, run_objects
from tfcluster.backends.kubernetes.kube_client import (
    JOB_VARIABLE,
    KubeCluster,
    KubeError,
    KubeSilentError,
    in_thread,
    reach,
    reach_again,
    to_the_end,
)
from tfcluster.backends.kubernetes.leadership import Leadership
from tfcluster.backends.kubernetes.reasons import has_terminated, is_leaving, runs_nothing
from tfcluster.backends.kubernetes.run_objects import ROLE, RUN, TASKS, PodRun
from tfcluster.backends.kubernetes.submitted.kube_package import extract_files
from tfcluster.backends.kubernetes.task_pods import Clock, TaskPod, Wait, WaitResult, list_refusals
from tfcluster.backends.relayed import STARTER
from tfcluster.errors import NodeLostError, SetupError, join_first
from tfcluster.node_loss import LossNature
from tfcluster.plans.plan import NodePlan
from tfcluster.wire.agent_link import SILENCE_S, AgentLink

_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.3
_RESOLVE_S, _DIAL_S, _REDIAL_S = 30.0, 60.0, 15.0
"""Seconds for the name of a pod, the server of a new pod, and that of one that was reached."""
_END_S: Final = 30.0
_KILL_S: Final = 3.0
_LOSS_PAUSE_S, _PLACE_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0, 600.0
_MOST_FAULTS: Final = 6
"""The times that the cluster may lose pods before all run; as `backoffLimit` of its own Jobs."""
_TOKEN: Final = Path("/tfcluster/run/token")
"""The run's token in the coordinator's pod."""
_P = ParamSpec("_P")
_T = TypeVar("_T")
_COPY_S: Final = 900.0
_SEND: Final = """
import os, sys, tarfile
folder = os.path.expanduser(sys.argv[1])
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as tar:
    if os.path.isdir(folder):
        tar.add(folder, ".")
"""
"""The program that sends a folder of a pod."""


class _SilentServerError(NodeLostError):
    """The exec server of a pod that is said to run does not answer."""


class KubeNodes(Nodes):
    """The task pods of a run; what they share comes with the run's Job."""

    def __init__(
        self, planned: Sequence[NodePlan], run: RunContext, clock: Clock | None = None
    ) -> None:
        super().__init__(planned, run)
        assert run.plan is not None
        assert run.runtime is not None
        self._pod_run = PodRun(run.run_id, run.plan, run.runtime)
        self._settings = self._pod_run.settings
        self._job = os.environ[JOB_VARIABLE]
        """The Job whose pod this process is in."""
        self._name, self._clock = self._pod_run.name, clock or Clock()
        self._labels = {**run_objects.run_labels(run.run_id), ROLE: "task"}
        self._pods: dict[str, TaskPod] = {}
        """Node → its pod, as it was reached last."""
        self._held: dict[str, float] = {}
        """The uid of a pod that has had an agent → when no task can be alive in it any more."""
        self._agents: dict[str, Mapping[str, Any] | None] = {}
        """Node → identity of the last agent reached there."""
        self._is_open = False
        self._cluster: KubeCluster

    async def __aenter__(self) -> Self:
        """Have the pods and wait until all run. Raises SetupError."""
        self._cluster = await in_thread(reach, self._settings, patience_s=_PATIENCE_S)
        self.allocation = f"{self._name} in the namespace {self._cluster.namespace}"
        self.hosts = {node.name: self._pod_run.host(node.name) for node in self.planned}
        try:
            self._cluster.fence = Leadership(self._cluster, self._job).require
            await self._adopt()
            await self._have_running(self.planned)
            self._is_open = True
        except BaseException:
            await asyncio.shield(self._end())
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.shield(self._end())

    async def _adopt(self) -> None:
        """Note the pods of an earlier coordinator, whose agents end within their lease."""
        until = self._clock.now() + self.run.lease_s + SILENCE_S + _KILL_S
        for pod in await self._ask(self._cluster.list, "pods", labels=self._labels):
            self._held[pod["metadata"]["uid"]] = until

    async def _scale(self, *, up: bool) -> None:
        await self._ask(scale, self._cluster, self.run.run_id, up=up)

    async def connect(self, node: NodePlan, *, token: str, is_fenced: bool = False) -> AgentLink:
        """Connect to the agent of the node's pod, whose controller replaces one that has ended.

        Raises SetupError.
        """
        former = self._pods.get(node.name)
        if former is not None and is_fenced:
            self._held[former.uid] = 0.0
        while True:
            await self._have_running([node])
            pod = self._pods[node.name]
            try:
                link = await self._dial(node, pod, token)
            except _SilentServerError:
                if pod.uid not in self._held or not self._may_remove(pod.uid):
                    raise
                await pod.force()
                continue
            self._held[pod.uid] = float("inf")
            self._agents[node.name] = link.welcome.identity
            return link

    def _may_remove(self, uid: str) -> bool:
        """Return whether certainly no task is alive in a pod, whatever its kubelet says."""
        return self._clock.now() >= self._held.get(uid, 0.0)

    async def repair(self) -> list[str]:
        """Repair nothing. A coordinator that has lost the lead ends here, not in another attempt.

        Its successor ends the tasks, which looks like a failure that is to be restarted.
        """
        await self._ask(self._cluster.fence)
        return []

    def fetch_command(self, node: str, folder: PurePath) -> str:
        """Return the command for the node's pod, with the namespace that it is in."""
        context = self._cluster.access.context or self._settings.context
        where = f"--context {shlex.quote(context)} " if context else ""
        where += f"-n {self._cluster.namespace}"
        pod = self._pod_run.pod(node)
        return f"kubectl {where} exec {pod} -- tar -C {shlex.quote(str(folder))} -c . | tar -x"

    @classmethod
    async def fetch_left(
        cls, node: NodePlan, run_id: str, folder: PurePath, into: Path, *, endpoint: str
    ) -> None:
        """Copy from a pod that was kept, through its exec server and the API server."""
        place = await in_thread(reach_again, endpoint, patience_s=_PATIENCE_S)
        name = run_objects.object_name(run_id)
        if await in_thread(place.find, f"pods/{name}-{node.name}") is None:
            raise NodeLostError(f"the cluster has no pod of {node.name} any more")
        secret = await in_thread(place.get, f"secrets/{name}")
        token = base64.b64decode(secret["data"][run_objects.TOKEN])
        try:
            await in_thread(_fetch, place, f"{name}-{node.name}", token, str(folder), into)
        except (OSError, tarfile.TarError) as error:
            raise NodeLostError(
                f"the pod {name}-{node.name} does not send its files: {describe_error(error)}"
            ) from error

    async def _dial(self, node: NodePlan, pod: TaskPod, token: str) -> AgentLink:
        """Connect to the agent in a pod; the server of one that has just started may not listen."""
        had_agent = pod.uid in self._held
        argv = await self._argv(node, pod)
        config = self.run.relayed_agent(node.name, token)
        former = self._agents.get(node.name)
        config = replace(config, announces=True, echo="/proc/1/fd/1", is_fenced=True, former=former)
        until = self._clock.now() + (_REDIAL_S if had_agent else _DIAL_S)
        while True:
            try:
                if had_agent:
                    await self._ask(self._cluster.fence)  # else it would end a successor's agent
                    await self._clear(pod)
                return await relayed.connect(argv, config, container=pod)
            except ConnectionError as error:
                await pod.explain()
                if pod.loss or self._clock.now() >= until:
                    where = f"kubectl -n {self._cluster.namespace} describe pod {pod.name}"
                    raise _SilentServerError(
                        f"cannot be reached: {pod.loss or error}",
                        fix=f"`{where}` shows more",
                        node=node.name,
                        nature=pod.loss.nature if pod.loss else LossNature.UNKNOWN,
                    ) from error
            await self._clock.sleep(_POLL_S)

    # ── Pods ──

    async def _have_running(self, nodes: Sequence[NodePlan]) -> None:
        """Have a running pod for each of `nodes`.

        Their controller makes pods that are lost meanwhile again. If that happens again and again,
        or not all are given a place in time, all are given back for a while: no half of a gang
        keeps others from running. Raises SetupError.
        """
        pause_s, faults, began = 0.0, 0, self._clock.now()
        while True:
            outcome = await self._wait_for(nodes)
            if not outcome.reason:
                for node in nodes:
                    pod = outcome.running[self._pod_run.pod(node.name)]
                    self._pods[node.name] = TaskPod(self._cluster, pod)
                return
            faults += outcome.is_fault
            first_s = _PLACE_PAUSE_S if outcome.is_unplaced else _LOSS_PAUSE_S
            pause_s = min(max(first_s, 2 * pause_s), _LONGEST_PAUSE_S)
            self._check_limits(nodes, outcome, began, faults)
            wait_s = pause_s * (0.75 + self._clock.jitter() / 2)
            if pause_s >= _PLACE_PAUSE_S and not self._is_open:
                what = "no place for all pods" if outcome.is_unplaced else "pods are lost"
                what += f" ({outcome.reason}); all are given back, and made again in"
                self._say(f"{what} {wait_s:.0f} s")
                await self._scale(up=False)
            await self._clock.sleep(wait_s)

    async def _wait_for(self, nodes: Sequence[NodePlan]) -> WaitResult:
        """Have the controllers make the pods, and wait until those of `nodes` run."""
        events = await self._persist(partial(list_refusals, self._cluster, self._name))
        if not self._is_open:
            await self._scale(up=True)
        wait = Wait(
            self._cluster,
            self._labels,
            self._name,
            {self._pod_run.pod(node.name): node.name for node in nodes},
            tasks=len(self.planned),
            say=self._say,
            clock=self._clock,
            may_remove=self._may_remove,
            refusals={each["metadata"]["uid"]: reasons.count(each) for each in events},
            is_first=not self._is_open,
            deadline_s=self._deadline_s,
        )
        return await wait.until_running()

    def _check_limits(
        self, nodes: Sequence[NodePlan], outcome: WaitResult, began: float, faults: int
    ) -> None:
        """Raise SetupError if pods are lost too often, or a lost one has no successor in time."""
        deadline_s = self._deadline_s if self._is_open else None
        if deadline_s is not None and self._clock.now() - began >= deadline_s:
            names = join_first([node.name for node in nodes])
            message = f"no place for {names} in time: {outcome.reason}"
            raise NodeLostError(message, nature=LossNature.NO_PLACE)
        if faults >= _MOST_FAULTS:
            fix = f"`kubectl -n {self._cluster.namespace} get events` and the nodes' state say why"
            what = f"the cluster has lost pods {faults} times before all ran; at last "
            raise (NodeLostError if self._is_open else SetupError)(what + outcome.reason, fix=fix)

    @property
    def _deadline_s(self) -> float | None:
        """The time in which pods must all be given a node; None: as long as it takes.

        If the place of a lost pod is late, the run gives all its places back by going back into
        the queue (`can_come_back`).
        """
        if self._settings.gang != "none":
            return None
        return self._pod_run.plan.supervision.start_deadline_s

    def _say(self, sentence: str) -> None:
        """Say why the run waits: for its first pods it is queued."""
        (self.run.tell if self._is_open else self.run.queued)(sentence)

    async def _ask(self, method: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return what the API server answers to one request, however long it is away."""
        return await self._persist(lambda: to_the_end(in_thread(method, *args, **kwargs)))

    async def _persist(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Return what `work` returns, done again while the API server is away."""
        while True:
            try:
                return await work()
            except KubeSilentError as error:
                self._say(f"{error.message}; tfcluster keeps asking")
                await self._clock.sleep(1.0)

    async def _argv(self, node: NodePlan, pod: TaskPod) -> list[str]:
        """Return the transport to a pod, once its name is known."""
        address = await self._address(pod)
        await self._await_name(self.hosts[node.name], address)
        argv = ["python", "-I", "-S", "-c", STARTER]
        return exec_client.address_argv(f"{address}:{PORT}", _TOKEN, argv)

    async def _address(self, pod: TaskPod) -> str:
        known = await self._ask(self._cluster.find, f"pods/{pod.name}") or {}
        if not (address := known.get("status", {}).get("podIP")):
            raise NodeLostError(f"the pod {pod.name} has no address")
        return str(address)

    async def _clear(self, pod: TaskPod) -> None:
        """End all that an earlier agent has left in a pod. Raises ConnectionError."""
        address = await self._address(pod)

        def clear() -> None:
            connection = exec_client.connect(f"{address}:{PORT}")
            argv, token = ["python", "-I", "-S", "-c", ""], _TOKEN.read_bytes().strip()
            with exec_client.PodProcess(
                connection, token, argv, timeout_s=_END_S, is_alone=True
            ) as process:
                if why := process.finish():
                    raise ConnectionError(why)

        await in_thread(clear)

    async def _await_name(self, host: str, address: str) -> None:
        """Wait until the cluster's DNS knows the newest pod of this name."""
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
        self.run.tell(
            f"the cluster's DNS does not resolve {host} to {address}, so tasks may not find each"
            " other; does it run (`kubectl get pods -n kube-system -l k8s-app=kube-dns`), and may"
            " pods reach it (port 53 in the egress rules of a NetworkPolicy)?"
        )

    async def _end(self) -> None:
        """Give the pods back, unless files in them must stay."""
        try:
            if self.keeps_folders:
                names = ", ".join(self._pod_run.pod(node.name) for node in self.planned)
                self.run.warn_at_end(
                    "files were not gathered, so the pods stay for"
                    f" {self._settings.collect_s / 3600:.3g} h: {names}"
                )
            else:
                await in_thread(scale, self._cluster, self.run.run_id, up=False)
                await self._await_end()
        except SetupError as error:
            self.run.warn_at_end(f"objects of {self._name} may be left: {error.message}")

    async def _await_end(self) -> None:
        """Wait until nothing is alive in the pods; remove objects that kubelets would keep."""
        until = self._clock.now() + _END_S
        while pods := await in_thread(self._cluster.list, "pods", labels=self._labels):
            for pod in pods:
                if is_leaving(pod) and (has_terminated(pod) or runs_nothing(pod)):
                    await TaskPod(self._cluster, pod).force()
            if self._clock.now() >= until:
                names = ", ".join(pod["metadata"]["name"] for pod in pods)
                self.run.warn_at_end(
                    f"no kubelet has confirmed the end of the deleted pods {names}"
                )
                return
            await self._clock.sleep(_POLL_S)


def _fetch(place: KubeCluster, pod: str, token: bytes, folder: str, into: Path) -> None:
    """Copy a folder of a pod, in which all processes are ended before.

    Raises OSError and tarfile.TarError unless all has arrived.
    """
    argv = ["python", "-I", "-S", "-c", _SEND, folder]
    with port_forward.start(place, pod, token, argv, timeout_s=_COPY_S, is_alone=True) as process:
        with tarfile.open(fileobj=process, mode="r|") as tar:
            extract_files(tar, into)
        if why := process.finish():
            raise OSError(why)


def scale(cluster: KubeCluster, run_id: str, *, up: bool) -> None:
    """Have the StatefulSets of a run make all their pods, or none. Raises SetupError."""
    labels = {RUN: run_objects.run_labels(run_id)[RUN], ROLE: "task"}
    for made in cluster.list("apps/statefulsets", labels=labels):
        number = int(made["metadata"]["annotations"][TASKS]) if up else 0
        if made["spec"]["replicas"] != number:
            path = f"apps/statefulsets/{made['metadata']['name']}"
            try:
                cluster.patch(path, {"spec": {"replicas": number}})
            except KubeError as error:
                if not error.is_absence:  # the run was deleted
                    raise
