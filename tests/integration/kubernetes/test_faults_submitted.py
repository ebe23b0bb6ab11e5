"""A submitted run outlives the faults of a cluster: what it says of them, and what they cost."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.integration.commandline import wait_for
from tests.integration.live import Live
from tests.lab.kube import KubeCluster
from tests.lab.kube_images import host_template
from tests.lab.kubectl import Kubectl

from tfcluster.backends.kubernetes.reasons import is_over
from tfcluster.backends.kubernetes.run_pods import merge

from .desk import HANG_S, Desk, command_line
from .submitted import (
    await_attempt,
    await_checkpoint,
    checkpoint,
    coordinator,
    ended,
    note_fault,
    of_type,
    release,
    said,
    up,
)

pytestmark = [pytest.mark.slow]

APART = {
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": {"tfcluster.dev/role": "task"}},
                    "topologyKey": "lab/node",
                },
            }
        ]
    }
}
SPREAD: dict[str, Any] = {"affinity": APART, "coordinator": {"node_selector": {"lab/node": "n1"}}}
"""A task on each node, while both are there, and the coordinator on the first one."""


def test_a_run_goes_on_without_the_api_server_and_is_fetched_after_it(
    own_kube: KubeCluster, own_desk: Desk
) -> None:
    run = up(own_desk)
    await_attempt(run, 1)
    own_kube.kill_api_server()
    assert not run.is_over()
    own_kube.start_api_server()
    release(own_desk)
    ended(run, 0)
    assert "restarting" not in [event["type"] for event in run.events()]
    assert run.log("worker:0").endswith("released\n")
    assert checkpoint(run, "ckpt-1") == "weights 1"
    own_desk.left()


def test_a_partitioned_nodes_task_starts_again_elsewhere_once_the_old_one_is_dead(
    own_kube: KubeCluster, own_desk: Desk
) -> None:
    limits = {"backoff_s": 0, "max_restarts": 1, "lease_s": 15}
    run = up(own_desk, runtime=SPREAD, supervision=limits)
    await_attempt(run, 1)
    await_checkpoint(own_desk, run, "ckpt-1")
    lost = task_on(own_desk, "n2")
    pids = own_desk.processes(lost)
    assert [pid for pid in pids if b"train.py" in command_line(pid)]
    since = time.time()
    own_kube.cut("n2")
    assert await_attempt(run, 2).startswith("attempt 2 from ")
    note_fault(run, since, "a node is cut off (lease_s 15)")
    # The agent's lease has ended the task; only the exec server, which holds files, may be left.
    assert [pid for pid in pids if b"train.py" in command_line(pid)] == []
    assert own_desk.kubectl("get", "pod", lost, "-o", "jsonpath={.spec.nodeName}") == "n1"
    own_kube.repair("n2")
    release(own_desk)
    ended(run, 0)
    own_desk.left()


def test_a_coordinator_that_outlives_its_pod_leaves_the_run_to_its_successor(
    own_kube: KubeCluster, own_desk: Desk
) -> None:
    limits = {"backoff_s": 0, "max_restarts": 3, "grace_s": 1}
    run = up(own_desk, runtime=coordinator_apart(), supervision=limits)
    await_attempt(run, 1)
    await_checkpoint(own_desk, run, "ckpt-1")
    former = coordinator(own_desk)
    own_kube.kill_kubelet("n1")  # nobody ends the pod
    own_desk.kubectl("delete", "pod", former, "--wait=false")
    assert await_attempt(run, 2).startswith("attempt 2 from ")
    theirs = running_tasks(own_desk)
    assert len(theirs) == 2
    own_kube.start_kubelet("n1")
    gone = ("get", "pod", former, "--ignore-not-found", "-o", "name")
    wait_for(lambda: not own_desk.kubectl(*gone), timeout=HANG_S, what="the former coordinator")
    assert running_tasks(own_desk) == theirs, said(run)
    release(own_desk)
    ended(run, 0)
    assert of_type(run, "restarting") == []
    own_desk.left()


def coordinator_apart() -> dict[str, Any]:
    """Return a `runtime` with the tasks on the second node, the coordinator on the first."""
    first = {"matchExpressions": [{"key": "lab/node", "operator": "In", "values": ["n1"]}]}
    wish = [{"weight": 1, "preference": first}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wish}}
    spec = {"affinity": affinity, "terminationGracePeriodSeconds": 5}  # a successor waits for it
    template = merge(host_template(), {"spec": spec})
    return {"node_selector": {"lab/node": "n2"}, "pod_template": template}


def running_tasks(desk: Desk) -> list[str]:
    """Return the ids of the tasks' pods that run and are not being deleted."""
    pods = desk.kubectl.json("get", "pods", "-l", "tfcluster.dev/role=task")["items"]
    return sorted(each["metadata"]["uid"] for each in pods if not is_over(each))


