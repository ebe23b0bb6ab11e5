"""Pods are made by controllers, adopted, outwaited and given back; the cluster is a fake."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from tests.documentation import ROOT
from tests.launcher.agent.test_exec_server import Pod
from tests.launcher.backends.kubernetes.fake_api import FakeApi

from tfcluster.agent.agent_config import AgentConfig
from tfcluster.backends import relayed
from tfcluster.backends.base import RunContext
from tfcluster.backends.kubernetes import kube_nodes, port_forward, run_objects, run_pods, task_pods
from tfcluster.backends.kubernetes.exec_client import PodProcess
from tfcluster.backends.kubernetes.kube_client import (
    JOB_VARIABLE,
    Object,
)
from tfcluster.backends.kubernetes.kube_nodes import KubeNodes
from tfcluster.backends.kubernetes.leadership import LEADER, Leadership
from tfcluster.backends.kubernetes.reasons import has_terminated
from tfcluster.backends.kubernetes.run_objects import PodRun
from tfcluster.backends.kubernetes.task_pods import Clock, TaskPod
from tfcluster.discovery import planning
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.node_loss import LossNature
from tfcluster.spec import PlanOptions

SPEC = str(ROOT / "cluster_specs/kubernetes-2n.json")
SET, NAMES = "lab-1-worker", ["lab-1-worker-0", "lab-1-worker-1"]


class FakeCluster(FakeApi):
    """A StatefulSet with its controller; kubelets run its pods at once, unless told otherwise."""

    def __init__(self, made: Object) -> None:
        super().__init__()
        self.objects[f"apps/statefulsets/{SET}"] = self.set = made
        self.job = self.add("batch/jobs/lab-1")
        self.forced: list[str] = []
        self.places: int | None = None
        self.refusal = ""
        self.refusals = 0
        self.waiting: Mapping[str, str] | None = None
        self.rejection: Mapping[str, str] | None = None
        self.kubelets_answer = True

    @property
    def pods(self) -> dict[str, Object]:
        return {at[5:]: pod for at, pod in self.objects.items() if at.startswith("pods/")}

    @property
    def uids_now(self) -> list[str]:
        return [self.pods[name]["metadata"]["uid"] for name in sorted(self.pods)]

    def list(self, path: str, **query: object) -> list[Object]:
        listed = super().list(path, **query)
        if path == "pods":
            self.control()
        if "FailedCreate" not in str(query) or not self.refusals:
            return listed
        message = f"create Pod {NAMES[0]} in StatefulSet {SET} failed error: {self.refusal}"
        about = {"involvedObject": {"name": SET}, "metadata": {"uid": "event"}}
        return [{**about, "count": self.refusals, "message": message}]

    def control(self) -> None:
        """Do what the controller does: replace what is missing or has failed, one of each name."""
        for name, pod in self.pods.items():
            has_failed = pod["status"].get("phase") == "Failed"
            if has_failed and "deletionTimestamp" not in pod["metadata"]:
                del self.objects[f"pods/{name}"]
            elif NAMES.index(name) >= self.set["spec"]["replicas"]:
                self._begin_end(pod, 60)
        for name in NAMES[: self.set["spec"]["replicas"]]:
            if name not in self.pods and self.refusal:
                self.refusals += 1
            elif name not in self.pods:
                self.make(name)

    def make(self, name: str) -> Object:
        taken = [pod for pod in self.pods.values() if pod["spec"].get("nodeName")]
        made = self.add(f"pods/{name}") | {"spec": {}}
        if self.places is None or len(taken) < self.places:
            made["spec"]["nodeName"] = "n1"
            run(made)
            if self.waiting is not None:
                state = [{"name": "task", "state": {"waiting": dict(self.waiting)}}]
                made["status"] = {"phase": "Pending", "containerStatuses": state}
            if self.rejection is not None:
                made["status"] = {"phase": "Failed", **self.rejection}
        else:
            why = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: too full"}
            made["status"] = {"phase": "Pending", "conditions": [why]}
        self.objects[f"pods/{name}"] = made
        return made

    def patch(self, path: str, body: Object) -> Object:
        made = super().patch(path, body)
        self.control()
        return made

    def end(self, path: str, grace_s: int | None, *, background: bool) -> None:
        if grace_s == 0:
            self.forced.append(path[5:])
            super().end(path, grace_s, background=background)
        else:
            self._begin_end(self.objects[path], grace_s or 30)

    def _begin_end(self, pod: Object, grace_s: int) -> None:
        if not pod["spec"].get("nodeName"):
            del self.objects[f"pods/{pod['metadata']['name']}"]
            return
        pod["metadata"] |= {"deletionTimestamp": "now", "deletionGracePeriodSeconds": grace_s}
        if self.kubelets_answer:
            end_of(pod)


def run(pod: Object, container: str = "c1", **more: Any) -> None:
    status = {"name": "task", "state": {"running": {}}, "containerID": container, **more}
    pod["status"] = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [status]}


def end_of(pod: Object, code: int = 0, **more: Any) -> None:
    ended = {"exitCode": code, "reason": "Error", "containerID": "c1", **more}
    state = {"name": "task", "state": {"terminated": ended}, "containerID": "c1"}
    pod["status"] = {"phase": "Failed", "containerStatuses": [state]}


class Desk:
    """A run of two pods whose coordinator is in the cluster."""

    def __init__(self, folder: Path) -> None:
        planned = planning.plan(SPEC, PlanOptions(("supervision.start_deadline_s=3",)))
        self.plan = planned.plan
        self.queued: list[str] = []
        self.told: list[str] = []
        self.warned: list[str] = []
        self.slept: list[float] = []
        self.cleared: list[str] = []
        """The uids of pods in which what an earlier agent has left was ended."""
        self.silent: set[str] = set()
        """The uids of pods whose exec servers do not answer."""
        self.on_pause: Callable[[], None] = lambda: None
        self.now = 0.0
        self.pod_run = PodRun("lab-1", planned.plan, planned.spec.runtime)
        (made,) = run_pods.stateful_sets(self.pod_run)
        self.cluster = FakeCluster(made)
        self.run = RunContext(
            "lab-1",
            folder,
            queued=self.queued.append,
            tell=self.told.append,
            warn_at_end=self.warned.append,
            plan=planned.plan,
            runtime=planned.spec.runtime,
        )

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if seconds > 1:
            self.slept.append(seconds)
            self.on_pause()
        await asyncio.sleep(0)

    def nodes(self) -> KubeNodes:
        clock = Clock(now=lambda: self.now, sleep=self.sleep, jitter=lambda: 0.5)
        return KubeNodes(self.plan.nodes, self.run, clock)

    def start(self) -> None:
        """Open the nodes, and close them at once."""

        async def use() -> None:
            async with self.nodes():
                pass

        asyncio.run(use())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk(tmp_path)

    async def connect(argv: object, config: AgentConfig, *, container: TaskPod) -> Any:
        assert config.is_fenced
        if container.uid in made.silent:
            raise relayed.Unreached("timed out")
        return SimpleNamespace(place=container, welcome=SimpleNamespace(identity={"pid": 7}))

    async def argv(self: KubeNodes, node: object, pod: object) -> list[str]:
        return []

    async def clear(self: KubeNodes, pod: TaskPod) -> None:
        if pod.uid in made.silent:
            raise relayed.Unreached("timed out")
        made.cleared.append(pod.uid)

    monkeypatch.setenv(JOB_VARIABLE, "lab-1")
    monkeypatch.setattr(kube_nodes, "reach", lambda settings, patience_s: made.cluster)
    monkeypatch.setattr(task_pods, "_POLL_S", 0.3)
    monkeypatch.setattr(relayed, "connect", connect)
    monkeypatch.setattr(KubeNodes, "_argv", argv)
    monkeypatch.setattr(KubeNodes, "_clear", clear)
    return made


def test_the_controller_makes_the_pods_and_takes_them_away_with_the_run(desk: Desk) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            assert sorted(desk.cluster.pods) == NAMES
            hosts = {f"worker-{n}": f"{NAMES[n]}.lab-1" for n in (0, 1)}
            assert nodes.hosts == hosts
            await asyncio.gather(*(nodes.connect(node, token="t") for node in nodes.planned))

    asyncio.run(use())
    assert desk.cluster.pods == {}
    assert desk.cleared == []


def test_pods_of_an_earlier_coordinator_are_adopted_without_what_it_left_there(desk: Desk) -> None:
    desk.cluster.patch(f"apps/statefulsets/{SET}", {"spec": {"replicas": 2}})
    theirs = desk.cluster.uids_now

    async def use() -> None:
        async with desk.nodes() as nodes:
            for node in nodes.planned:
                await nodes.connect(node, token="t")
            assert desk.cluster.uids_now == theirs

    asyncio.run(use())
    assert desk.cleared == theirs


class Superseded(Exception):
    """The end of a coordinator's process."""


