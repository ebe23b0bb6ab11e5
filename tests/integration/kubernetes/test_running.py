"""A spec runs in pods, survives their losses, and leaves nothing."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.commandline import wait_for
from tests.integration.live import Live
from tests.lab.kube_images import HOST, host_template

from tfcluster.backends.kubernetes.run_pods import merge

from .desk import HANG_S, Desk
from .submitted import RELEASE, ended, note_fault, of_type, said, uids

pytestmark = [pytest.mark.slow]


def spec(desk: Desk, script: str, *, runtime: dict[str, Any] | None = None, **more: Any) -> Path:
    desk.shell.script("train.py", script)
    desk.shell.script("before.py", "print('prepared')")
    job = {"script": "train.py", "hooks": "off", "prepare": {"script": "before.py"}}
    return desk.shell.spec("spec.json", job, runtime=desk.runtime(**(runtime or {})), **more)


def up(desk: Desk, script: str, **more: Any) -> Live:
    return Live(desk.shell, "up", str(spec(desk, script, **more)))


def tasks_lines(desk: Desk, pod: str) -> list[str]:
    """Return what a pod has written, without the talk of its exec server."""
    written = desk.log(pod).splitlines()
    return [line for line in written if not line.startswith(("listening", "connection ended"))]


LOOK = f"""
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
fact = {{"peers": config["cluster"]["worker"], "host": socket.gethostname()}}
print(json.dumps(fact), flush=True)
while not os.path.exists("{RELEASE}"):
    time.sleep(0.05)
for address in config["cluster"]["worker"]:
    print("found", socket.gethostbyname(address.rpartition(":")[0]), flush=True)
"""


def test_each_task_has_a_pod_that_its_peers_find_by_name(desk: Desk) -> None:
    template = host_template()
    template["spec"]["initContainers"] = [
        {"name": "before", "image": desk.small, "command": ["true"]}
    ]
    run = up(desk, LOOK, runtime={"pod_template": template})
    run.wait_for_line('"peers"')
    for number in (0, 1):
        pod = f"{run.run_id}-worker-{number}"
        fact = json.loads(run.log(f"worker:{number}").splitlines()[0])
        hosts = [peer.rpartition(":")[0] for peer in fact["peers"]]
        assert hosts == [f"{run.run_id}-worker-{n}.{run.run_id}" for n in (0, 1)]
        assert fact["host"] == pod
        # The exec server talks, too: "connection ended" is that of a dial that was tried again.
        wait_for(
            lambda pod=pod, fact=fact: [json.dumps(fact)] == tasks_lines(desk, pod),  # type: ignore[misc]
            timeout=HANG_S,
            what=desk.log(pod),
        )
        made = desk.kubectl.json("get", "pod", pod)
        assert made["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet"
    for number in (0, 1):
        pod = f"{run.run_id}-worker-{number}"
        desk.kubectl("exec", pod, "--", "touch", RELEASE)
    ended(run, 0)
    assert len([line for line in run.log("worker:0").splitlines() if line.startswith("found")]) == 2
    assert desk.left() == []


ENDS = "import socket; print('on', socket.gethostname())"


def test_roles_have_their_own_nodes_and_resources(desk: Desk) -> None:
    nodes = {"chief": "n2", "worker": "n1"}
    on = {"chief": {"kubernetes.io/hostname": "n2"}, "worker": {"kubernetes.io/hostname": "n1"}}
    runtime = desk.runtime(node_selector=on["worker"], resources={"requests": {"cpu": "20m"}})
    own = {"node_selector": on["chief"], "resources": {"requests": {"cpu": "10m"}}}
    runtime["roles"] = {"chief": {"kubernetes": own}}
    desk.shell.script(
        "train.py",
        f"{ENDS}\nimport os, time\nwhile not os.path.exists({RELEASE!r}): time.sleep(0.05)",
    )
    path = desk.shell.spec("spec.json", {"script": "train.py", "hooks": "off"}, runtime=runtime)
    value = json.loads(path.read_text()) | {"cluster": {"chief": 1, "worker": 1}}
    path.write_text(json.dumps(value))
    run = Live(desk.shell, "up", str(path))
    run.wait_for_line("on", "chief:0", "worker:0")
    for role, cpu in (("chief", "10m"), ("worker", "20m")):
        pod = desk.kubectl.json("get", "pod", f"{run.run_id}-{role}-0")
        assert pod["spec"]["nodeName"] == nodes[role]
        assert pod["spec"]["nodeSelector"] == on[role]
        (task,) = pod["spec"]["containers"]
        assert task["resources"]["requests"]["cpu"] == cpu
        desk.kubectl("exec", f"{run.run_id}-{role}-0", "--", "touch", RELEASE)
    ended(run, 0)
    assert "only chief" in run.said()
    assert desk.left() == []


LOSSES = """
import os, signal, sys, time
attempt, task = os.environ["TFCLUSTER_ATTEMPT"], os.environ["TFCLUSTER_TASK"]
print("attempt", attempt, flush=True)
if (attempt, task) == ("1", "worker:1"):
    os.kill(os.getpid(), signal.SIGKILL)
if (attempt, task) == ("3", "worker:0"):
    sys.exit(7)
