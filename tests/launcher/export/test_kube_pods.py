"""The format for Kubernetes is valid for its versions, and names what it leaves out."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import yaml

from tfcluster.backends.kubernetes import run_pods

from .conftest import SCRIPT, Exporter

VERSIONS = [f"1.{minor}" for minor in range(25, 38)]
SPEC = {"runtime": {"kubernetes": {"image": "lab/tf:1"}}, "cluster": {"worker": 2, "chief": 1}}


def documents(text: str) -> list[dict[str, Any]]:
    return [dict(one) for one in yaml.safe_load_all(text)]


def test_objects_fit_the_schema_of_every_version(exported: Exporter) -> None:
    for made in documents(exported("kubernetes", SPEC).text):
        for version in VERSIONS:
            kubernetes_validate.validate(made, version, strict=True)


def test_the_pods_are_those_that_up_makes(exported: Exporter) -> None:
    found = documents(exported("kubernetes", SPEC).text)
    sets = [one for one in found if one["kind"] == "StatefulSet"]
    roles = {each["metadata"]["name"].rpartition("-")[2]: each["spec"]["replicas"] for each in sets}
    assert roles == {"chief": 1, "worker": 2}
    pod = sets[0]["spec"]["template"]["spec"]
    assert f"{run_pods.RUN_FOLDER}/exec_server.py" in pod["containers"][0]["command"]


def test_secrets_are_needed_and_never_written(exported: Exporter) -> None:
    job = SCRIPT | {"secrets": ["WANDB"]}
    environ = {"HOME": "/root", "PATH": "/usr/bin:/bin", "WANDB": "s3cret-value"}
    made = exported("kubernetes", SPEC | {"job": job}, environ=environ)
    assert "s3cret-value" not in made.text
    assert any("env.WANDB" in need for need in made.needs)
    assert "Secret" not in [one["kind"] for one in documents(made.text)]
