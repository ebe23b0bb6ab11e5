"""The tests' Kubernetes cluster does what real ones do, and leaves nothing behind."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.integration.docker.test_dockerd import links, traces
from tests.lab.kube import KubeCluster, until
from tests.lab.kube_images import HOST, host_template

from .conftest import _need_tools
from .desk import Desk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
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


def pods() -> list[dict[str, Any]]:
    """Return a headless Service and a pod on each node."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "run"}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "run"}}
    made: list[dict[str, Any]] = [{**service, "spec": {**spec, "ports": [{"port": 7077}]}}]
    for number in (0, 1):
        spec = host_template()["spec"]
        spec["containers"][0] |= {"image": HOST, "command": [sys.executable, "-c", MEET]}
        where = {"hostname": f"worker-{number}", "subdomain": "run", "restartPolicy": "Never"}
        spec |= {**where, "nodeSelector": {"lab/node": f"n{number + 1}"}}
        about = {"name": f"w{number}", "labels": {"app": "run"}}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
    return made


def test_two_pods_of_an_ordinary_user_find_each_other_by_short_names(desk: Desk) -> None:
    desk.kubectl.apply(*pods())
    said = [until(lambda n=n: desk.kubectl.run("logs", f"w{n}").stdout, "a line") for n in (0, 1)]
    ips = [desk.kubectl.json("get", "pod", f"w{n}")["status"]["podIP"] for n in (0, 1)]
    assert said == [f"1000 {' '.join(ips)}\n"] * 2
    desk.kill("w0")
    phase = ("get", "pod", "w0", "-o", "jsonpath={.status.phase}")
    until(lambda: desk.kubectl(*phase) == "Failed", "the end of the pod")


def test_a_user_of_one_namespace_sees_no_other(desk: Desk) -> None:
    from tests.lab.kube import Kubectl

    ann = Kubectl(desk.user("ann"))
    assert ann("get", "pods", "-o", "name") == ""
    assert "Forbidden" in ann.run("-n", "default", "get", "pods").stderr


def test_a_cluster_leaves_nothing_behind() -> None:
    _need_tools()
    before = links()
    with KubeCluster(nodes=1) as cluster:
        word = cluster.folder.name
        assert [*traces(word)]
        assert links() == before
    until(lambda: not [*traces(word)], "nothing with its name")
    assert links() == before
