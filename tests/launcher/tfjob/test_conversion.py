"""TFJobs become specs that load, and every field is mapped or listed."""

import json
from typing import Any

import pytest
import yaml

from tfcluster.errors import UsageError
from tfcluster.spec.job import UNKNOWN_PROGRAM
from tfcluster.spec.model import ClusterSpec
from tfcluster.tfjob.conversion import convert

Json = dict[str, Any]


def replica(
    count: int = 2, policy: str = "Never", pod: Json | None = None, **container: Any
) -> Json:
    """Return a replica spec whose container has the given fields."""
    main = {"name": "tensorflow", "image": "tf:1", "command": ["python", "/train.py"], **container}
    spec = {"containers": [main], **(pod or {})}
    return {"replicas": count, "restartPolicy": policy, "template": {"spec": spec}}


def tfjob(types: Json, **spec: Any) -> Json:
    """Return a TFJob with these replica types."""
    fields = {"tfReplicaSpecs": types, **spec}
    meta = {"name": "mnist", "namespace": "vision"}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": meta, "spec": fields}


def imported(manifest: Json) -> tuple[Json, dict[str, str]]:
    """Return the spec, checked by the loader's model, and kind and message of notes by place."""
    spec, notes = convert(yaml.safe_dump(manifest), "tfjob.yaml")
    ClusterSpec.model_validate_json(json.dumps(spec))
    return spec, {note.place: f"{note.kind}: {note.message}" for note in notes}


def bomb(first: str, level: str) -> str:
    """Return a few hundred bytes of YAML that hold hundreds of millions of values."""
    lines = [f"l0: &l0 {first}"]
    for number in range(1, 9):
        lines.append(f"l{number}: &l{number} " + level.format(", ".join([f"*l{number - 1}"] * 9)))
    return "\n".join(lines)


WORKER = "spec.tfReplicaSpecs.Worker"
POD = f"{WORKER}.template.spec"


def test_types_become_the_cluster() -> None:
    types = {"Master": replica(1), "worker": replica(3), "PS": replica(2), "Evaluator": replica(1)}
    spec, notes = imported(tfjob(types))
    assert spec["cluster"] == {"chief": 1, "worker": 3, "ps": 2, "evaluator": 1}
    assert spec["runtime"]["kubernetes"]["namespace"] == "vision"
    assert "kind" not in spec["job"]
    assert "chief" in notes["spec.tfReplicaSpecs.Master"]
    assert "workers" in notes["spec.tfReplicaSpecs.PS"]
    assert "does not list it" in notes["spec.tfReplicaSpecs.Evaluator"]
    assert "succeeds with the Chief" in notes["spec.successPolicy"]


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"PS": 1}, "spec.tfReplicaSpecs has no Worker: PS alone"),
        ({"Chief": 1, "PS": 1}, "spec.tfReplicaSpecs: a Chief and PS without a Worker"),
        ({"Evaluator": 1}, "has no Worker: an Evaluator alone"),
        ({"Worker": 0}, "there are no replicas"),
        ({"Chief": 2, "Worker": 1}, r"spec.tfReplicaSpecs.Chief.replicas is 2"),
        ({"Worker": 2, "Evaluator": 3}, r"spec.tfReplicaSpecs.Evaluator.replicas is 3"),
        ({"Chief": 1, "Master": 1}, "Chief and spec.tfReplicaSpecs.Master are one type"),
        ({"Learner": 1}, "spec.tfReplicaSpecs.Learner: .* is not a replica type"),
    ],
)
def test_a_cluster_that_no_spec_can_have_is_refused(types: dict[str, int], message: str) -> None:
    manifest = tfjob({name: replica(count) for name, count in types.items()})
    with pytest.raises(UsageError, match=message):
        convert(yaml.safe_dump(manifest), "tfjob.yaml")


@pytest.mark.parametrize("name", ["Worker", "Chief"])
def test_one_task_alone_gets_no_tf_config_as_in_tfjob(name: str) -> None:
    spec, notes = imported(tfjob({name: replica(1)}))
    assert spec["job"]["kind"] == "plain"
    assert "TF_CONFIG" in notes[f"spec.tfReplicaSpecs.{name}"]
    assert "spec.successPolicy" not in notes


@pytest.mark.parametrize(("policy", "said"), [("", "with worker 0"), ("AllWorkers", "all workers")])
def test_the_success_of_workers_is_explained(policy: str, said: str) -> None:
    _, notes = imported(tfjob({"Worker": replica(2)}, successPolicy=policy))
    assert said in notes["spec.successPolicy"]


