"""Pods are made, adopted, claimed, replaced and given back; the API server is a fake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from tests.documentation import ROOT

from tfcluster.backends import relayed
from tfcluster.backends.base import RunContext
from tfcluster.backends.kubernetes import kube_nodes, run_objects, run_pods, task_pods
from tfcluster.backends.kubernetes.kube_client import (
    JOB_VARIABLE,
    KubeError,
    KubeSilentError,
    Object,
)
from tfcluster.backends.kubernetes.kube_nodes import KubeNodes
from tfcluster.backends.kubernetes.leadership import LEADER, Leadership
from tfcluster.backends.kubernetes.pod_reasons import has_terminated
from tfcluster.backends.kubernetes.run_objects import CLAIMED, NEWEST, PodRun
from tfcluster.backends.kubernetes.task_pods import Clock, TaskPod
from tfcluster.discovery.planning import plan_file
from tfcluster.errors import NodeLostError, SetupError

SPEC = str(ROOT / "cluster_specs/kubernetes-2n.json")


class FakeCluster:
    """Pods that run as soon as they are made, unless told otherwise."""

    namespace = "team"

    def __init__(self) -> None:
        self.access = SimpleNamespace(context=None)
        self.pods: dict[str, Object] = {}
        self.made: list[str] = []
        self.forced: list[str] = []
        self.places: int | None = None
        self.refusal = ""
        self.waiting: Mapping[str, str] | None = None
        self.rejection: Mapping[str, str] | None = None
        self.kubelets_answer = True
        self.notes: dict[str, str] = {}
        self.silent = 0
        """The requests that are not answered from now on; a pod is made all the same."""
        self.fence: Callable[[], None] = lambda: None

    def get(self, path: str) -> Object:
        found = self.find(path)
        assert found is not None, path
        return found

    def find(self, path: str) -> Object | None:
        if path.startswith("batch/jobs/"):
            about = {"name": path.rpartition("/")[2], "uid": "job-uid", "annotations": self.notes}
            return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about}
        return self.pods.get(path.removeprefix("pods/"))

    def list(self, path: str, **query: object) -> list[Object]:
        self._fall_silent()
        return [*self.pods.values()] if path == "pods" else []

    def _fall_silent(self) -> None:
        if self.silent:
            self.silent -= 1
            raise KubeSilentError("the API server does not answer")

    def create(self, path: str, body: Object) -> Object:
        self.fence()
        if self.refusal:
            raise KubeError(self.refusal, status=403)
        name = body["metadata"]["name"]
        if name in self.pods:
            raise KubeError(f"{name} already exists", status=409)
        self.made.append(name)
        made = body | {"metadata": body["metadata"] | {"uid": f"uid-{len(self.made)}"}}
        self.pods[name] = made
        taken = [pod for pod in self.pods.values() if pod["spec"].get("nodeName")]
        made["spec"] = dict(body["spec"])
        if self.places is None or len(taken) < self.places:
            made["spec"]["nodeName"] = "n1"
            made["status"] = {"phase": "Running"}
            if self.waiting is not None:
                state = [{"name": "task", "state": {"waiting": dict(self.waiting)}}]
                made["status"] = {"phase": "Pending", "containerStatuses": state}
            if self.rejection is not None:
                made["status"] = {"phase": "Failed", **self.rejection}
        else:
            why = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: too full"}
            made["status"] = {"phase": "Pending", "conditions": [why]}
        self._fall_silent()
        return made

    def patch(self, path: str, body: Object) -> Object:
        self.fence()
        if path.startswith("batch/jobs/"):
            self.notes.update(body["metadata"]["annotations"])
            return body
        pod = self.pods[path.removeprefix("pods/")]
        assert pod["metadata"]["uid"] == body["metadata"]["uid"]
        pod["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        return pod

    def delete(self, path: str, *, grace_s: int | None = None, uid: str | None = None) -> None:
        self.fence()
        name = path.removeprefix("pods/")
        pod = self.pods.get(name)
        if pod is None:
            return
        assert uid == pod["metadata"]["uid"]
        if grace_s == 0:
            self.forced.append(name)
        if grace_s == 0 or not pod["spec"].get("nodeName"):
            del self.pods[name]
            return
        about = {"deletionTimestamp": "now", "deletionGracePeriodSeconds": grace_s}
        pod["metadata"] |= about
        if self.kubelets_answer:
            end_of(pod)


def end_of(pod: Object, code: int = 0) -> None:
    ended = {"name": "task", "state": {"terminated": {"exitCode": code, "reason": "Error"}}}
    pod["status"] = {"phase": "Failed", "containerStatuses": [ended]}


class Desk:
    """A run of two pods whose coordinator is in the cluster."""

    def __init__(self, folder: Path) -> None:
        planned = plan_file(SPEC, sets=["supervision.start_deadline_s=3"])
        self.plan, self.cluster = planned.plan, FakeCluster()
        self.queued: list[str] = []
        self.told: list[str] = []
        self.warned: list[str] = []
        self.slept: list[float] = []
        self.on_poll: Callable[[], None] = lambda: None
        self.on_pause: Callable[[], None] = lambda: None
        self.now = 0.0
        self.pod_run = PodRun("lab-1", planned.plan, planned.spec.runtime)
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
        else:
            self.on_poll()
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

    def given(self, task: str, generation: int, user: str | None = None) -> Object:
        """Have a pod that another process made."""
        made = self.cluster.create("pods", run_pods.task_pod(self.pod_run, task, generation))
        if user is not None:
            made["metadata"]["annotations"] = {CLAIMED: user}
        self.cluster.made.clear()
        return made

    def name(self, number: int, generation: int) -> str:
        return f"lab-1-worker-{number}-g{generation}"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk(tmp_path)

    async def connect(node: str, argv: object, run: object, **more: Any) -> TaskPod:
        place: TaskPod = more["place"]
        assert place.user is not None, "a pod is claimed before it is dialled"
        return place

    async def argv(self: KubeNodes, node: object, pod: object) -> list[str]:
        return []

    monkeypatch.setenv(JOB_VARIABLE, "lab-1")
    monkeypatch.setattr(kube_nodes, "reach", lambda settings, patience_s: made.cluster)
    monkeypatch.setattr(kube_nodes, "_UNUSED_S", 0.05)
    monkeypatch.setattr(task_pods, "_GONE_S", 60.0)
    monkeypatch.setattr(task_pods, "_END_POLL_S", 0.002)
    monkeypatch.setattr(relayed, "connect", connect)
    monkeypatch.setattr(KubeNodes, "_argv", argv)
    return made


def test_missing_pods_are_made_with_an_owner_and_ended_with_the_run(desk: Desk) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            assert desk.cluster.made == [desk.name(0, 1), desk.name(1, 1)]
            for pod in desk.cluster.pods.values():
                assert pod["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
            assert nodes.hosts == {"worker-0": "worker-0.lab-1", "worker-1": "worker-1.lab-1"}
            await asyncio.gather(*(nodes.connect(node, token="t") for node in nodes.planned))

    asyncio.run(use())
    assert desk.cluster.pods == {}


def test_pods_that_nobody_uses_are_adopted_and_claimed(desk: Desk) -> None:
    mine = [desk.given(f"worker-{number}", 1) for number in (0, 1)]

    async def use() -> None:
        async with desk.nodes() as nodes:
            for node in nodes.planned:
                await nodes.connect(node, token="t")
            users = {pod["metadata"]["annotations"][CLAIMED] for pod in mine}
            assert len(users) == 1
            assert desk.cluster.made == []

    asyncio.run(use())


def test_pods_that_up_still_makes_are_made_once(desk: Desk) -> None:
    desk.given("worker-0", 1)
    create = desk.cluster.create

    def create_late(path: str, body: Object) -> Object:
        desk.cluster.create = create  # type: ignore[method-assign]
        desk.given("worker-1", 1)
        return create(path, body)

    desk.cluster.create = create_late  # type: ignore[method-assign]

    async def use() -> None:
        async with desk.nodes() as nodes:
            for node in nodes.planned:
                await nodes.connect(node, token="t")
            assert sorted(desk.cluster.pods) == [desk.name(0, 1), desk.name(1, 1)]
            users = {pod["metadata"]["annotations"][CLAIMED] for pod in desk.cluster.pods.values()}
            assert len(users) == 1

    asyncio.run(use())
    assert desk.cluster.pods == {}
    assert desk.cluster.notes[NEWEST] == "1"


def test_pods_of_an_earlier_coordinator_end_first(desk: Desk) -> None:
    desk.given("worker-0", 1, user="earlier")
    desk.given("worker-1", 2, user="earlier")

    async def use() -> None:
        async with desk.nodes():
            assert [*desk.cluster.pods] == desk.cluster.made == [desk.name(0, 3), desk.name(1, 3)]

    asyncio.run(use())
    assert desk.slept == []


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
    theirs = [desk.given(f"worker-{number}", 3, user="successor") for number in (0, 1)]
    desk.cluster.notes[LEADER] = "lab-1-new"
    with pytest.raises(Superseded, match="the pod lab-1-new leads the run now"):
        desk.start()
    assert [*desk.cluster.pods.values()] == theirs
    assert not any("deletionTimestamp" in pod["metadata"] for pod in theirs)
    assert desk.cluster.made == []


@pytest.mark.usefixtures("fenced")
def test_a_coordinator_that_has_lost_the_lead_makes_and_deletes_nothing(desk: Desk) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            await nodes.connect(nodes.planned[0], token="t")
            desk.cluster.notes[LEADER] = "lab-1-new"
            made = [*desk.cluster.made]
            with pytest.raises((Superseded, NodeLostError)):
                await nodes.connect(nodes.planned[0], token="t")
            assert desk.cluster.made == made
            with pytest.raises(Superseded):  # it would start another attempt in its pods
                await nodes.repair()

    with pytest.raises(Superseded):
        asyncio.run(use())
    assert sorted(desk.cluster.pods) == [desk.name(0, 1), desk.name(1, 1)]


def test_only_pods_that_the_coordinator_has_claimed_end_with_it(desk: Desk) -> None:
    async def use() -> None:
        async with desk.nodes():
            desk.given("worker-0", 2, user="another coordinator")

    asyncio.run(use())
    assert [*desk.cluster.pods] == [desk.name(0, 2)]


def silence_kubelets(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.cluster.kubelets_answer = False
    monkeypatch.setattr(task_pods, "_GONE_S", 0.05)


def test_silent_pods_of_an_earlier_coordinator_are_outwaited(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.given("worker-0", 1, user="earlier")
    silence_kubelets(desk, monkeypatch)
    monkeypatch.setattr(kube_nodes, "SILENCE_S", 0.0)
    monkeypatch.setattr(kube_nodes, "_KILL_S", 0.0)
    desk.run = replace(desk.run, lease_s=0.1)

    async def use() -> None:
        async with desk.nodes():
            assert desk.cluster.forced[:1] == [desk.name(0, 1)]
            assert desk.cluster.made == [desk.name(0, 2), desk.name(1, 2)]

    asyncio.run(use())
    assert "may run for 0 s more: lab-1-worker-0-g1" in desk.queued[0]


def test_a_kubelet_that_answers_late_ends_the_wait_for_an_earlier_coordinators_pod(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = desk.given("worker-0", 1, user="earlier")
    desk.cluster.kubelets_answer = False
    desk.run = replace(desk.run, queued=lambda sentence: end_of(pod))

    async def use() -> None:
        async with desk.nodes():
            assert desk.cluster.made == [desk.name(0, 2), desk.name(1, 2)]

    asyncio.run(asyncio.wait_for(use(), 30))


def test_a_pod_that_never_runs_ends_the_start(desk: Desk) -> None:
    desk.cluster.waiting = {"reason": "InvalidImageName", "message": 'cannot parse "A:::"'}

    with pytest.raises(SetupError, match="A:::"):
        desk.start()
    assert desk.cluster.pods == {}


def test_half_a_gang_is_given_back_and_tried_again_with_growing_pauses(desk: Desk) -> None:
    desk.cluster.places = 1

    def free_places() -> None:
        assert desk.cluster.pods == {}, "nothing is held during a pause"
        desk.cluster.places = None if len(desk.slept) == 3 else 1

    desk.on_pause = free_places

    async def use() -> None:
        async with desk.nodes():
            assert [*desk.cluster.pods] == [desk.name(0, 4), desk.name(1, 4)]

    asyncio.run(use())
    assert desk.slept == [30, 60, 120]
    assert "too full" in desk.queued[0]
    assert "all are given back, and made again in 30 s" in desk.queued[1]


def test_an_api_server_that_is_away_is_asked_on(desk: Desk) -> None:
    desk.cluster.silent = 5

    async def use() -> None:
        async with desk.nodes():
            assert sorted(desk.cluster.pods) == [desk.name(0, 1), desk.name(1, 1)]

    asyncio.run(use())
    assert desk.cluster.made == [desk.name(0, 1), desk.name(1, 1)]
    assert "does not answer; tfcluster keeps asking" in desk.queued[0]


def test_names_of_pods_that_no_list_shows_any_more_are_not_used_again(desk: Desk) -> None:
    desk.cluster.notes[NEWEST] = "7"

    async def use() -> None:
        async with desk.nodes():
            assert sorted(desk.cluster.pods) == [desk.name(0, 8), desk.name(1, 8)]

    asyncio.run(use())
    assert desk.cluster.notes[NEWEST] == "8"


def test_a_lost_pod_without_a_place_in_time_gives_up_its_node(desk: Desk) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            node = nodes.planned[1]
            await nodes.connect(node, token="t")
            desk.cluster.places = 1
            with pytest.raises(NodeLostError, match=r"no place for worker-1 in time: .* too full"):
                await nodes.connect(node, token="t")
            assert sorted(desk.cluster.pods) == [desk.name(0, 1)]

    asyncio.run(use())


def test_a_full_quota_is_waited_for(desk: Desk) -> None:
    desk.cluster.refusal = "exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4"

    def free() -> None:
        desk.cluster.refusal = ""

    desk.on_pause = free

    async def use() -> None:
        async with desk.nodes():
            assert len(desk.cluster.pods) == 2

    asyncio.run(use())
    assert desk.slept == [30]
    assert "quota" in desk.queued[0]


def test_a_quota_that_never_has_room_for_all_pods_ends_the_start(desk: Desk) -> None:
    desk.cluster.refusal = "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
    with pytest.raises(SetupError, match=r"exceeded quota: q.*\n.*fewer tasks, or ask for less"):
        desk.start()
    assert desk.slept == []


def test_a_refusal_that_does_not_pass_in_time_ends_the_start(desk: Desk) -> None:
    desk.cluster.refusal = 'pods "p" is forbidden: error looking up service account team/x'

    with pytest.raises(SetupError, match="service account does not exist"):
        desk.start()
    assert desk.slept == [30]


def test_pods_that_nodes_reject_again_and_again_end_the_start(desk: Desk) -> None:
    desk.cluster.rejection = {"reason": "UnexpectedAdmissionError", "message": "no healthy GPU"}

    with pytest.raises(SetupError, match=r"lost pods 6 times before all ran; .* no healthy GPU"):
        desk.start()
    assert desk.slept == [2, 4, 8, 16]
    assert desk.cluster.pods == {}


def test_pods_that_others_displace_are_made_again_after_growing_pauses(desk: Desk) -> None:
    desk.cluster.rejection = {"reason": "Preempting", "message": "for a critical pod"}

    def accept() -> None:
        if len(desk.slept) > 4:
            assert desk.cluster.pods == {}, "nothing is held during a long pause"
        if len(desk.slept) == 7:
            desk.cluster.rejection = None

    desk.on_pause = accept

    async def use() -> None:
        async with desk.nodes():
            assert len(desk.cluster.pods) == 2

    asyncio.run(use())
    assert desk.slept == [2, 4, 8, 16, 32, 64, 128]
    assert "for a critical pod); all are given back, and made again in 128 s" in desk.queued[-1]


def test_a_refused_pod_ends_the_start(desk: Desk) -> None:
    desk.cluster.refusal = 'admission webhook "policy" denied the request: no hostPath'

    with pytest.raises(SetupError, match="hostPath"):
        desk.start()


def test_a_pod_that_is_deleted_before_all_run_is_made_anew(desk: Desk) -> None:
    desk.cluster.places = 1

    def preempt() -> None:
        desk.cluster.places = None
        desk.cluster.pods.pop(desk.name(0, 1), None)
        if (other := desk.cluster.pods.get(desk.name(1, 1))) is not None:
            other["status"], other["spec"]["nodeName"] = {"phase": "Running"}, "n1"

    desk.on_poll = preempt

    async def use() -> None:
        async with desk.nodes():
            assert sorted(desk.cluster.pods) == [desk.name(0, 2), desk.name(1, 1)]

    asyncio.run(use())


def test_a_pod_is_replaced_only_once_it_is_gone_or_fenced(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            node = nodes.planned[1]
            await nodes.connect(node, token="t")
            silence_kubelets(desk, monkeypatch)
            with pytest.raises(NodeLostError, match="worker-1 may still run"):
                await nodes.connect(node, token="t")
            await nodes.connect(node, token="t", is_fenced=True)
            assert desk.name(1, 1) in desk.cluster.forced
            desk.cluster.kubelets_answer = True
            monkeypatch.setattr(task_pods, "_GONE_S", 60.0)
            await nodes.connect(node, token="t")
            assert sorted(desk.cluster.pods) == [desk.name(0, 1), desk.name(1, 3)]
            found = desk.cluster.pods[desk.name(1, 3)]
            end_of(found, 137)
            await nodes.connect(node, token="t")
            assert desk.name(1, 4) in desk.cluster.pods

    asyncio.run(use())


def test_a_kubelet_that_is_away_at_the_end_is_said_and_waited_for_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            place: Any = await nodes.connect(nodes.planned[1], token="t")
            silence_kubelets(desk, monkeypatch)
            monkeypatch.setattr(task_pods, "_QUIET_S", 0.0)
            assert not await place.end()  # as its link does when it is closed
            monkeypatch.setattr(task_pods, "_GONE_S", 60.0)
            monkeypatch.setattr(kube_nodes, "_UNUSED_S", 0.05)

    asyncio.run(use())
    name = desk.name(1, 1)
    assert [line for line in desk.told if "has not confirmed" in line] == [
        f"the cluster has not confirmed the end of the pod {name} yet; tfcluster waits"
    ]
    assert name not in desk.cluster.forced  # nobody knows whether it still runs
    assert desk.warned == [f"no kubelet has confirmed the end of the deleted pods {name}"]


def test_the_class_of_a_loss_is_in_its_explanation(desk: Desk) -> None:
    async def use() -> None:
        async with desk.nodes() as nodes:
            place: Any = await nodes.connect(nodes.planned[0], token="t")
            pod = desk.cluster.pods[place.name]
            end_of(pod, 137)
            pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
            assert await place.has_ended("")
            assert place.explanation.startswith(f"its pod {place.name} is lost (failure): ")
            assert "OOMKilled" in place.explanation or "memory" in place.explanation

    asyncio.run(use())


def test_a_missing_object_and_a_controllers_word_prove_nothing(desk: Desk) -> None:
    made = desk.given("worker-0", 1)

    async def look() -> None:
        pod = TaskPod(desk.cluster, made)  # type: ignore[arg-type]
        del desk.cluster.pods[pod.name]
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
    assert len(desk.cluster.pods) == 2


@pytest.mark.parametrize("context", [None, "the lab"])
def test_the_command_for_files_names_the_pod_and_where_it_is(
    desk: Desk, context: str | None
) -> None:
    desk.given("worker-1", 2, user="a coordinator before")
    settings = desk.pod_run.settings.model_copy(update={"context": context})
    assert desk.run.runtime is not None
    runtime = desk.run.runtime.model_copy(update={"kubernetes": settings})
    desk.run = replace(desk.run, runtime=runtime)

    async def use() -> str:
        async with desk.nodes() as nodes:
            return nodes.fetch_command("worker-1", PurePosixPath("/the re; id #"))

    where = "--context 'the lab' -n team" if context else "-n team"
    pod = desk.name(1, 3)
    wanted = f"kubectl {where} exec {pod} -- tar -C '/the re; id #' -c . | tar -x"
    assert asyncio.run(use()) == wanted


def test_labels_find_the_pods(desk: Desk) -> None:
    pod = desk.given("worker-0", 1)
    labels = run_objects.run_labels("lab-1")
    assert labels.items() <= pod["metadata"]["labels"].items()
