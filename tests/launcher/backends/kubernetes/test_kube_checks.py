"""A run that a cluster could not start is refused or warned about, from what its API lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from tests.documentation import ROOT
from tests.launcher.backends.kubernetes.fake_api import FakeApi, Object

from tfcluster.backends.jobs import Obstacle, Submission
from tfcluster.backends.kubernetes import kube_checks
from tfcluster.backends.kubernetes.kube_checks import Survey
from tfcluster.backends.kubernetes.kube_client import KubeCluster, KubeError
from tfcluster.discovery import planning
from tfcluster.spec import PlanOptions
from tfcluster.spec.kubernetes import Kubernetes

SPEC = str(ROOT / "cluster_specs/kubernetes-2n.json")


class Reviewer(FakeApi):
    """An API server that also says which rights somebody has."""

    def __init__(self, objects: Mapping[str, Any], *, forbidden: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.objects = {"/api/v1/namespaces/vision": {}, **objects}
        self.refuses = {part: KubeError("no", status=403) for part in forbidden}

    def create(self, path: str, body: Object) -> Object:
        self.asked.append(path)
        asked = body["spec"]["resourceAttributes"]
        right = f"{asked['verb']} {asked['resource']}"
        return {"status": {"allowed": right not in self.objects.get("refused", ())}}


def survey(
    objects: Mapping[str, Any], *, tasks: int = 2, forbidden: tuple[str, ...] = (), **spec: Any
) -> Survey:
    fake = cast("KubeCluster", Reviewer(objects, forbidden=forbidden))
    return Survey(fake, Kubernetes.model_validate(spec), tasks=tasks)


def test_each_missing_object_is_named_with_the_field_that_names_it() -> None:
    spec: Object = {
        "env_from": [{"secret": "keys"}],
        "volumes": [{"name": "d", "mount": "/d", "claim": "data"}],
        "priority_class": "high",
        "service_account": "trainer",
        "coordinator": {"service_account": "leader"},
    }
    found = list(survey({}, **spec).check_objects())
    assert [(one.is_fatal, one.check) for one in found] == [(True, "objects")] * 5
    accounts = {"service_account", "coordinator.service_account"}
    assert {_between(one) for one in found} == {"env_from", "volumes", "priority_class", *accounts}


def test_a_namespace_that_does_not_exist_is_the_only_obstacle_of_its_objects() -> None:
    objects = {"/api/v1/namespaces/vision": None}
    (found,) = survey(objects, service_account="nobody").check_objects()
    assert found.is_fatal
    assert "no namespace vision" in found.what


def _between(obstacle: Obstacle) -> str:
    return obstacle.what.partition("(")[2].rstrip(")")


def test_a_claim_for_one_node_is_a_warning_for_two_tasks() -> None:
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    objects = {"persistentvolumeclaims/data": claim}
    volumes = [{"name": "d", "mount": "/d", "claim": "data"}]
    (found,) = survey(objects, volumes=volumes).check_objects()
    assert not found.is_fatal
    assert "ReadWriteOnce" in found.what
    assert list(survey(objects, tasks=1, volumes=volumes).check_objects()) == []


def test_what_may_not_be_read_is_said_and_stops_nothing() -> None:
    asked = survey({}, forbidden=("priorityclasses",), priority_class="high")
    assert list(asked.check_objects()) == []
    assert asked.unread == {"priorityclasses"}


def test_each_missing_right_is_named() -> None:
    objects = {"refused": ["delete pods"], "serviceaccounts/tfcluster": {"metadata": {}}}
    user, account = survey(objects).check_rights()
    assert "this user may not delete pods" in user.what
    assert "ServiceAccount tfcluster may not delete pods" in account.what


def test_an_account_of_another_name_is_not_one_that_up_would_make() -> None:
    objects = {"refused": ["create roles"]}
    (found,) = survey(objects).check_rights()
    assert "no ServiceAccount tfcluster" in found.what
    assert list(survey(objects, coordinator={"service_account": "leader"}).check_rights()) == []


@pytest.mark.parametrize(
    ("spec", "is_said"),
    [
        ({}, False),
        ({"gang": "kueue", "queue": "team"}, False),
        ({"gang": "volcano"}, True),
        ({"gang": "coscheduling"}, True),
    ],
)
def test_a_gang_with_a_pod_group_needs_the_right_to_make_it(spec: Object, is_said: bool) -> None:
    objects = {"refused": ["create podgroups"], "serviceaccounts/tfcluster": {"metadata": {}}}
    found = [one.what for one in survey(objects, **spec).check_rights()]
    assert ["may not create podgroups" in what for what in found] == [True] * is_said


KUEUE = {"gang": "kueue", "queue": "team"}
VOLCANO = {"gang": "volcano", "queue": "team"}
LOCAL_QUEUE = "/apis/kueue.x-k8s.io/v1beta1/namespaces/vision/localqueues/team"
QUEUE = "/apis/scheduling.volcano.sh/v1beta1/queues/team"


@pytest.mark.parametrize(
    ("spec", "version", "queue", "said"),
    [
        ({"gang": "volcano"}, None, "", "Volcano is not installed"),
        ({"gang": "volcano"}, "scheduling.volcano.sh/v1beta1", "", None),
        (VOLCANO, "scheduling.volcano.sh/v1beta1", "", "no Queue team in the cluster"),
        (VOLCANO, "scheduling.volcano.sh/v1beta1", QUEUE, None),
        (KUEUE, None, "", "Kueue is not installed"),
        (KUEUE, "kueue.x-k8s.io/v1beta1", "", "no LocalQueue team in vision"),
        (KUEUE, "kueue.x-k8s.io/v1beta1", LOCAL_QUEUE, None),
    ],
)
def test_the_gang_scheduler_and_its_queue_must_exist(
    spec: Object, version: str | None, queue: str, said: str | None
) -> None:
    objects: Object = {queue: {"metadata": {"name": "team"}}}
    if version is not None:
        objects[f"/apis/{version.partition('/')[0]}"] = {
            "preferredVersion": {"groupVersion": version}
        }
    found = list(survey(objects, **spec).check_gang())
    assert [one.is_fatal for one in found] == [True] * (said is not None)
    assert said is None or said in found[0].what


@pytest.mark.parametrize(
    ("sets", "asked", "said"),
    [
        ([], [], []),
        (["gang=kueue", "queue=team"], ["/apis/kueue.x-k8s.io"], ["gang"]),
        (["coordinator.service_account=leader"], ["serviceaccounts/leader"], ["objects"]),
    ],
)
def test_up_asks_for_the_gang_and_the_account_only_where_the_spec_names_them(
    sets: list[str],
    asked: list[str],
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Reviewer({"/version": {"gitVersion": "v1.30.1"}})
    monkeypatch.setattr(kube_checks, "reach", lambda settings, *, patience_s: fake)
    planned = planning.plan(SPEC, PlanOptions(tuple(f"runtime.kubernetes.{text}" for text in sets)))
    job = Submission("lab-1", tmp_path, (), planned.spec.runtime, nodes=2, tasks_per_node=1)
    found = kube_checks.check(job, thorough=False)
    assert [one.check for one in found.obstacles] == said
    always = ["/version", "/api/v1/namespaces/vision"]
    review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert sorted(fake.asked) == sorted([*always, *asked, review, review])
