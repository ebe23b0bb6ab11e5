"""The time from Enter to the first step of a TensorFlow job in Kubernetes, and of pods by hand."""

from __future__ import annotations

import atexit
import compileall
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Arm, Claim, Failed, Metric, Quantity, Taken
from benchmarks.launchers import ROOT
from benchmarks.sandbox import HANG_S, TFCLUSTER
from benchmarks.trainings import SCRIPT
from tests.lab.kube import KubeCluster
from tests.lab.kube_binaries import programs
from tests.lab.kube_images import HOST, host_template
from tests.lab.machine import until

from tfcluster.backends.kubernetes.run_pods import TASK_CONTAINER, merge

WORKERS = 2
NAMESPACE = "default"
_STAMPS = "/stamps"
_BY_HAND = {"app": "hand"}
_ENV = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "1", "STAMPS": _STAMPS}
_PORT = 4000
_COORDINATOR = "import asyncio, pydantic, urllib3; pydantic.BaseModel; import time; time.sleep(3)"
"""What a third pod does that costs as little as the pod of a coordinator in Python can."""


@cache
def _cluster() -> KubeCluster:
    """Start a cluster of Kubernetes; it ends with this process.

    The pods' user cannot write bytecode of tfcluster, which pip compiles when it installs.
    """
    for folder in ("launcher", "workers"):
        compileall.compile_dir(ROOT / folder, quiet=1)
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(KubeCluster(nodes=WORKERS))


def _template(folder: Path) -> dict[str, Any]:
    """Return the part of a pod with this machine's programs, and `folder` for the stamps."""
    mount = {"name": "stamps", "mountPath": _STAMPS}
    volume = {"name": "stamps", "hostPath": {"path": str(folder), "type": "Directory"}}
    own = {"containers": [{"name": TASK_CONTAINER, "volumeMounts": [mount]}], "volumes": [volume]}
    merged: dict[str, Any] = merge(host_template(), {"spec": own})
    return merged


def _pods(folder: Path, python: str) -> list[dict[str, Any]]:
    """Return a headless Service and pods that find each other by its names."""
    peers = [f"hand-{number}.hand:{_PORT}" for number in range(WORKERS)]
    service = {"clusterIP": "None", "selector": _BY_HAND, "publishNotReadyAddresses": True}
    made: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hand"}, "spec": service}
    ]
    for number in range(WORKERS):
        task = {"cluster": {"worker": peers}, "task": {"type": "worker", "index": number}}
        env = {**_ENV, "TF_CONFIG": json.dumps(task), "HOME": "/tmp"}
        made.append(_pod(f"hand-{number}", folder, [python, str(SCRIPT), "first"], env))
    return made


def _pod(name: str, folder: Path, command: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    container = {
        "name": TASK_CONTAINER,
        "image": HOST,
        "command": [*command],
        "env": [{"name": key, "value": value} for key, value in env.items()],
    }
    template = _template(folder)
    template["spec"]["containers"] = template["spec"]["containers"][:1]  # the task's
    spec = {
        "restartPolicy": "Never",
        "hostname": name,
        "subdomain": "hand",
        "containers": [container],
    }
    metadata = {"name": name, "labels": _BY_HAND}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    merged: dict[str, Any] = merge(pod, template)
    return merged


def _spec(folder: Path, python: str) -> dict[str, Any]:
    section = {"image": HOST, "namespace": NAMESPACE, "pod_template": _template(folder)}
    return {
        "name": "b",
        "cluster": {"worker": WORKERS},
        "job": {"script": SCRIPT.name, "args": ["first"], "env": _ENV},
        "runtime": {"backend": "kubernetes", "python": python, "kubernetes": section},
    }


def _take(command: Sequence[str], *, venv: str) -> Taken:
    """Measure until the last worker's first step; then wait until nothing is left of the job."""
    cluster, python = _cluster(), str(ROOT / venv / "bin" / "python")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        stamps = folder / "stamps"
        stamps.mkdir()
        folder.chmod(0o755)
        stamps.chmod(0o777)
        shutil.copy(SCRIPT, folder)
        (folder / "bench.json").write_text(json.dumps(_spec(stamps, python)))
        by_hand = _pods(stamps, python)
        third = _pod("hand-third", stamps, [python, "-c", _COORDINATOR], {})
        for file, items in (("hand.json", by_hand), ("third.json", [*by_hand, third])):
            listed = {"apiVersion": "v1", "kind": "List", "items": items}
            (folder / file).write_text(json.dumps(listed))
        env = {**os.environ, "KUBECONFIG": str(cluster.config), "TFCLUSTER_HOME": f"{folder}/home"}
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        try:
            if done.returncode:
                raise Failed(done.stdout + done.stderr)
            until(
                lambda: len([*stamps.glob("step-0-*[0-9]")]) == WORKERS, "the first steps", HANG_S
            )
        finally:
            _remove_all(cluster)
        read = [float(path.read_text().split()[1]) for path in stamps.glob("step-0-*")]
        return {"until": max(read) - began}


def _remove_all(cluster: KubeCluster) -> None:
    """Remove the pods made by hand, and wait until no pod is left."""
    kubectl = cluster.kubectl
    until(lambda: set(_phases(cluster)) <= {"Succeeded", "Failed"}, "the end of the pods", HANG_S)
    kubectl("delete", "services,pods", "-l", "app=hand", "--ignore-not-found")
    kubectl("delete", "service", "hand", "--ignore-not-found")
    until(lambda: not kubectl.json("get", "pods")["items"], "the end of all pods", HANG_S)


def _phases(cluster: KubeCluster) -> list[str]:
    """Return the phases of the pods made by hand."""
    pods = cluster.kubectl.json("get", "pods", "-l", "app=hand")["items"]
    return [pod["status"]["phase"] for pod in pods]


def first_step(*, quick: bool, venv: str) -> Metric:
    """Return the metric; it needs root, and starts a cluster of its own."""
    create = [str(programs() / "kubectl"), "create", "-f"]
    arm, beside, third = "tfcluster up", "kubectl, by hand", "kubectl, with a third pod"
    return Metric(
        title=f"A job in Kubernetes on {WORKERS} nodes: from Enter until all have done their first "
        "step",
        quantities={"until": Quantity("s")},
        arms={
            beside: Arm(
                partial(_take, [*create, "hand.json"], venv=venv),
                "kubectl create of a headless Service and two pods with TF_CONFIG",
            ),
            third: Arm(
                partial(_take, [*create, "third.json"], venv=venv),
                "the same, and a pod that only imports what a coordinator in Python needs",
            ),
            arm: Arm(
                partial(_take, [TFCLUSTER, "up", "bench.json"], venv=venv),
                "tfcluster up bench.json, with the coordinator in a pod",
            ),
        },
        claims=[
            Claim("tfcluster : by hand", "until", arm, beside, at_most=1.15, stretch=1.0),
            Claim("a third pod : by hand", "until", third, beside),
        ],
        note=f"An API server and {WORKERS} kubelets on this machine, whose {os.cpu_count()} cores "
        "the nodes share.",
    )
