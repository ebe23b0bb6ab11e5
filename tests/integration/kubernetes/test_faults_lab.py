"""The faults of the tests' Kubernetes cluster are those of real ones."""

from __future__ import annotations

import socket

import pytest
from tests.lab.kube import KubeCluster, until

from .desk import Desk, command_line

pytestmark = [pytest.mark.slow]


def start(desk: Desk, name: str, node: str) -> list[int]:
    """Start a pod that sleeps on a node; return this machine's ids of its processes."""
    desk.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "nodeSelector": {"lab/node": node},
                "containers": [{"name": "task", "image": desk.small, "command": ["sleep", "600"]}],
            },
        }
    )
    until(lambda: phase(desk, name) == "Running", f"the pod {name}")
    return desk.processes(name)


def phase(desk: Desk, name: str) -> str:
    return desk.kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}")


def live(pids: list[int]) -> bool:
    """Return whether these are still the processes of a pod: others may have got their ids."""
    return all(command_line(pid) == b"sleep\0" + b"600\0" for pid in pids)


def is_gone(desk: Desk, name: str) -> bool:
    return "NotFound" in desk.kubectl.run("get", "pod", name).stderr


def test_pods_go_on_without_the_api_server(own_kube: KubeCluster, own_desk: Desk) -> None:
    pids = start(own_desk, "w0", "n1")
    own_kube.kill_api_server()
    assert "refused" in own_desk.kubectl.run("get", "pods").stderr
    own_kube.start_api_server()
    assert phase(own_desk, "w0") == "Running"
    assert pids
    assert live(pids)


def test_nobody_reaches_an_api_server_whose_cable_is_unplugged(
    own_kube: KubeCluster, own_desk: Desk
) -> None:
    own_kube.cut("control")
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", own_kube.door.port), 0.5)
    own_kube.repair("control")
    own_desk.kubectl("get", "pods")


def test_pods_go_on_without_a_kubelet(own_kube: KubeCluster, own_desk: Desk) -> None:
    pids = start(own_desk, "w0", "n2")
    own_kube.kill_kubelet("n2")
    own_kube.wait_for_ready("n2", ready=False)
    assert pids
    assert live(pids)
    own_kube.start_kubelet("n2")
    own_kube.wait_for_ready("n2")


def test_the_pod_of_an_unplugged_node_is_deleted_once_the_node_hears_of_it(
    own_kube: KubeCluster, own_desk: Desk
) -> None:
    pids = start(own_desk, "w0", "n2")
    own_kube.cut("n2")
    deleted = ("get", "pod", "w0", "-o", "jsonpath={.metadata.deletionTimestamp}")
    until(lambda: own_desk.kubectl(*deleted), "the deletion of the pod")
    assert live(pids)
    own_kube.repair("n2")
    until(lambda: is_gone(own_desk, "w0"), "the end of the pod")
    assert not any(live([pid]) for pid in pids)


def test_a_node_that_was_switched_off_has_lost_its_pods(
    own_kube: KubeCluster, own_desk: Desk
) -> None:
    pids = start(own_desk, "w0", "n2")
    own_kube.power_off("n2")
    assert pids
    assert not any(live([pid]) for pid in pids)
    own_kube.wait_for_ready("n2", ready=False)
    own_kube.boot("n2")
    own_kube.wait_for_ready("n2")
    assert start(own_desk, "w1", "n2")
