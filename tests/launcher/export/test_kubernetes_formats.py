"""The formats for Kubernetes are valid for its versions, and name what they leave out."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.pod_security import violations

from tfcluster.backends.kubernetes import run_pods
from tfcluster.errors import SetupError

from .conftest import SCRIPT, Exporter

VERSIONS = [f"1.{minor}" for minor in range(25, 38)]
SPEC = {"runtime": {"kubernetes": {"image": "lab/tf:1"}}, "cluster": {"worker": 2, "chief": 1}}


def documents(text: str) -> list[dict[str, Any]]:
    return [dict(one) for one in yaml.safe_load_all(text)]


@pytest.mark.parametrize("name", ["kubernetes", "indexed-job"])
def test_objects_fit_the_schema_of_every_version(exported: Exporter, name: str) -> None:
    for made in documents(exported(name, SPEC).text):
        for version in VERSIONS:
            kubernetes_validate.validate(made, version, strict=True)


def test_a_jobset_holds_valid_jobs_that_pass_restricted(exported: Exporter) -> None:
    jobset = documents(exported("jobset", SPEC).text)[-1]
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert set(jobset["spec"]) == {"network", "failurePolicy", "successPolicy", "replicatedJobs"}
    for job in jobset["spec"]["replicatedJobs"]:
        assert set(job) == {"name", "replicas", "template"}
        made = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "x"},
            **job["template"],
        }
        for version in VERSIONS:
            kubernetes_validate.validate(made, version, strict=True)
        assert violations(made["spec"]["template"]["spec"]) == []


def test_the_pods_are_those_that_up_makes(exported: Exporter) -> None:
    pods = [one for one in documents(exported("kubernetes", SPEC).text) if one["kind"] == "Pod"]
    assert [pod["spec"]["hostname"] for pod in pods] == ["chief-0", "worker-0", "worker-1"]
    assert f"{run_pods.RUN_FOLDER}/seat.pyz" in pods[0]["spec"]["containers"][0]["command"]


def test_secrets_are_needed_and_never_written(exported: Exporter) -> None:
    job = SCRIPT | {"secrets": ["WANDB"]}
    environ = {"HOME": "/root", "PATH": "/usr/bin:/bin", "WANDB": "s3cret-value"}
    made = exported("kubernetes", SPEC | {"job": job}, environ=environ)
    assert "s3cret-value" not in made.text
    assert any("env.WANDB" in need for need in made.needs)
    assert "Secret" not in [one["kind"] for one in documents(made.text)]


def test_an_indexed_job_gives_each_pod_its_own_tf_config(exported: Exporter) -> None:
    made = documents(exported("indexed-job", SPEC).text)
    job = next(one for one in made if one["metadata"]["name"] == "lab-worker")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    names = [one["name"] for one in container["env"]]
    assert names.index("TASK_INDEX") < names.index("TF_CONFIG")
    config = json.loads(env["TF_CONFIG"].replace("$(TASK_INDEX)", "1"))
    assert config["task"] == {"type": "worker", "index": 1}
    assert config["cluster"]["worker"] == ["lab-worker-0.lab:2222", "lab-worker-1.lab:2222"]
    assert env["TFCLUSTER_TASK"] == "worker:$(TASK_INDEX)"
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


def test_tasks_that_differ_are_no_indexed_job(exported: Exporter) -> None:
    job = SCRIPT | {"per_task": {"worker:1": {"args": ["--verbose"]}}}
    with pytest.raises(SetupError, match="worker:1 has settings of its own"):
        exported("indexed-job", SPEC | {"job": job})


def test_files_that_never_ran_say_so(exported: Exporter) -> None:
    for name in ("jobset", "indexed-job"):
        assert "and never run" in exported(name, SPEC).text
