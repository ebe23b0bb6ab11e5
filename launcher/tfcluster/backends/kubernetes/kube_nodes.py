"""`KubeNodes`: one pod per task, made, reached and replaced by the coordinator.

The coordinator is a pod of the run's Job. A task's pod has a seat as its first program
(`agent.containers.pod_seat`), which starts what the coordinator sends. The coordinator connects to
it directly, and does not notice that the API server or a kubelet is away. A pod that ended is
replaced by one of the next generation, with another name, so a pod of a lost node never meets its
successor's.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import shlex
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import ParamSpec, Self, TypeVar

from tfcluster.agent.containers.pod_seat import PORT
from tfcluster.backends import relayed
from tfcluster.backends.base import Nodes, NoPlaceError, RunContext
from tfcluster.backends.kubernetes import pod_files, pod_reasons, run_objects, run_pods, seat_client
from tfcluster.backends.kubernetes.kube_client import (
    JOB_VARIABLE,
    Cluster,
    KubeError,
    KubeSilentError,
    Object,
    reach,
    reach_again,
    soon,
    to_the_end,
)
from tfcluster.backends.kubernetes.leadership import Leadership
from tfcluster.backends.kubernetes.pod_reasons import Nature
from tfcluster.backends.kubernetes.run_objects import CLAIMED, NEWEST, ROLE, TASK, PodRun
from tfcluster.backends.kubernetes.task_pods import Clock, Outcome, Pauses, TaskPod, Wait
from tfcluster.backends.relayed import STARTER
from tfcluster.errors import NodeLostError, SetupError, join_first
from tfcluster.plans.plan import NodePlan
from tfcluster.wire.link import SILENCE_S, AgentLink

_PATIENCE_S = 30.0
_POLL_S = 0.3
_RESOLVE_S, _DIAL_S = 30.0, 60.0
_UNUSED_S = 5.0
"""Seconds that a pod without a living task may take to end, before its object is removed."""
_KILL_S = 3.0
_TOKEN = Path("/tfcluster/run/token")
"""The run's token in the coordinator's pod."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


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
        """Node → its pod."""
        self._generation: dict[str, int] = {}
        """Node → the generation of its newest pod."""
        self._refused_since: dict[str, float] = {}
        """Reason of a refusal → since when pods are refused for it."""
        self._reached: set[str] = set()
        """Pods that had an agent."""
        self._user = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        """The name by which pods are claimed; a coordinator that starts again has another."""
        self._is_open = self._is_slow_end_told = False
        self._owner: Object
        self._cluster: Cluster

    async def __aenter__(self) -> Self:
        """Make the pods and wait until all run. Raises SetupError."""
        self._cluster = await soon(reach, self._settings, patience_s=_PATIENCE_S)
        self.allocation = f"{self._name} in the namespace {self._cluster.namespace}"
        self.hosts = {node.name: self._pod_run.host(node.name) for node in self.planned}
        try:
            self._cluster.fence = Leadership(self._cluster, self._job).require
            self._owner = await self._ask(self._cluster.get, f"batch/jobs/{self._job}")
            await self._take_over()
            await self._have_running(self.planned)
            self._is_open = True
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
        pod = self._pods.get(node.name)
        if pod is None or pod.name in self._reached or await self._persist(pod.is_over):
            pod = await self._replace(node, pod, is_fenced=is_fenced)
        if pod.user != self._user:
            await self._persist(partial(pod.claim, self._user))
        self._reached.add(pod.name)
        pod.say_slow = self._note_slow_end
        return await self._dial(node, pod, token)

    async def repair(self) -> list[str]:
        """Repair nothing. A coordinator that has lost the lead ends here, not in another attempt.

        Its successor ends the tasks, which looks like a failure that is to be restarted.
        """
        await self._ask(self._cluster.fence)
        return []

    def fetch_command(self, node: str, folder: PurePath) -> str:
        """Return the command for the node's newest pod, with the namespace that it is in."""
        context = self._cluster.access.context or self._settings.context
        where = f"--context {shlex.quote(context)} " if context else ""
        where += f"-n {self._cluster.namespace}"
        pod = self._pods.get(node)
        name = pod.name if pod else run_pods.pod_name(self._pod_run, node, self._generation[node])
        return f"kubectl {where} exec {name} -- tar -C {shlex.quote(str(folder))} -c . | tar -x"

    async def salvage(self, node: str, folder: PurePath, into: Path) -> None:
        """Copy from a pod whose agent is gone: its seat still answers."""
        pod = self._pods.get(node)
        if pod is None:
            raise NodeLostError(f"{node} has no pod")
        sender = pod_files.sender_argv(self.run.run_id, os.devnull, str(folder))
        argv = await self._argv_of(pod, sender)
        if not await pod_files.receive(argv, into):
            raise NodeLostError(f"the pod {pod.name} does not send its files")

    @classmethod
    async def fetch_left(
        cls, node: NodePlan, run_id: str, folder: PurePath, into: Path, *, endpoint: str
    ) -> None:
        """Copy from a pod that was kept, through its seat and the API server."""
        place = await soon(reach_again, endpoint, patience_s=_PATIENCE_S)
        labels = {**run_objects.run_labels(run_id), ROLE: "task", TASK: node.name}
        pods = [TaskPod(place, pod) for pod in await soon(place.list, "pods", labels=labels)]
        used = sorted((pod for pod in pods if pod.user), key=lambda pod: -pod.generation)
        if not used:
            raise NodeLostError(f"the cluster has no pod of {node.name} any more")
        secret = await soon(place.get, f"secrets/{run_objects.object_name(run_id)}")
        token = base64.b64decode(secret["data"][run_objects.TOKEN])
        argv = pod_files.sender_argv(run_id, os.devnull, str(folder))
        if not await asyncio.to_thread(pod_files.fetch, place, used[0].name, token, argv, into):
            raise NodeLostError(f"the pod {used[0].name} does not send its files")

    async def _dial(self, node: NodePlan, pod: TaskPod, token: str) -> AgentLink:
        """Connect to the agent in a pod; the seat of one that has just started may not listen."""
        argv = await self._argv(node, pod)
        settings = {"announces": True, "echo": "/proc/1/fd/1"}
        until = self._clock.now() + _DIAL_S
        while True:
            try:
                return await relayed.connect(
                    node.name, argv, self.run, token=token, place=pod, settings=settings
                )
            except relayed.Unreached as error:
                await pod.explain()
                if pod.explanation or self._clock.now() >= until:
                    where = f"kubectl -n {self._cluster.namespace} describe pod {pod.name}"
                    raise NodeLostError(
                        f"{node.name} cannot be reached: {pod.explanation or error}",
                        fix=f"`{where}` shows more",
                    ) from error
            await self._clock.sleep(_POLL_S)

    async def _replace(self, node: NodePlan, pod: TaskPod | None, *, is_fenced: bool) -> TaskPod:
        """Return the running pod of the next generation, once the old one is gone."""
        if pod is not None:
            if not await pod.end(_UNUSED_S if is_fenced else None):
                if not is_fenced and pod.name in self._reached:
                    why = pod.explanation or "its kubelet has not reported its end"
                    raise NodeLostError(f"{node.name} may still run: {why}")
                await pod.force()
            self._pods.pop(node.name, None)
        await self._have_running([node])
        return self._pods[node.name]

    async def _take_over(self) -> None:
        """Adopt the pods that nobody has used yet, and end those of an earlier coordinator.

        `up` may still be making pods of the first generation: what it has not made, this makes
        with the same name, so each is made once.
        """
        listed = await self._ask(self._cluster.list, "pods", labels=self._labels)
        former: list[TaskPod] = []
        newest_first = sorted(listed, key=lambda pod: -TaskPod(self._cluster, pod).generation)
        for each in newest_first:
            pod, node = TaskPod(self._cluster, each), each["metadata"]["labels"][TASK]
            is_free = pod.user is None and not pod_reasons.is_over(each)
            if is_free and node in self.hosts and node not in self._pods:
                self._pods[node] = pod
            else:
                former.append(pod)
        noted = int(self._owner["metadata"].get("annotations", {}).get(NEWEST, 0))
        if not noted:
            await self._note_generation(1)
        top = max((noted, *(pod.generation for pod in former)))
        self._generation = dict.fromkeys(self.hosts, top)
        for node, pod in self._pods.items():
            self._generation[node] = max(top, pod.generation)
        used_before = {pod.name for pod in former if pod.user}
        await asyncio.gather(*map(self._claim, former))
        silent = await _end_all(former, _UNUSED_S)
        used = [pod for pod in silent if pod.name in used_before]
        if used:
            wait_s = self.run.lease_s + SILENCE_S + _KILL_S
            names = ", ".join(pod.name for pod in used)
            self._say(f"pods of an earlier coordinator may run for {wait_s:.0f} s more: {names}")
            used = await _end_all(used, wait_s)
        for pod in silent:
            if pod.name not in used_before or pod in used:
                await pod.force()

    async def _claim(self, pod: TaskPod) -> None:
        """Claim a pod, unless it is gone."""
        try:
            await self._persist(partial(pod.claim, self._user))
        except KubeError as error:
            if not (error.is_absence or error.is_conflict):
                raise

    async def _have_running(self, nodes: Sequence[NodePlan]) -> None:
        """Have a running pod for each of `nodes`.

        Pods that are lost meanwhile are made anew, after a pause that grows. For a long one all are
        given back, as also if not all are given a place in time: no half of a gang keeps others
        from running. Raises SetupError.
        """
        pauses, began = Pauses(), self._clock.now()
        while True:
            outcome = await self._try_to_run(nodes)
            if not (outcome.lost or outcome.unplaced):
                return
            pauses.count(outcome)
            left = [n for n in nodes if pauses.is_long or self._name_of(n) in outcome.lost]
            await asyncio.gather(*(self._give_back(node) for node in left))
            self._check_limits(nodes, outcome, began, pauses)
            wait_s = pauses.pause_s * (0.75 + self._clock.jitter() / 2)
            if pauses.is_long:
                what = "pods are lost" if outcome.lost else "no place for all pods"
                what += f" ({outcome.reason}); all are given back, and made again in"
                self._say(f"{what} {wait_s:.0f} s")
            await self._clock.sleep(wait_s)

    async def _try_to_run(self, nodes: Sequence[NodePlan]) -> Outcome:
        if waits := await self._make_missing(nodes):
            return Outcome(unplaced=True, reason=waits)
        wait = Wait(self._cluster, self._labels, self._say, self._clock, self._deadline_s)
        return await wait.until_running({self._pods[node.name].name for node in nodes})

    def _check_limits(
        self, nodes: Sequence[NodePlan], outcome: Outcome, began: float, pauses: Pauses
    ) -> None:
        """Raise SetupError if pods are lost too often, or a lost one has no successor in time."""
        deadline_s = self._deadline_s if self._is_open else None
        if deadline_s is not None and self._clock.now() - began >= deadline_s:
            names = join_first([node.name for node in nodes])
            raise NoPlaceError(f"no place for {names} in time: {outcome.reason}")
        if pauses.are_in_vain:
            fix = f"`kubectl -n {self._cluster.namespace} get events` and the nodes' state say why"
            what = f"the cluster has lost pods {pauses.faults} times before all ran; at last "
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

    def _name_of(self, node: NodePlan) -> str:
        pod = self._pods.get(node.name)
        return pod.name if pod is not None else ""

    def _say(self, sentence: str) -> None:
        """Say why the run waits: for its first pods it is queued."""
        (self.run.tell if self._is_open else self.run.queued)(sentence)

    async def _give_back(self, node: NodePlan) -> None:
        """Delete a pod that has had no agent, so no task can be alive in it."""
        pod = self._pods.pop(node.name, None)
        if pod is not None and not await pod.end(_UNUSED_S):
            await pod.force()

    async def _make_missing(self, nodes: Sequence[NodePlan]) -> str:
        """Create the pods that do not exist; return why the cluster does not take them now.

        Raises SetupError where it never will.
        """
        missing = [node for node in nodes if node.name not in self._pods]
        results = await asyncio.gather(*map(self._make, missing), return_exceptions=True)
        waits, since = "", self._refused_since
        self._refused_since = {}
        for result in results:
            if isinstance(result, KubeError):
                tasks = len(self.planned)
                reason = pod_reasons.refused(result.message, result.fix, tasks=tasks, others=1)
                now = self._clock.now()
                began = self._refused_since.setdefault(reason.what, since.get(reason.what, now))
                if reason.after(now - began).nature is not Nature.WAITING:
                    raise SetupError(str(reason), fix=reason.fix or result.fix) from result
                waits = waits or str(reason)
            elif isinstance(result, BaseException):
                raise result
        return waits

    async def _make(self, node: NodePlan) -> None:
        """Create the pod of the next generation, which is claimed from the start.

        Raises KubeError for one that is refused. Where an answer was lost, the pod may exist.
        """
        generation = self._generation.get(node.name, 0) + 1
        await self._note_generation(generation)
        self._generation[node.name] = generation
        body = run_pods.task_pod(self._pod_run, node.name, generation)
        body = run_objects.with_owner(body, self._owner)
        body["metadata"]["annotations"] = {**body["metadata"]["annotations"], CLAIMED: self._user}
        try:
            made = await self._ask(self._cluster.create, "pods", body)
        except KubeError as error:
            own = await self._find_own(body) if error.is_conflict else None
            if own is None:
                raise
            made = own
        self._pods[node.name] = TaskPod(self._cluster, made)

    async def _ask(self, method: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return what the API server answers to one request, however long it is away."""
        return await self._persist(lambda: to_the_end(soon(method, *args, **kwargs)))

    async def _persist(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Return what `work` returns, done again while the API server is away."""
        while True:
            try:
                return await work()
            except KubeSilentError as error:
                self._say(f"{error.message}; tfcluster keeps asking")
                await self._clock.sleep(1.0)

    async def _find_own(self, body: Object) -> Object | None:
        """Return the pod of that name if `up`, or a request whose answer was lost, has made it."""
        found = await self._ask(self._cluster.find, f"pods/{body['metadata']['name']}")
        if found is None or TaskPod(self._cluster, found).user not in (None, self._user):
            return None
        return found

    async def _note_generation(self, generation: int) -> None:
        """Note at the Job which names are taken for ever, for a later coordinator."""
        if generation <= max(self._generation.values(), default=0):
            return
        body = {"metadata": {"annotations": {NEWEST: str(generation)}}}
        await self._ask(self._cluster.patch, f"batch/jobs/{self._job}", body)

    async def _argv(self, node: NodePlan, pod: TaskPod) -> list[str]:
        """Return the transport to a pod, once its name is known."""
        await self._await_name(self.hosts[node.name], await self._address(pod))
        return await self._argv_of(pod, ["python", "-I", "-S", "-c", STARTER])

    async def _argv_of(self, pod: TaskPod, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` in a pod."""
        return seat_client.address_argv(f"{await self._address(pod)}:{PORT}", _TOKEN, argv)

    async def _address(self, pod: TaskPod) -> str:
        found = await self._ask(self._cluster.get, f"pods/{pod.name}")
        if not (address := found.get("status", {}).get("podIP")):
            raise NodeLostError(f"the pod {pod.name} has no address")
        return str(address)

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
        self.run.tell(
            f"the cluster's DNS does not resolve {host} to {address}, so tasks may not find each"
            " other; does it run (`kubectl get pods -n kube-system -l k8s-app=kube-dns`), and may"
            " pods reach it (port 53 in the egress rules of a NetworkPolicy)?"
        )

    async def _end(self) -> None:
        """Delete the pods, unless files in them must stay."""
        try:
            if self.keeps_folders:
                names = ", ".join(pod.name for pod in self._pods.values())
                self.run.warn_at_end(
                    "files were not gathered, so the pods stay for"
                    f" {self._settings.collect_s / 3600:.3g} h: {names}"
                )
            else:
                await self._end_pods()
        except SetupError as error:
            self.run.warn_at_end(f"objects of {self._name} may be left: {error.message}")

    async def _end_pods(self) -> None:
        listed = await soon(self._cluster.list, "pods", labels=self._labels)
        # Another coordinator's pods are not ours to delete, though they have the run's labels.
        found = [TaskPod(self._cluster, each) for each in listed]
        pods = [pod for pod in found if pod.user in (None, self._user)]
        waited = {pod.name for pod in self._pods.values() if pod.has_no_end}
        unused = [pod for pod in pods if pod.name not in self._reached or pod.name in waited]
        used = [pod for pod in pods if pod not in unused]
        silent, unended = await asyncio.gather(_end_all(used), _end_all(unused, _UNUSED_S))
        for pod in unended:
            if pod.name not in waited:
                await pod.force()
        silent += [pod for pod in unended if pod.name in waited]
        if names := ", ".join(pod.name for pod in silent):
            self.run.warn_at_end(f"no kubelet has confirmed the end of the deleted pods {names}")

    def _note_slow_end(self, pod: str) -> None:
        """Say that the cluster does not confirm the end of a pod; one pod stands for all."""
        if not self._is_slow_end_told:
            self._is_slow_end_told = True
            self.run.tell(
                f"the cluster has not confirmed the end of the pod {pod} yet; tfcluster waits"
            )


async def _end_all(pods: Sequence[TaskPod], within_s: float | None = None) -> list[TaskPod]:
    """Delete pods; return those that may still have a living process after that time."""
    ended = await asyncio.gather(*(pod.end(within_s) for pod in pods))
    return [pod for pod, is_gone in zip(pods, ended, strict=True) if not is_gone]
