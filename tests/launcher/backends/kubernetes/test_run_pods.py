"""The objects of a run are valid for every Kubernetes, and its pods pass "restricted"."""

from __future__ import annotations

import base64
import json
from typing import Any

import kubernetes_validate
import pytest
from tests.documentation import ROOT
from tests.pod_security import violations

from tfcluster.backends.kubernetes import run_objects, run_pods
from tfcluster.backends.kubernetes.run_objects import PodRun
from tfcluster.discovery import planning
from tfcluster.plans.resources import GIVEN_GPUS
from tfcluster.spec import PlanOptions

SPEC = str(ROOT / "cluster_specs/kubernetes-2n.json")
VERSIONS = [f"1.{minor}" for minor in range(25, 38)]


def run_with(*sets: str, run_id: str = "lab-1") -> PodRun:
    planned = planning.plan(SPEC, PlanOptions(tuple(f"runtime.kubernetes.{text}" for text in sets)))
    return PodRun(run_id, planned.plan, planned.spec.runtime)


RICH = (
    'volumes=[{"name":"data","mount":"/data","claim":"mnist","read_only":true,"sub_path":"a"},'
    '{"name":"shm","mount":"/dev/shm","empty_dir":{"medium":"Memory","size":"1Gi"}},'
    '{"name":"c","mount":"/c","config_map":"c"},{"name":"s","mount":"/s","secret":"s"}]',
    'env_from=[{"secret":"wandb","prefix":"X_"},{"config_map":"settings"}]',
    'resources={"requests":{"cpu":"500m"},"limits":{"nvidia.com/gpu":1,"memory":"8Gi"}}',
    'tolerations=[{"key":"gpu","operator":"Exists","effect":"NoSchedule"}]',
    'node_selector={"pool":"gpu"}',
    'affinity={"podAntiAffinity":{}}',
    'labels={"team":"vision"}',
    'annotations={"sidecar.istio.io/inject":"false"}',
    'image_pull_secrets=["registry"]',
    "priority_class=training",
    "gang=kueue",
    "queue=team",
    "run_volume=runs",
)


def objects_of(run: PodRun) -> list[dict[str, Any]]:
    template = run_pods.coordinator_template(run, secrets=["WANDB"])
    return [
        *run_objects.account_objects(),
        run_objects.secret(run, "token", {"WANDB": "x"}, own_token="own"),
        *run_objects.package_secrets(run, [{"package-000": b"a"}, {"package-001": b"b"}]),
        run_objects.service(run),
        run_objects.network_policy(run),
        run_objects.coordinator_job(run, template),
        *run_pods.stateful_sets(run),
    ]


def task_pod(run: PodRun) -> dict[str, Any]:
    """Return the template of the pods of workers."""
    (made,) = run_pods.stateful_sets(run)
    template: dict[str, Any] = made["spec"]["template"]
    return template


@pytest.mark.parametrize("sets", [(), RICH], ids=["plain", "rich"])
def test_all_objects_fit_the_schema_of_every_version(sets: tuple[str, ...]) -> None:
    for made in objects_of(run_with(*sets)):
        for version in VERSIONS:
            kubernetes_validate.validate(made, version, strict=True)


@pytest.mark.parametrize("sets", [(), RICH], ids=["plain", "rich"])
def test_pods_pass_the_pod_security_standard_restricted(sets: tuple[str, ...]) -> None:
    run = run_with(*sets)
    assert violations(task_pod(run)["spec"]) == []
    assert violations(run_pods.coordinator_template(run)["spec"]) == []


def test_the_check_of_pods_finds_what_restricted_forbids() -> None:
    pod = task_pod(run_with())["spec"]
    assert violations({**pod, "hostNetwork": True}) == ["hostNetwork"]
    assert violations({**pod, "securityContext": {}}) == [
        "task: runAsNonRoot",
        "task: seccompProfile",
    ]
    volume = {"name": "x", "hostPath": {"path": "/"}}
    assert violations({**pod, "volumes": [volume]}) == ["volume x"]