def test_programs_and_variables_that_differ_are_said_per_task() -> None:
    env = [{"name": "DIR", "value": "/data"}, {"name": "LOG", "value": "$(DIR)/log"}]
    worker = replica(env=env, args=["--dir=$(LOG)", "$$(DIR)"])
    server = replica(1, env=[*env[:1], {"name": "ROLE", "value": "ps"}])
    spec, _ = imported(tfjob({"Worker": worker, "PS": server}))
    assert spec["job"]["env"] == {"DIR": "/data"}
    assert spec["job"]["command"] == ["env", "LOG=/data/log", "python", "/train.py"]
    assert spec["job"]["args"] == ["--dir=/data/log", "$(DIR)"]
    assert spec["job"]["per_task"]["ps"]["command"] == ["env", "ROLE=ps", "python", "/train.py"]


def test_an_image_with_its_own_program_asks_for_it() -> None:
    spec, notes = imported(tfjob({"Worker": replica(command=None)}))
    assert spec["job"]["command"] == [UNKNOWN_PROGRAM]
    assert notes[f"{POD}.containers[0].command"].startswith("needed")
    assert next(iter(notes)) == f"{POD}.containers[0].command"


def test_working_dir_is_where_the_command_starts() -> None:
    spec, _ = imported(tfjob({"Worker": replica(workingDir="/opt/code")}))
    assert spec["job"]["command"][:4] == ["sh", "-c", 'cd "$0" && exec "$@"', "/opt/code"]


def test_volumes_keep_their_sources() -> None:
    volumes: list[Json] = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "mnist"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"name": "disk", "hostPath": {"path": "/mnt"}},
    ]
    mounts: list[Json] = [
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "data", "mountPath": "/out", "subPath": "out"},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "disk", "mountPath": "/disk"},
    ]
    spec, notes = imported(
        tfjob({"Worker": replica(pod={"volumes": volumes}, volumeMounts=mounts)})
    )
    pods = spec["runtime"]["kubernetes"]
    assert pods["volumes"] == [
        {"name": "data", "mount": "/data", "claim": "mnist", "read_only": True},
        {"name": "data-2", "mount": "/out", "claim": "mnist", "sub_path": "out"},
        {"name": "shm", "mount": "/dev/shm", "empty_dir": {"medium": "Memory", "size": "1Gi"}},
    ]
    template = pods["pod_template"]["spec"]
    assert template["volumes"] == [volumes[2]]
    assert template["containers"] == [{"name": "task", "volumeMounts": [mounts[3]]}]
    assert "hostPath" in notes[f"{POD}.volumes[2]"]


@pytest.mark.parametrize(
    ("pod", "container", "user", "said"),
    [
        ({}, {}, None, "changed: no runAsUser: the pods run as 1000:1000"),
        ({"runAsGroup": 7}, {}, None, "changed: no runAsUser"),
        ({"runAsUser": 0}, {}, "0", None),
        (
            {"runAsUser": 1000660000},
            {},
            "1000660000",
            "changed: no runAsGroup: the group is 1000660000",
        ),
        ({"runAsUser": 5, "runAsGroup": 6}, {}, "5:6", None),
        ({"runAsUser": 5, "runAsGroup": 6}, {"runAsUser": 0}, "0:6", None),
    ],
)
def test_the_user_of_the_pods(
    pod: Json, container: Json, user: str | None, said: str | None
) -> None:
    worker = replica(pod={"securityContext": pod}, securityContext=container)
    spec, notes = imported(tfjob({"Worker": worker}))
    assert spec["runtime"].get("user") == user
    assert notes.get(f"{POD}.securityContext", "").startswith(said or "")
    assert (f"{POD}.securityContext" in notes) is (said is not None)


def test_other_fields_of_a_security_context_stay_with_pod_and_container() -> None:
    pod = {"securityContext": {"runAsUser": 0, "fsGroup": 9}}
    worker = replica(pod=pod, securityContext={"privileged": True})
    spec, notes = imported(tfjob({"Worker": worker, "PS": replica(1)}))
    template = spec["runtime"]["kubernetes"]["pod_template"]["spec"]
    assert template["securityContext"] == {"fsGroup": 9}
    assert template["containers"] == [{"name": "task", "securityContext": {"privileged": True}}]
    assert "written into pod_template" in notes[f"{POD}.securityContext"]


def test_types_with_other_images_resources_and_nodes_are_roles() -> None:
    gpu = {"limits": {"nvidia.com/gpu": 1}}
    worker = replica(pod={"nodeSelector": {"pool": "gpu"}}, resources=gpu)
    spec, notes = imported(tfjob({"Worker": worker, "PS": replica(1, image="tf:cpu")}))
    assert spec["runtime"]["kubernetes"]["node_selector"] == {"pool": "gpu"}
    own = {"image": "tf:cpu", "resources": {}, "node_selector": {}}
    assert spec["runtime"]["roles"] == {"ps": {"kubernetes": own}}
    assert "spec.tfReplicaSpecs.PS.template" not in notes


def test_types_with_another_user_are_listed() -> None:
    worker = replica(pod={"securityContext": {"runAsUser": 0}})
    _, notes = imported(tfjob({"Worker": worker, "PS": replica(1)}))
    place = "spec.tfReplicaSpecs.PS.template"
    assert notes[place] == "missing: the user of its pods is that of Worker"


