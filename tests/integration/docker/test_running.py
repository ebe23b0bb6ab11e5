"""A spec runs in containers with the right names, limits and files, and leaves nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.integration import user_session
from tests.integration.hosts.office import COUNT
from tests.lab.docker_images import BASE, build_debugged

from .harbor import Harbor, ended

pytestmark = pytest.mark.slow

LOOK = """
import json, os, socket, sys
config = json.loads(os.environ["TF_CONFIG"])
mine = config["cluster"]["worker"][config["task"]["index"]].rpartition(":")[0]
peers = [address.rpartition(":")[0] for address in config["cluster"]["worker"]]
print(json.dumps({
    "mine": mine, "host": socket.gethostname(), "uid": os.getuid(),
    "own": [i[4][0] for i in socket.getaddrinfo(mine, 0, socket.AF_INET)][0],
    "peers": sorted({i[4][0] for p in peers for i in socket.getaddrinfo(p, 0, socket.AF_INET)}),
    "here": sorted(os.listdir(".")),
}), flush=True)
os.makedirs("out", exist_ok=True)
open("out/result.txt", "w").write("done")
open("/tmp/wait", "w").close()
while not os.path.exists("/tmp/go"):
    import time; time.sleep(0.05)
"""

WHERE = "import os, socket; print(socket.gethostname(), os.getuid(), os.environ['TFCLUSTER_TASK'])"


def settings(harbor: Harbor, container: str) -> dict[str, Any]:
    (found,) = json.loads(harbor.docker("inspect", container))
    return dict(found)


def test_each_task_has_a_container_that_its_peers_find_by_name(harbor: Harbor) -> None:
    spec = harbor.spec(LOOK, checkpoints={"outputs": ["out/**"]})
    run = harbor.up(spec)
    run.wait_for_line('"mine"')
    facts = [json.loads(run.log(task).splitlines()[-1]) for task in ("worker:0", "worker:1")]
    names = [harbor.container(run, node) for node in ("worker-0", "worker-1")]
    addresses = []
    for name, node, fact in zip(names, ("worker-0", "worker-1"), facts, strict=True):
        made = settings(harbor, name)
        network = made["NetworkSettings"]["Networks"][run.run_id]
        addresses.append(network["IPAddress"])
        assert made["HostConfig"]["Init"] is True
        assert not made["HostConfig"]["PortBindings"]
        assert not made["HostConfig"]["PublishAllPorts"]
        assert made["Config"]["Labels"]["tfcluster.run"] == run.run_id
        assert (fact["mine"], fact["host"], fact["own"]) == (node, node, network["IPAddress"])
        assert fact["uid"] != 0
        assert "train.py" in fact["here"]
        task = node.replace("-", ":")
        beside = harbor.shell.run("exec", run.run_id, task, "--", "python3", "-c", WHERE)
        assert beside.out.decode().split() == [node, str(fact["uid"]), task], beside.err
    debugged = harbor.shell.run("debug", run.run_id, "worker:0")
    assert (debugged.code, "finds no debugpy" in debugged.err) == (3, True), debugged.err
    for name in names:
        harbor.docker("exec", name, "touch", "/tmp/go")
    ended(run)
    assert all(fact["peers"] == sorted(addresses) for fact in facts)
    (output,) = run.folder.glob("outputs/**/result.txt")
    assert output.read_text() == "done"
    assert output.stat().st_uid == os.getuid()
    assert "no port is published" in " ".join(run.said().split())


def test_a_users_session_with_a_run(harbor: Harbor) -> None:
    image = build_debugged(harbor.docker)
    job, runtime = {"script": user_session.SCRIPT}, {"image": image}
    run = harbor.up(harbor.spec(user_session.STEPS, job=job, runtime=runtime))
    session = harbor.shell.python(user_session.__file__, run.run_id)
    assert session.code == 0, session.err
    ended(run, 143)


def test_resources_are_limits_of_the_container(harbor: Harbor) -> None:
    resources = {"cpus": 1, "memory": "300m", "pin": True}
    run = harbor.up(harbor.spec(lasts=True, resources=resources))
    run.wait_for_line("line 1")
    limits = [settings(harbor, harbor.container(run, n))["HostConfig"] for n in ("worker-0",)]
    harbor.release(run)
    ended(run)
    assert limits[0]["NanoCpus"] == 1_000_000_000
    assert limits[0]["Memory"] == limits[0]["MemorySwap"] == 300 << 20
    assert limits[0]["CpusetCpus"].isdecimal()
    assert limits[0]["PidsLimit"] == 16_384
    assert limits[0]["SecurityOpt"] == ["no-new-privileges"]


WHO = """
import os
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
open("in the workdir", "w").close()
open(os.path.expanduser("~/in the home"), "w").close()
print(os.getuid(), os.environ["HOME"], status["NoNewPrivs"], flush=True)
"""


def test_tasks_are_root_only_if_the_spec_says_so(harbor: Harbor) -> None:
    """The image names no user, like most official ones."""
    spec = harbor.spec(WHO, runtime={"image": BASE})
    run = ended(harbor.up(spec))
    assert run.log("worker:0") == run.log("worker:1") == "65534 /tmp 1\n"
    root = harbor.up(spec, "--set", "runtime.user=root", "--name", "root")
    root.name = "root"
    assert ended(root).log("worker:0") == "0 /root 1\n"


DATA = """
import os
folder = os.environ["TFDS_DATA_DIR"]
print("read", open(folder + "/set.txt").read(), os.getuid(), flush=True)
try:
    open(folder + "/mine", "w")