@pytest.fixture
def fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a coordinator that does not lead end by an exception, and not with this process."""

    def lose(why: str) -> NoReturn:
        raise Superseded(why)

    made = partial(Leadership, pod="lab-1-old", lose=lose)
    monkeypatch.setattr(kube_nodes, "Leadership", made)


@pytest.mark.usefixtures("fenced")
def test_a_coordinator_that_comes_back_beside_its_successor_leaves_all_pods(desk: Desk) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            await nodes.connect(nodes.planned[0], token="t")
            desk.cluster.job["metadata"]["annotations"][LEADER] = "lab-1-new"
            with pytest.raises(Superseded):  # it would start another attempt in its pods
                await nodes.repair()
            with pytest.raises(Superseded):  # it would end the successor's agent
                await nodes.connect(nodes.planned[0], token="t")
            assert desk.cleared == []

    with pytest.raises(Superseded, match="the pod lab-1-new leads the run now"):
        asyncio.run(use())
    assert sorted(desk.cluster.pods) == NAMES
    assert not any("deletionTimestamp" in pod["metadata"] for pod in desk.cluster.pods.values())


def test_a_pod_that_never_runs_ends_the_start(desk: Desk) -> None:
    desk.cluster.waiting = {"reason": "InvalidImageName", "message": 'cannot parse "A:::"'}

    with pytest.raises(SetupError, match="A:::"):
        desk.start()
    assert desk.cluster.pods == {}


def test_a_container_that_ends_again_and_again_ends_the_start(desk: Desk) -> None:
    made = desk.cluster.make

    def crash(name: str) -> Object:
        pod = made(name)
        ended = {
            "terminated": {"exitCode": 1, "reason": "Error", "message": "no module named json"}
        }
        run(pod, state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended)
        return pod

    desk.cluster.make = crash  # type: ignore[method-assign]
    with pytest.raises(SetupError, match="exit code 1: no module named json"):
        desk.start()


def test_half_a_gang_is_given_back_and_tried_again_with_growing_pauses(desk: Desk) -> None:
    desk.cluster.places = 1

    def free_places() -> None:
        desk.cluster.list("pods")  # the kubelets have the time to report the ends
        assert desk.cluster.set["spec"]["replicas"] == 0, "nothing is held during a pause"
        desk.cluster.places = None if len(desk.slept) == 3 else 1

    desk.on_pause = free_places
    desk.start()
    assert desk.slept == [30, 60, 120]
    assert "too full" in desk.queued[0]
    assert "all are given back, and made again in 30 s" in desk.queued[1]


def test_an_api_server_that_is_away_is_asked_on(desk: Desk) -> None:
    desk.cluster.silent = 5
    desk.start()
    assert "does not answer; tfcluster keeps asking" in desk.queued[0]


def test_a_lost_pod_without_a_place_in_time_gives_up_its_node(desk: Desk) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            node = nodes.planned[1]
            await nodes.connect(node, token="t")
            desk.cluster.places = 1
            end_of(desk.cluster.pods[NAMES[1]])
            with pytest.raises(NodeLostError, match=r"no place for worker-1 in time: .* too full"):
                await nodes.connect(node, token="t")

    asyncio.run(use())


def test_a_full_quota_is_waited_for(desk: Desk) -> None:
    desk.cluster.refusal = "exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4"

    def free() -> None:
        desk.cluster.refusal = ""

    desk.on_pause = free
    desk.start()
    assert desk.slept == [30]
    assert "quota" in desk.queued[0]


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (
            "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2",
            r"exceeded quota: q.*\n.*fewer tasks, or ask for less",
        ),
        ('admission webhook "policy" denied the request: no hostPath', "hostPath"),
    ],
)
def test_a_refusal_that_never_passes_ends_the_start(desk: Desk, refusal: str, said: str) -> None:
    desk.cluster.refusal = refusal
    with pytest.raises(SetupError, match=said):
        desk.start()
    assert desk.slept == []


def test_pods_that_nodes_reject_again_and_again_end_the_start(desk: Desk) -> None:
    desk.cluster.rejection = {"reason": "UnexpectedAdmissionError", "message": "no healthy GPU"}

    with pytest.raises(SetupError, match=r"lost pods 6 times before all ran; .* no healthy GPU"):
        desk.start()
    assert desk.slept == [2, 4, 8, 16]
    assert desk.cluster.set["spec"]["replicas"] == 0


def test_pods_that_others_displace_are_made_again_after_growing_pauses(desk: Desk) -> None:
    desk.cluster.rejection = {"reason": "Preempting", "message": "for a critical pod"}

    def accept() -> None:
        if len(desk.slept) > 4:
            assert desk.cluster.set["spec"]["replicas"] == 0
        if len(desk.slept) == 7:
            desk.cluster.rejection = None

    desk.on_pause = accept
    desk.start()
    assert desk.slept == [2, 4, 8, 16, 32, 64, 128]
    assert "for a critical pod); all are given back, and made again in 128 s" in desk.queued[-1]


def test_a_container_that_was_started_again_proves_the_end_of_the_one_before(desk: Desk) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            node = nodes.planned[1]
            link: Any = await nodes.connect(node, token="t")
            assert not await link.place.has_ended("")
            pod, uids = desk.cluster.pods[NAMES[1]], desk.cluster.uids_now
            ended = {"exitCode": 137, "reason": "OOMKilled", "containerID": "c1"}
            run(pod, "c2", lastState={"terminated": ended})
            assert await link.place.has_ended("")
            assert link.place.loss.reason.startswith(f"its pod {NAMES[1]} is lost: ")
            assert link.place.loss.nature is LossNature.OUT_OF_MEMORY
            await nodes.connect(node, token="t")
            assert desk.cluster.uids_now == uids

    asyncio.run(use())


def test_a_kubelet_that_waits_to_restart_a_container_makes_room_for_a_new_pod(desk: Desk) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            node = nodes.planned[1]
            await nodes.connect(node, token="t")
            kept, former = desk.cluster.uids_now
            ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "containerID": "c1"}}
            waits = {"waiting": {"reason": "CrashLoopBackOff"}}
            run(desk.cluster.pods[NAMES[1]], state=waits, lastState=ended)
            await nodes.connect(node, token="t")
            assert desk.cluster.uids_now[0] == kept
            assert desk.cluster.uids_now[1] != former

    asyncio.run(use())


def test_a_silent_pod_is_removed_only_once_its_lease_is_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            node = nodes.planned[1]
            await nodes.connect(node, token="t")
            desk.silent.add(desk.cluster.uids_now[1])
            with pytest.raises(NodeLostError, match="worker-1 cannot be reached: timed out"):
                await nodes.connect(node, token="t")
            assert desk.cluster.forced == []
            await nodes.connect(node, token="t", is_fenced=True)
            assert desk.cluster.forced == [NAMES[1]]

    asyncio.run(use())


def test_a_deleted_pod_of_a_silent_kubelet_is_outwaited(desk: Desk) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            node = nodes.planned[1]
            await nodes.connect(node, token="t")
            desk.cluster.kubelets_answer = False
            desk.cluster.delete(f"pods/{NAMES[1]}", grace_s=1, uid=desk.cluster.uids_now[1])
            with pytest.raises(NodeLostError, match="worker-1 may still run"):
                await nodes.connect(node, token="t")
            assert desk.cluster.forced == []
            await nodes.connect(node, token="t", is_fenced=True)
            assert desk.cluster.forced == [NAMES[1]]
            desk.cluster.kubelets_answer = True

    asyncio.run(use())


def test_a_silent_pod_of_an_earlier_coordinator_is_outwaited(desk: Desk) -> None:
    desk.cluster.patch(f"apps/statefulsets/{SET}", {"spec": {"replicas": 2}})
    desk.silent.add(desk.cluster.uids_now[1])
    desk.run = replace(desk.run, lease_s=60.0)

    async def use() -> None:
        async with desk.nodes() as nodes:
            node = nodes.planned[1]
            with pytest.raises(NodeLostError, match="worker-1 cannot be reached"):
                await nodes.connect(node, token="t")
            desk.now += 71  # its lease, and the time to notice and to act
            await nodes.connect(node, token="t")
            assert desk.cluster.forced == [NAMES[1]]

    asyncio.run(use())


def test_a_kubelet_that_is_away_at_the_end_is_said(desk: Desk) -> None:
    desk.cluster.kubelets_answer = False
    desk.start()
    assert desk.cluster.forced == []  # nobody knows whether they still run
    pods = ", ".join(NAMES)
    assert desk.warned == [f"no kubelet has confirmed the end of the deleted pods {pods}"]


def test_the_end_of_pods_that_never_ran_is_not_awaited(desk: Desk) -> None:
    desk.cluster.kubelets_answer = False
    desk.cluster.waiting = {"reason": "ErrImageNeverPull", "message": "no image"}
    with pytest.raises(SetupError, match="no image"):
        desk.start()
    assert (desk.cluster.forced, desk.warned) == (NAMES, [])


def test_a_missing_object_and_a_controllers_word_prove_nothing(desk: Desk) -> None:
    made = desk.cluster.make(NAMES[0])

    async def look() -> None:
        pod = TaskPod(desk.cluster, made)  # type: ignore[arg-type]
        del desk.cluster.objects[f"pods/{pod.name}"]
        assert not await pod.has_ended("")
        assert not await pod.end()

    asyncio.run(look())
    made["status"] = {"phase": "Failed"}
    assert not has_terminated(made)
    made["status"] = {"phase": "Failed", "reason": "NodeLost"}
    assert not has_terminated(made)
    made["status"] = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
    assert has_terminated(made)
    container = {"name": "task", "state": {"running": {}}}
    made["status"] = {"phase": "Failed", "containerStatuses": [container]}
    assert not has_terminated(made)
    container["state"] = {"waiting": {"reason": "ContainerCreating"}}
    assert has_terminated(made)
    collected = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    made["status"]["conditions"] = [collected]
    assert not has_terminated(made)


def test_files_that_were_not_gathered_keep_the_pods(desk: Desk) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            nodes.keeps_folders = True

    asyncio.run(use())
    assert sorted(desk.cluster.pods) == NAMES


@pytest.mark.parametrize("context", [None, "the lab"])
def test_the_command_for_files_names_the_pod_and_where_it_is(
    desk: Desk, context: str | None
) -> None:
    desk.cluster.access.context = context

    async def use() -> str:
        async with desk.nodes() as nodes:
            return nodes.fetch_command("worker-1", PurePosixPath("/the re; id #"))

    where = "--context 'the lab' -n vision" if context else "-n vision"
    wanted = f"kubectl {where} exec {NAMES[1]} -- tar -C '/the re; id #' -c . | tar -x"
    assert asyncio.run(use()) == wanted


def test_labels_find_the_pods(desk: Desk) -> None:
    labels = run_objects.run_labels("lab-1")
    assert labels.items() <= desk.cluster.set["spec"]["template"]["metadata"]["labels"].items()
    selected = desk.cluster.set["spec"]["selector"]["matchLabels"]
    assert selected.items() <= desk.cluster.set["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.linux("pods are Linux")
def test_the_files_of_a_pod_that_was_kept_are_copied_once_its_tasks_are_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (saved := tmp_path / "saved").mkdir()
    (saved / "ckpt-1.index").write_text("1")
    (into := tmp_path / "into").mkdir()
    server, token = Pod(tmp_path), b"the token"
    host, _, port = server.address.rpartition(":")

    def open_port(place: object, pod: str, number: int) -> socket.socket:
        return socket.create_connection((host, int(port)))

    monkeypatch.setattr(port_forward, "open_port", open_port)
    try:
        argv = ["sh", "-c", "echo begun; sleep 600"]
        with PodProcess(open_port(None, "p", 0), token, argv) as task:
            assert task.read(6) == b"begun\n"
            kube_nodes._fetch(FakeApi(), "p", token, str(saved), into)  # type: ignore[arg-type]
            assert (into / "ckpt-1.index").read_text() == "1"
            assert task.read(1) == b""
        with pytest.raises(OSError, match="closed the connection"):
            kube_nodes._fetch(FakeApi(), "p", b"another", str(saved), into)  # type: ignore[arg-type]
    finally:
        server.process.kill()
        server.process.communicate()