def test_a_task_type_is_a_stateful_set_whose_pods_are_made_at_once_and_later() -> None:
    run = run_with()
    (made,) = run_pods.stateful_sets(run)
    assert made["metadata"]["name"] == "lab-1-worker"
    assert made["metadata"]["annotations"]["tfcluster.dev/tasks"] == "2"
    spec = made["spec"]
    assert (spec["replicas"], spec["podManagementPolicy"]) == (0, "Parallel")
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert run.host("worker-1") == f"{run.pod('worker-1')}.lab-1" == "lab-1-worker-1.lab-1"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 60


def test_a_secret_is_never_in_a_pod() -> None:
    run = run_with()
    template = run_pods.coordinator_template(run, secrets=["WANDB"])
    volume = next(v for v in template["spec"]["volumes"] if v["name"] == "tfcluster-run")
    made = run_objects.secret(run, "token", {"WANDB": "s3cret"})
    assert volume["secret"]["secretName"] == made["metadata"]["name"]
    assert {"key": "env.WANDB", "path": "env.WANDB"} in volume["secret"]["items"]
    assert "WANDB" not in json.dumps(task_pod(run))
    assert base64.b64decode(made["data"]["env.WANDB"]) == b"s3cret"


def test_shared_memory_is_given_with_gpus_unless_the_user_mounts_it() -> None:
    gpu = 'resources={"limits":{"nvidia.com/gpu":1}}'
    mounts = [
        [m["name"] for m in pod["spec"]["containers"][0]["volumeMounts"] if "shm" in m["mountPath"]]
        for pod in (task_pod(run_with(*sets)) for sets in ((), (gpu,), RICH))
    ]
    assert mounts == [[], ["tfcluster-shm"], ["shm"]]
    command = task_pod(run_with(*RICH))["spec"]["containers"][0]["command"]
    assert command[-1] == "--empty=/dev/shm"


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("lab-1", "lab-1"),
        ("Lab_1", "lab-1-"),
        ("2n-1", "r-2n-1-"),
        ("a" * 70, "a" * 31 + "-"),
    ],
)
def test_object_names_are_dns_labels_with_room_for_a_task(run_id: str, name: str) -> None:
    found = run_objects.object_name(run_id)
    assert found.startswith(name)
    assert len(found) <= 40
    assert run_objects.object_name(run_id + "x") != found


@pytest.mark.parametrize(
    ("gang", "key"),
    [
        (("gang=volcano",), "scheduling.k8s.io/group-name"),
        (("gang=coscheduling",), "scheduling.x-k8s.io/pod-group"),
    ],
)
def test_a_gang_scheduler_knows_the_pods_of_a_run(gang: tuple[str, ...], key: str) -> None:
    run = run_with(*gang)
    metadata = task_pod(run)["metadata"]
    assert {**metadata["labels"], **metadata["annotations"]}[key] == "lab-1"
    group = run_objects.pod_group(run)
    assert group is not None
    assert group["spec"]["minMember"] == 2


def test_kueue_admits_a_stateful_set() -> None:
    run = run_with("gang=kueue", "queue=team")
    (made,) = run_pods.stateful_sets(run)
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert run_objects.pod_group(run) is None


def test_the_pod_template_is_merged_last_by_name() -> None:
    template = (
        'pod_template={"spec":{"runtimeClassName":"nvidia","containers":['
        '{"name":"task","env":[{"name":"HOME","value":"/h"}]},{"name":"log","image":"l"}]}}'
    )
    run = run_with(template)
    task = task_pod(run)["spec"]
    assert task["runtimeClassName"] == "nvidia"
    assert [one["name"] for one in task["containers"]] == ["task", "log"]
    assert task["containers"][0]["env"][0] == {"name": "HOME", "value": "/h"}
    coordinator = run_pods.coordinator_template(run)["spec"]
    assert [one["name"] for one in coordinator["containers"]] == ["coordinator", "log"]