@pytest.mark.parametrize(
    ("policy", "limit", "expected"),
    [
        ("Never", None, {"max_restarts": 0}),
        ("OnFailure", 7, {"max_restarts": 7, "restart_on_error": True}),
        ("Always", None, {"restart_on_error": True}),
        ("ExitCode", 2, {"max_restarts": 2, "restart_on_error": False}),
    ],
)
def test_restart_policies(policy: str, limit: int | None, expected: Json) -> None:
    run = {"backoffLimit": limit, "cleanPodPolicy": "All"}
    spec, notes = imported(tfjob({"Worker": replica(policy=policy)}, runPolicy=run))
    assert spec["supervision"] == expected
    assert notes[f"{WORKER}.restartPolicy"].startswith("changed")
    assert ("spec.runPolicy.backoffLimit" in notes) is (policy != "Never")


def test_limits_and_scheduling_of_the_run() -> None:
    scheduling = {"minAvailable": 1, "queue": "gpu", "scheduleTimeoutSeconds": 90}
    run = {"activeDeadlineSeconds": 600, "ttlSecondsAfterFinished": 5, "suspend": True,
           "schedulingPolicy": scheduling}  # fmt: skip
    pod = {"schedulerName": "volcano", "terminationGracePeriodSeconds": 45}
    spec, notes = imported(tfjob({"Worker": replica(pod=pod)}, runPolicy=run))
    limits = spec["supervision"]
    assert (limits["run_deadline_s"], limits["start_deadline_s"], limits["grace_s"]) == (
        600,
        90,
        45,
    )
    assert spec["runtime"]["kubernetes"]["gang"] == "volcano"
    assert spec["runtime"]["kubernetes"]["queue"] == "gpu"
    for place in ("suspend", "ttlSecondsAfterFinished", "schedulingPolicy.minAvailable"):
        assert f"spec.runPolicy.{place}" in notes


def test_what_has_no_counterpart_is_listed_with_its_place() -> None:
    worker = replica(tty=True)
    worker["template"]["spec"]["containers"].append({"name": "sidecar", "image": "x"})
    worker["surprise"] = 1
    server = replica(1, resources={"limits": {"cpu": "1"}})
    spec, notes = imported(tfjob({"Worker": worker, "PS": server}, enableDynamicWorker=True))
    assert notes[f"{POD}.containers[1]"].startswith("missing")
    assert notes[f"{WORKER}.surprise"].startswith("missing")
    assert notes["spec.enableDynamicWorker"].startswith("missing")
    assert notes["spec.tfReplicaSpecs.PS.template"].startswith("missing: ")
    assert spec["runtime"]["kubernetes"]["pod_template"]["spec"]["containers"][0]["tty"] is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML"),
        ("", "is not the manifest"),
        ("just words", "is not the manifest"),
        ("{kind: PyTorchJob, apiVersion: kubeflow.org/v1}", "PyTorchJob.*not a TFJob"),
        ("{kind: TFJob, apiVersion: kubeflow.org/v1alpha1}", "cannot be read"),
        ("kind: TFJob\n---\nkind: Service", "has 2 documents: TFJob, Service"),
        ("{kind: TFJob, apiVersion: kubeflow.org/v1, spec: {}}", "there are no replicas"),
        ("{kind: TFJob, apiVersion: kubeflow.org/v1, spec: 3}", "spec is 3, not an object"),
        (
            "kind: TFJob\nkind: Job",
            r"job.yaml:2:1: not valid YAML: the key 'kind' is written twice",
        ),
        (bomb("[x]", "[{}]"), "more than 100,000 values"),
        (bomb("{x: 1}", "{{<<: [{}]}}"), "more than 100,000 values"),
    ],
)
def test_anything_but_one_tfjob_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert(text, "job.yaml")


def test_merged_keys_may_be_overridden_in_several_places() -> None:
    manifest = yaml.safe_dump(tfjob({"Worker": replica()}))
    shared = "x-a: &a {one: 1}\nx-b: &b {<<: *a, one: 2}\nx-c: {<<: *b, one: 3}\nx-d: {<<: *b}\n"
    spec, _ = convert(shared + manifest, "tfjob.yaml")
    assert spec["cluster"] == {"worker": 2}


def test_a_container_of_another_name_is_taken_and_reported() -> None:
    _, notes = convert(yaml.safe_dump(tfjob({"Worker": replica(name="main")})), "tfjob.yaml")
    assert any("none is called tensorflow" in note.message for note in notes)


def test_fields_of_v1beta1_are_read_where_it_has_them() -> None:
    manifest = tfjob({"Worker": replica(policy="OnFailure")}, backoffLimit=4, cleanPodPolicy="All")
    spec, _ = imported(manifest | {"apiVersion": "kubeflow.org/v1beta1"})
    assert spec["supervision"]["max_restarts"] == 4