time.sleep(600)
"""


def test_a_killed_task_and_a_killed_container_restart_in_their_pod(desk: Desk) -> None:
    run = up(desk, LOSSES, supervision={"backoff_s": 0, "max_restarts": 2})
    wait_for(lambda: "attempt 2" in run.log("worker:1", 2) or run.is_over(), timeout=HANG_S)
    first = uids(desk)
    since = time.time()
    desk.kill(f"{run.run_id}-worker-1")
    wait_for(lambda: len(of_type(run, "restarting")) == 2 or run.is_over(), timeout=HANG_S)
    assert uids(desk) == first, run.said()
    ended(run, 1)
    killed = next(each["time"] for each in of_type(run, "task_exited"))
    note_fault(run, killed, "a task is killed")
    note_fault(run, since, "a pod's container is killed", attempt=3)
    causes = [event["root_cause"] for event in of_type(run, "diagnosis")]
    assert [cause["kind"] for cause in causes] == ["signal", "node_lost", "exit_code"], causes
    assert "its pod" in causes[1]["reason"]
    assert causes[2]["task"] == "worker:0"
    assert "exit 7" in said(run)
    assert desk.left() == []


SAVES = """
import os, signal, struct, sys, time
folder, task = os.environ["TFCLUSTER_CHECKPOINT_DIR"], os.environ["TFCLUSTER_TASK"]

def save(*_):
    if task == "worker:0":
        os.makedirs(folder, exist_ok=True)
        with open(folder + "/ckpt-1.data-00000-of-00001", "w") as file:
            file.write("weights")
        with open(folder + "/ckpt-1.index", "wb") as file:  # as TensorFlow's end
            file.write(struct.pack("<Q", 0xDB4775248B80FB57))
    sys.exit(42)

signal.signal(signal.SIGTERM, save)
print("attempt", os.environ["TFCLUSTER_ATTEMPT"], flush=True)
time.sleep(600)
"""


def test_a_deleted_pod_lets_the_gang_save_and_costs_no_restart(desk: Desk) -> None:
    run = up(desk, SAVES, supervision={"backoff_s": 0, "max_restarts": 0})
    run.wait_for_line("attempt 1")
    since = time.time()
    first = uids(desk)
    desk.kubectl("delete", "pod", f"{run.run_id}-worker-1", "--wait=false")
    wait_for(lambda: "attempt 2" in run.log("worker:1", 2) or run.is_over(), timeout=HANG_S)
    note_fault(run, since, "a pod is deleted")
    (kept, former), (same, new) = first, uids(desk)
    assert (kept == same, former == new) == (True, False), run.said()
    (again,) = of_type(run, "restarting")
    assert again["counts"] is False, again
    run.process.send_signal(signal.SIGINT)
    ended(run, 130)
    (gathered, *_) = of_type(run, "checkpoint_gathered")
    assert (run.folder / f"{gathered['path']}.data-00000-of-00001").read_text() == "weights"
    assert desk.left() == []


REGISTRY_PORT = 5077


def registry(desk: Desk) -> dict[str, Any]:
    """Return a pod that is a registry without images for the node n1: it answers 404."""
    container: dict[str, Any] = {"name": "registry", "image": desk.small}
    container |= {"command": ["python3", "-m", "http.server", str(REGISTRY_PORT)]}
    spec = {"hostNetwork": True, "nodeSelector": ON_N1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "registry"}, "spec": spec}


ON_N1 = {"lab/node": "n1"}


def test_an_image_that_does_not_exist_is_a_clear_end(desk: Desk) -> None:
    desk.kubectl.apply(registry(desk))
    phase = ("get", "pod", "registry", "-o", "jsonpath={.status.phase}")
    wait_for(lambda: desk.kubectl(*phase) == "Running", timeout=HANG_S, what="the registry")
    image = f"localhost:{REGISTRY_PORT}/none:1"
    runtime = {"image": image, "node_selector": ON_N1, "coordinator": {"image": HOST}}
    runtime["pod_template"] = host_template()  # for the coordinator
    run = ended(up(desk, LOOK, runtime=runtime), 3)
    assert f"the image {image} cannot be pulled" in said(run)
    assert "image" in run.state()["reason"]
    assert desk.left() == []


def test_an_image_that_no_node_has_ends_at_once_where_none_is_pulled(desk: Desk) -> None:
    never = {"containers": [{"name": "task", "imagePullPolicy": "Never"}]}
    template = merge(host_template(), {"spec": never})
    image = {"image": "localhost/none:1", "coordinator": {"image": HOST}}
    run = ended(up(desk, LOOK, runtime={**image, "pod_template": template}), 3)
    assert "pull policy of Never" in said(run)
    assert "no kubelet has confirmed" not in said(run)
    assert desk.left() == []


def test_pods_without_a_place_are_queued_with_the_schedulers_words(desk: Desk) -> None:
    run = up(desk, LOOK, runtime={"resources": {"requests": {"cpu": "64"}}})
    wait_for(lambda: run.is_over() or run.state()["status"] == "queued", timeout=HANG_S)
    wait_for(lambda: run.is_over() or "Insufficient cpu" in said(run), timeout=HANG_S)
    assert not run.is_over(), run.said()
    run.process.send_signal(signal.SIGINT)
    ended(run, 130)
    assert desk.left() == []
