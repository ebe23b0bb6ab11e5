"""The tests' Kubernetes cluster does what real ones do, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.lab.docker_images import exclusive
from tests.lab.kube import Kubectl, until
from tests.lab.kube_folder import FOLDERS_LOCK, cluster_folder
from tests.lab.kube_images import HOST, host_template
from tests.lab.traces import links, traces

from tfcluster.backends.kubernetes.run_objects import PodRun
from tfcluster.backends.kubernetes.run_pods import coordinator_template, stateful_sets
from tfcluster.discovery import planning

from .conftest import need_tools
from .desk import HANG_S, Desk

pytestmark = [pytest.mark.slow]
MEET = """
import os, socket, time
while True:
    try:
        print(os.getuid(), *(socket.gethostbyname(f"worker-{n}.run") for n in (0, 1)), flush=True)
        break
    except OSError:
        time.sleep(0.1)
time.sleep(600)
"""
USE_SMALL = """
tfcluster --version && touch /tmp/writable && ! touch /somewhere
python3 -c "import kubernetes, pydantic; print(kubernetes.__file__)"
"""


def pods() -> list[dict[str, Any]]:
    """Return a headless Service and a pod on each node."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "run"}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "run"}}
    made: list[dict[str, Any]] = [{**service, "spec": {**spec, "ports": [{"port": 7077}]}}]
    for number in (0, 1):
        spec = host_template()["spec"]
        del spec["containers"][1:]
        spec["containers"][0] |= {"image": HOST, "command": ["python3", "-c", MEET]}
        where = {"hostname": f"worker-{number}", "subdomain": "run", "restartPolicy": "Never"}
        spec |= {**where, "nodeSelector": {"lab/node": f"n{number + 1}"}}
        about = {"name": f"w{number}", "labels": {"app": "run"}}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
    return made


def test_two_pods_of_an_ordinary_user_find_each_other_by_short_names(desk: Desk) -> None:
    desk.kubectl.apply(*pods())
    said = [until(partial(desk.log, f"w{n}"), "a line") for n in (0, 1)]
    ips = [desk.kubectl.json("get", "pod", f"w{n}")["status"]["podIP"] for n in (0, 1)]
    assert said == [f"1000 {' '.join(ips)}\n"] * 2
    desk.kill("w0")
    phase = ("get", "pod", "w0", "-o", "jsonpath={.status.phase}")
    until(lambda: desk.kubectl(*phase) == "Failed", "the end of the pod")


def test_a_user_of_one_namespace_sees_no_other(desk: Desk) -> None:
    ann = Kubectl(desk.user("ann"))
    assert ann("get", "pods", "-o", "name") == ""
    assert "Forbidden" in ann.run("-n", "default", "get", "pods").stderr


def test_a_desk_offers_a_runtime_that_gives_both_kinds_of_pods_this_python(desk: Desk) -> None:
    desk.shell.script("job.py", "")
    spec = desk.shell.spec("s.json", {"script": "job.py"}, runtime=desk.runtime())
    planned = planning.plan(str(spec))
    run = PodRun("run", planned.plan, planned.spec.runtime)
    coordinator = coordinator_template(run)
    (tasks,) = stateful_sets(run)
    for pod in (tasks["spec"]["template"], coordinator):
        (container,) = pod["spec"]["containers"]
        assert container["image"] == HOST
        folders = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert any(Path(sys.prefix).is_relative_to(folder) for folder in folders)
        assert {v["name"]: v.get("value", "") for v in container["env"]}["PATH"].startswith(
            f"{sys.prefix}/bin:"
        )


def test_the_small_image_needs_nothing_of_its_machine(desk: Desk) -> None:
    container = {
        "name": "task",
        "image": desk.small,
        "command": ["sh", "-ec", USE_SMALL],
        "securityContext": {"readOnlyRootFilesystem": True, "runAsNonRoot": True},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes = [{"name": "tmp", "emptyDir": {}}]
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    about = {"name": "small"}
    desk.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
    phase = ("get", "pod", "small", "-o", "jsonpath={.status.phase}")
    ended = until(lambda: {"Succeeded", "Failed"} & {desk.kubectl(*phase)}, "the end of the pod")
    said = desk.log("small").strip()
    assert ended == {"Succeeded"}, said
    assert said.startswith("tfcluster, version ")
    assert said.endswith("/kubernetes/__init__.py")


@pytest.mark.parametrize("killed", ["the owner", "the cluster's process"])
def test_a_cluster_leaves_nothing_behind(killed: str) -> None:
    need_tools()
    before = links()
    with subprocess.Popen(["sleep", "600"]) as owner:
        argv = ["up", "--nodes", "1", "--owner", str(owner.pid)]
        cluster = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.kubernetes", *argv], stdout=subprocess.PIPE
        )
        try:
            assert cluster.stdout is not None
            about = json.loads(cluster.stdout.readline())
            word = Path(about["folder"]).name
            assert {path.split("/")[1] for path in traces(word)} >= {"proc", "sys", "var"}
            assert links() == before
            if killed == "the cluster's process":
                with exclusive(FOLDERS_LOCK):  # other tests may start the next cluster
                    os.kill(about["pid"], signal.SIGKILL)
                    until(lambda: not [p for p in traces(word) if "/proc" in p], "no process")
                    assert [*traces(word)], "files of a killed process stay until the next cluster"
        finally:
            owner.kill()  # not reaped yet
            with cluster:
                cluster.wait(HANG_S)
    if killed == "the cluster's process":
        with cluster_folder():
            pass
    until(lambda: not [*traces(word)], "nothing with its name")
    assert links() == before
