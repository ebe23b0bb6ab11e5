"""One pod at a time leads a run: it takes the lead before it starts, and may lose it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from tfcluster.backends.kubernetes.kube_client import KubeError
from tfcluster.backends.kubernetes.leadership import LEADER, Leadership

Object = dict[str, Any]


class Ended(Exception):
    """The end of a coordinator's process."""


class FakeCluster:
    """A Job, and the coordinator's pods that were made for it."""

    def __init__(self) -> None:
        self.version = 1
        self.job: Object = {"metadata": {"annotations": {}}}
        self.pods: dict[str, Object] = {}
        self.before_patch: Callable[[], None] = lambda: None

    def find(self, path: str) -> Object | None:
        if not path.startswith("pods/"):
            return {"metadata": self.job["metadata"] | {"resourceVersion": str(self.version)}}
        return self.pods.get(path.removeprefix("pods/"))

    def get(self, path: str) -> Object:
        found = self.find(path)
        assert found is not None, path
        return found

    def patch(self, path: str, body: Object) -> None:
        self.before_patch()
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise KubeError("the object has been modified", status=409)
        self.version += 1
        self.job["metadata"]["annotations"] |= body["metadata"]["annotations"]

    def add_pod(self, name: str) -> Object:
        self.pods[name] = {"metadata": {"name": name}, "status": {"phase": "Running"}}
        return self.pods[name]

    @property
    def leader(self) -> str | None:
        found: str | None = self.job["metadata"]["annotations"].get(LEADER)
        return found


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.add_pod("a")
    made.add_pod("b")
    return made


def lead(cluster: FakeCluster, pod: str, sleep: Callable[[float], None] = print) -> Leadership:
    def lose(why: str) -> NoReturn:
        raise Ended(why)

    return Leadership(cluster, "lab-1", pod, lose, sleep)  # type: ignore[arg-type]


def test_the_successor_of_a_pod_that_is_being_deleted_takes_the_lead(cluster: FakeCluster) -> None:
    old, new = lead(cluster, "a"), lead(cluster, "b")
    old.take()
    old.require()
    cluster.pods["a"]["metadata"]["deletionTimestamp"] = "now"
    new.take()
    new.require()
    with pytest.raises(Ended, match="the pod b leads the run now; the coordinator in a ends"):
        old.require()


def test_no_coordinator_starts_in_a_pod_that_is_being_deleted(cluster: FakeCluster) -> None:
    cluster.pods["a"]["metadata"]["deletionTimestamp"] = "now"
    with pytest.raises(Ended, match="the pod a is being deleted"):
        lead(cluster, "a").take()
    del cluster.pods["a"]
    with pytest.raises(Ended):
        lead(cluster, "a").require_lasting_pod()
    assert cluster.leader is None


def test_the_lead_of_a_living_pod_is_waited_for(cluster: FakeCluster) -> None:
    lead(cluster, "a").take()
    waited = list[float]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            cluster.pods["a"]["status"]["phase"] = "Failed"

    lead(cluster, "b", sleep).take()
    assert (cluster.leader, len(waited)) == ("b", 3)


def test_a_container_that_starts_again_keeps_the_lead_of_its_pod(cluster: FakeCluster) -> None:
    lead(cluster, "a").take()
    version = cluster.version
    lead(cluster, "a").take()
    assert (cluster.leader, cluster.version) == ("a", version)


def test_of_two_pods_that_take_the_lead_at_once_one_leads(cluster: FakeCluster) -> None:
    def come_first() -> None:
        cluster.before_patch = lambda: None
        lead(cluster, "b").take()

    def end_soon(seconds: float) -> None:
        cluster.pods["a"]["metadata"]["deletionTimestamp"] = "now"

    cluster.before_patch = come_first
    with pytest.raises(Ended):
        lead(cluster, "a", end_soon).take()
    assert cluster.leader == "b"