except OSError as error:
    print("refused", error.errno, flush=True)
shared = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
os.makedirs(shared, exist_ok=True)
open(shared + "/" + os.environ["TFCLUSTER_TASK"].replace(":", "-"), "w").write("x")
"""


def test_data_is_read_only_and_files_on_shared_storage_are_the_callers(harbor: Harbor) -> None:
    data, shared = harbor.shell.root / "sets, all", harbor.shell.root / "shared"
    for folder in (data, shared):
        folder.mkdir(mode=0o700)
    (data / "set.txt").write_text("digits")
    runtime = {"hosts": {"*": {"data_dir": str(data)}}}
    spec = harbor.spec(DATA, runtime=runtime, checkpoints={"dir": str(shared)})
    run = ended(harbor.up(spec))
    for task in ("worker:0", "worker:1"):
        assert f"read digits {os.getuid()}" in run.log(task)
        assert "refused 30" in run.log(task)  # EROFS
    assert {path.name for path in shared.rglob("worker-*")} == {"worker-0", "worker-1"}
    assert {path.stat().st_uid for path in shared.rglob("*")} == {os.getuid()}
    assert not (data / "mine").exists()


def test_one_ctrl_c_ends_the_run_and_its_containers(harbor: Harbor) -> None:
    run = harbor.up(harbor.spec(lasts=True))
    run.wait_for_line("line 3")
    run.process.send_signal(2)
    ended(run, 130)
    assert {event["ended_by"] for event in run.of_type("task_exited")} == {"tfcluster"}


def test_ctrl_c_while_containers_start_leaves_none(harbor: Harbor) -> None:
    for wait in (0.4, 0.8, 1.2):
        spec = harbor.spec(lasts=True, cluster={"worker": 3})
        run = harbor.up(spec, "--name", f"early{wait * 10:.0f}")
        with pytest.raises(Exception, match="timed out"):
            run.process.wait(wait)
        run.process.send_signal(2)
        assert run.end() == 130, run.said()
        assert harbor.left() == []


def test_doctor_checks_inside_containers_and_removes_them(harbor: Harbor) -> None:
    done = harbor.shell.run("doctor", str(harbor.spec()), "--json")
    report = json.loads(done.out)
    assert report["nodes"] == ["worker-0", "worker-1"], done.err
    assert {node["python"] for node in report["seen"]} == {"3.11.2"}, report


def test_the_python_of_the_image_runs_instead_of_a_local_one(harbor: Harbor) -> None:
    """A path of this machine is ignored in a container; any other is a path in the image."""
    spec = harbor.spec(COUNT, runtime={"python": "../.venv/bin/python"})
    run = ended(harbor.up(spec, "--set", "job.env.COUNT=1"))
    assert "the image's; runtime.python is a path of this machine" in " ".join(run.said().split())
    missing = harbor.up(harbor.spec(runtime={"python": "/no/python"}), "--name", "missing")
    assert missing.end() == 3
    assert "/no/python" in missing.said()


def test_the_code_folder_is_not_changed(harbor: Harbor) -> None:
    before = sorted(Path(harbor.shell.cwd).rglob("*"))
    ended(harbor.up(harbor.spec('open("made", "w").close()')))
    assert sorted(Path(harbor.shell.cwd).rglob("*")) == sorted(
        {*before, harbor.shell.cwd / "spec.json", harbor.shell.cwd / "train.py"}
    )


SAVE = """
import os, struct, time
folder = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
os.makedirs(folder, exist_ok=True)
open(folder + "/ckpt-1.data-00000-of-00001", "w").write("weights")
with open(folder + "/ckpt-1.index", "wb") as file:  # as TensorFlow's end
    file.write(struct.pack("<Q", 0xDB4775248B80FB57))
"""


def test_a_checkpoint_is_gathered_from_a_container(harbor: Harbor) -> None:
    run = ended(harbor.up(harbor.spec(SAVE)))
    (gathered,) = run.of_type("checkpoint_gathered")
    data = run.folder / f"{gathered['path']}.data-00000-of-00001"
    assert data.read_text() == "weights"
    assert data.stat().st_uid == os.getuid()