def test_pods_of_a_dead_kubelet_train_on_until_it_is_back_and_deletes_them(
    own_kube: KubeCluster, own_desk: Desk
) -> None:
    run = up(own_desk, runtime=SPREAD)
    await_attempt(run, 1)
    lost = task_on(own_desk, "n2")
    own_kube.kill_kubelet("n2")
    deleted = ("get", "pod", lost, "-o", "jsonpath={.metadata.deletionTimestamp}")
    wait_for(lambda: own_desk.kubectl(*deleted), timeout=HANG_S, what="the deletion by the taint")
    assert of_type(run, "restarting") == []
    since = time.time()
    own_kube.start_kubelet("n2")
    assert await_attempt(run, 2).startswith("attempt 2 from 2")  # it saved first
    note_fault(run, since, "a kubelet is back after its pods were deleted")
    assert uncounted(run)
    release(own_desk)
    ended(run, 0)
    own_desk.left()


def test_a_drained_nodes_tasks_save_and_go_on_elsewhere(
    own_kube: KubeCluster, own_desk: Desk
) -> None:
    run = up(own_desk, runtime=SPREAD)
    await_attempt(run, 1)
    admin, since = Kubectl(own_kube.config), time.time()
    admin("drain", "n2", "--delete-emptydir-data", "--ignore-daemonsets")
    try:
        assert await_attempt(run, 2).startswith("attempt 2 from 2")
        note_fault(run, since, "drain")
        assert uncounted(run)
        release(own_desk)
        ended(run, 0)
    finally:
        admin("uncordon", "n2")
    own_desk.left()


def test_a_pod_with_a_higher_priority_preempts_a_run_that_goes_on_once_it_has_room(
    own_kube: KubeCluster, own_desk: Desk
) -> None:
    most = {"requests": {"cpu": str(0.6 * own_kube.cpus)}}
    run = up(own_desk, runtime={**SPREAD, "priority_class": "low", "resources": most})
    await_attempt(run, 1)
    since = time.time()
    own_desk.kubectl.apply(urgent_pod(own_desk, most))
    wait_for(
        lambda: "Insufficient cpu" in said(run) or run.is_over(), timeout=HANG_S, what=said(run)
    )
    assert "preempted" in said(run)
    own_desk.kubectl("delete", "pod", "urgent", "--grace-period=1")
    assert await_attempt(run, 2).startswith("attempt 2 from 2")
    note_fault(run, since, "preemption by priority, until there is room again")
    assert uncounted(run)
    release(own_desk)
    ended(run, 0)
    own_desk.left()


def urgent_pod(desk: Desk, resources: Any) -> dict[str, Any]:
    container = {"name": "a", "image": desk.small, "command": ["sleep", "600"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "urgent"},
        "spec": {
            "priorityClassName": "high",
            "nodeSelector": {"lab/node": "n2"},
            "terminationGracePeriodSeconds": 1,
            "containers": [{**container, "resources": resources}],
        },
    }


def task_on(desk: Desk, node: str) -> str:
    """Return the name of the task's pod on a node."""
    where = ("--field-selector", f"spec.nodeName={node}", "-o", "name")
    (name,) = desk.kubectl("get", "pods", "-l", "tfcluster.dev/role=task", *where).split()
    return name.removeprefix("pod/")


def uncounted(run: Live) -> bool:
    """Return whether there was one restart, which does not count against `max_restarts`."""
    (again,) = of_type(run, "restarting")
    return again["counts"] is False
