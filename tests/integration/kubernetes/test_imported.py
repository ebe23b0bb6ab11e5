"""Manifests of TFJobs become runs that end well in a real cluster.

They have the features of public ones (docs/guides/tfjob.md), whose images no test has: scripts of
ours beside the spec stand in for their programs, and this machine's Python for their images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from .desk import Desk

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow]

Json = dict[str, Any]
HANG_S = 300

SUMMARIES = """
import os, sys
import tensorflow as tf

assert "TF_CONFIG" not in os.environ, os.environ["TF_CONFIG"]
folder, steps = (word.partition("=")[2] for word in sys.argv[1:])
with tf.summary.create_file_writer(folder).as_default():
    for step in range(int(steps)):
        tf.summary.scalar("loss", 1 / (step + 1), step=step)
"""
"""Stands in for mnist_with_summaries.py of kubeflow/training-operator."""

BETWEEN_GRAPHS = """
import json, os, sys
import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
print(json.dumps(config), flush=True)
job, index = config["task"]["type"], config["task"]["index"]
assert sys.argv[1:] == ["--role=" + job, "--data=/data/mnist"], sys.argv
server = tf.distribute.Server(config["cluster"], job_name=job, task_index=index)
if job == "ps":
    server.join()
v1 = tf.compat.v1
workers = len(config["cluster"]["worker"])
with tf.Graph().as_default():
    with tf.device("/job:ps/task:0"):
        done = v1.get_variable("done", (), initializer=v1.zeros_initializer(), use_resource=True)
    finish, total = done.assign_add(1.0).op, done.read_value()
    filters = ["/job:ps", f"/job:{job}/task:{index}"]
    own = v1.ConfigProto(device_filters=filters, operation_timeout_in_ms=120_000)
    with v1.train.MonitoredTrainingSession(
        server.target, is_chief=job == "chief", config=own
    ) as session:
        if job == "worker":
            session.run(finish)
        while job == "chief" and session.run(total) < workers:
            pass
"""
"""Stands in for a program with parameter servers, as TFJobs for TensorFlow 1 start it: a variable
on the server counts the workers that trained, and the chief waits for all of them. It does not
count itself: its session begins anew, with the variable at zero, when a call to the server fails
for a moment. A call that is never answered ends with an error."""


def container(script: str, *args: str, **more: Any) -> Json:
    """Return a container of the name that TFJob asks for."""
    command = ["python", script]
    return {"name": "tensorflow", "image": "no.such/image:1", "command": command, **more} | (
        {"args": list(args)} if args else {}
    )


def replica(count: int, policy: str, main: Json, **pod: Any) -> Json:
    template = {"spec": {"containers": [main], **pod}}
    return {"replicas": count, "restartPolicy": policy, "template": template}


def tfjob(types: Mapping[str, Json], **run_policy: Any) -> Json:
    metadata = {"name": "mnist", "namespace": "kubeflow"}
    spec = {"runPolicy": run_policy, "tfReplicaSpecs": types}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": metadata, "spec": spec}


def run_imported(desk: Desk, manifest: Json, **section: Any) -> Json:
    """Import a manifest, give its spec the image of the lab, run it to its end; return the spec."""
    shell = desk.shell
    (shell.cwd / "tfjob.yaml").write_text(yaml.safe_dump(manifest))
    imported = shell.run("import", "tfjob.yaml", "-o", "spec.json")
    assert imported.code == 0, imported.err
    path = shell.cwd / "spec.json"
    spec: Json = json.loads(path.read_text())
    spec["runtime"]["kubernetes"] |= desk.runtime(**section)["kubernetes"]
    path.write_text(json.dumps(spec))
    ended = shell.run("up", "spec.json", timeout=HANG_S)
    assert ended.code == 0, ended.out.decode() + ended.err
    return spec


def test_one_worker_writes_summaries_to_its_claim(desk: Desk) -> None:
    folder = desk.claim("train")
    desk.shell.script("mnist_with_summaries.py", SUMMARIES)
    mounts = [{"mountPath": "/train", "name": "training"}]
    main = container(
        "mnist_with_summaries.py", "--log_dir=/train/logs", "--steps=20", volumeMounts=mounts
    )
    volumes = [{"name": "training", "persistentVolumeClaim": {"claimName": "train"}}]
    worker = replica(1, "Never", main, volumes=volumes)
    spec = run_imported(desk, tfjob({"Worker": worker}, cleanPodPolicy="None"))
    assert spec["job"]["kind"] == "plain"
    (written,) = (folder / "logs").glob("events.out.tfevents.*")
    assert written.read_bytes().count(b"loss") == 20


def test_every_replica_gets_the_cluster_of_service_names(desk: Desk) -> None:
    desk.shell.script("train.py", BETWEEN_GRAPHS)
    types = {}
    for name, count in (("Chief", 1), ("Worker", 1), ("PS", 1)):
        env = [{"name": "ROLE", "value": name.lower()}, {"name": "ROOT", "value": "/data"}]
        main = container("train.py", "--role=$(ROLE)", "--data=$(ROOT)/mnist", env=env)
        types[name] = replica(count, "OnFailure", main)
    spec = run_imported(desk, tfjob(types, cleanPodPolicy="Running", backoffLimit=1))
    assert spec["cluster"] == {"chief": 1, "worker": 1, "ps": 1}
    tasks = [("chief", 0), ("worker", 0), ("ps", 0)]
    clusters = []
    for job, index in tasks:
        written = desk.shell.log(f"{job}:{index}").splitlines()
        config = json.loads(next(line for line in written if line.startswith(b"{")))
        assert config["task"] == {"type": job, "index": index}
        clusters.append(config["cluster"])
    assert clusters == [clusters[0]] * len(tasks)
    service = desk.shell.last_run().name
    hosts = {job: [at.rpartition(":")[0] for at in listed] for job, listed in clusters[0].items()}
    assert hosts == {job: [f"{service}-{job}-0.{service}"] for job in ("chief", "worker", "ps")}