ROOT_POD = {"securityContext": {"runAsUser": 0}}
ROOT_TASK = {"containers": [{"name": "task", **ROOT_POD}]}
STRICT = {"securityContext": {"runAsUser": 0, "runAsNonRoot": True}}


@pytest.mark.parametrize(
    ("sets", "spec", "pod", "task"),
    [
        ([], {}, True, None),
        (["runtime.user=0"], {}, False, None),
        ([], ROOT_POD, False, None),
        ([], STRICT, True, None),
        ([], ROOT_TASK, True, False),
        (["runtime.user=0"], {"securityContext": {"runAsUser": 7}}, True, None),
    ],
)
def test_run_as_non_root_follows_the_user(
    sets: list[str], spec: dict[str, Any], pod: bool, task: bool | None
) -> None:
    template = f"runtime.kubernetes.pod_template={json.dumps({'spec': spec})}"
    planned = planning.plan(SPEC, PlanOptions((*sets, template)))
    run = PodRun("lab-1", planned.plan, planned.spec.runtime)
    made = task_pod(run)["spec"]
    assert made["securityContext"]["runAsNonRoot"] is pod
    assert made["containers"][0]["securityContext"].get("runAsNonRoot") is task
    coordinator = run_pods.coordinator_template(run)["spec"]
    assert coordinator["securityContext"]["runAsNonRoot"] is pod


def test_a_role_has_what_its_entry_says_and_else_what_all_have() -> None:
    own = {"image": "cpu:1", "resources": {"requests": {"cpu": "2"}}, "node_selector": {"a": "b"}}
    sets = (
        'cluster={"chief":1,"worker":2,"ps":1,"data_worker":1,"data_dispatcher":1}',
        "checkpoints.dir=gs://bucket/a",
        f"runtime.roles={json.dumps({'ps': {'kubernetes': own}})}",
        *(f"runtime.kubernetes.{text}" for text in RICH),
    )
    planned = planning.plan(SPEC, PlanOptions(sets))
    run = PodRun("lab-1", planned.plan, planned.spec.runtime)
    found = {}
    for made in run_pods.stateful_sets(run):
        spec = made["spec"]["template"]["spec"]
        (task,) = spec["containers"]
        found[made["metadata"]["name"]] = (
            task["image"],
            task["resources"].get("limits", {}).get("nvidia.com/gpu"),
            spec["nodeSelector"],
            [each["key"] for each in spec["tolerations"]],
        )
    image = planned.plan.images[0]
    alike = (image, "1", {"pool": "gpu"}, ["gpu"])
    assert found == {
        "lab-1-chief": alike,
        "lab-1-worker": alike,
        "lab-1-ps": ("cpu:1", None, {"a": "b"}, ["gpu"]),
        "lab-1-data-worker": (image, None, *alike[2:]),
        "lab-1-data-dispatcher": (image, None, *alike[2:]),
    }
    told = {task.id.job: [v.name for v in task.command.env] for task in planned.plan.tasks}
    assert [job for job in told if GIVEN_GPUS in told[job]] == ["chief", "worker"]
    shown = 'image cpu:1, resources {"requests": {"cpu": "2"}}, node_selector {"a": "b"}'
    assert planned.plan.roles == {"ps": shown}


def test_the_coordinator_has_the_image_of_the_run_and_not_that_of_a_role() -> None:
    roles = {"worker": {"kubernetes": {"image": "role:1"}}}
    sets = ("runtime.image=main:1", f"runtime.roles={json.dumps(roles)}")
    planned = planning.plan(SPEC, PlanOptions((*sets, "runtime.kubernetes.image=null")))
    assert planned.plan.images == ("role:1",)
    template = run_pods.coordinator_template(PodRun("lab-1", planned.plan, planned.spec.runtime))
    (coordinator,) = template["spec"]["containers"]
    assert coordinator["image"] == "main:1"
