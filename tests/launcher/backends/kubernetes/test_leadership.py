"""One pod at a time leads a run: it takes the lead before it starts, and may lose it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest
from tests.launcher.backends.kubernetes.fake_api import FakeApi

from tfcluster.backends.kubernetes.leadership import LEADER, Leadership


class Ended(Exception):
    """The end of a coordinator's process."""


JOB = "batch/jobs/lab-1"


def leader_of(cluster: FakeApi) -> str | None:
    found: str | None = cluster.objects[JOB]["metadata"]["annotations"].get(LEADER)
    return found


@pytest.fixture
def cluster() -> FakeApi:
    made = FakeApi()
    made.add(JOB)
    for pod in ("a", "b"):
        made.add(f"pods/{pod}")["status"] = {"phase": "Running"}
    return made


def lead(cluster: FakeApi, pod: str, sleep: Callable[[float], None] = print) -> Leadership:
    def lose(why: str) -> NoReturn:
        raise Ended(why)

    return Leadership(cluster, "lab-1", pod, lose, sleep)  # type: ignore[arg-type]


def test_the_successor_of_a_pod_that_is_being_deleted_takes_the_lead(cluster: FakeApi) -> None:
    old, new = lead(cluster, "a"), lead(cluster, "b")
    old.take()
    old.require()
    cluster.objects["pods/a"]["metadata"]["deletionTimestamp"] = "now"
    new.take()
    new.require()
    with pytest.raises(Ended, match="the pod b leads the run now; the coordinator in a ends"):
        old.require()


def test_no_coordinator_starts_in_a_pod_that_is_being_deleted(cluster: FakeApi) -> None:
    cluster.objects["pods/a"]["metadata"]["deletionTimestamp"] = "now"
    with pytest.raises(Ended, match="the pod a is being deleted"):
        lead(cluster, "a").take()
    del cluster.objects["pods/a"]
    with pytest.raises(Ended):
        lead(cluster, "a").require_lasting_pod()
    assert leader_of(cluster) is None


def test_the_lead_of_a_living_pod_is_waited_for(cluster: FakeApi) -> None:
    lead(cluster, "a").take()
    waited = list[float]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            cluster.objects["pods/a"]["status"]["phase"] = "Failed"

    lead(cluster, "b", sleep).take()
    assert (leader_of(cluster), len(waited)) == ("b", 3)


def test_a_container_that_starts_again_keeps_the_lead_of_its_pod(cluster: FakeApi) -> None:
    lead(cluster, "a").take()
    lead(cluster, "a").take()
    assert (leader_of(cluster), len(cluster.patched)) == ("a", 1)


def test_of_two_pods_that_take_the_lead_at_once_one_leads(cluster: FakeApi) -> None:
    def come_first() -> None:
        cluster.before_patch = lambda: None
        lead(cluster, "b").take()

    def end_soon(seconds: float) -> None:
        cluster.objects["pods/a"]["metadata"]["deletionTimestamp"] = "now"

    cluster.before_patch = come_first
    with pytest.raises(Ended):
        lead(cluster, "a", end_soon).take()
    assert leader_of(cluster) == "b"
