"""Runs on other machines are started and followed over ssh, gathered from, and leave nothing."""

from __future__ import annotations

import json
import signal
import sys
import zipfile
from pathlib import Path

import pytest
from tests.integration import user_session
from tests.lab.machine import Machine
from tests.old_pythons import REAL, pretending

from tfcluster.agent.node import limits

from .office import COUNT, Office, is_whole, numbered, until

pytestmark = pytest.mark.slow

SAVES = """
import os, time, zipfile
import sibling
from tfcluster_workers import reporting
folder = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
os.makedirs(folder, exist_ok=True)
found = sorted(os.listdir(folder))
print("found", found, "step", os.environ.get("TFCLUSTER_RESTORED_STEP"), flush=True)
first = 1 + max((int(name[6:-6]) for name in found), default=0)
for step in range(first, 4):
    with zipfile.ZipFile(f"{folder}/new", "w") as file:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            file.writestr(name, f"{step}" * 100_000)
    os.rename(f"{folder}/new", f"{folder}/model-{step}.keras")
    reporting.saved(f"{folder}/model-{step}.keras", step=step)
    print("saved", step, flush=True)
    attempt, task = os.environ["TFCLUSTER_ATTEMPT"], os.environ["TFCLUSTER_TASK"]
    while (step, attempt, task) == (2, "1", "worker:1"):
        if os.path.exists(os.environ["RELEASE"]):
            os.kill(os.getpid(), 9)
        time.sleep(0.05)
    time.sleep(0.2)
"""
"""A job of three checkpoints. On its release, the second worker dies after its second one."""


def test_a_run_on_two_hosts_gathers_its_logs_and_leaves_nothing_on_them(office: Office) -> None:
    """The tasks use another network than ssh: each host reaches the other there."""
    for number, host in enumerate(office.add_hosts(2), 1):
        office.lab.add_card(host, "ib0", f"10.88.0.{number}/24")
    run = office.up(office.spec(count=20), "--set", "runtime.interface=10.88.0.0/24")
    assert run.end() == 0, run.said
    held = {event["host"] for event in run.of_type("ports_held")}
    assert held == {"10.88.0.1", "10.88.0.2"}
    (probed, _) = json.loads((run.folder / "preflight.json").read_text())["seen"]
    assert (probed["peers"], probed["unreachable"]) == (1, [])
    for task in ("worker:0", "worker:1"):
        assert run.log(task).splitlines() == numbered(20)
    assert [event["seq"] for event in run.events()] == list(range(1, len(run.events()) + 1))


def test_the_workers_of_one_host_share_its_cores(office: Office) -> None:
    (host,) = office.add_hosts(1)
    cluster = {"worker": [f"{host.address}:0", f"{host.address}:0"]}
    tell = "import os; print(os.environ['OMP_NUM_THREADS'], sorted(os.sched_getaffinity(0)))"
    run = office.up(office.spec(tell, cluster=cluster, resources={"pin": True}))
    assert run.end() == 0, run.said
    every = [core for node in limits.by_node() for core in node]
    size = max(1, limits.usable() // 2)
    pinned = [json.loads(run.log(name).partition(" ")[2]) for name in ("worker:0", "worker:1")]
    assert [int(run.log(name).split()[0]) for name in ("worker:0", "worker:1")] == [size] * 2
    assert set(pinned[0]) | set(pinned[1]) <= set(every)
    assert len(every) == 1 or not set(pinned[0]) & set(pinned[1])


def test_after_a_restart_every_host_has_the_chiefs_checkpoint(office: Office) -> None:
    office.add_hosts(2)
    office.write("sibling.py", "")
    run = office.up(office.spec(SAVES, lasts=True, supervision={"backoff_s": 0}))
    run.wait_for_event("checkpoint_gathered")
    office.release()
    assert run.end() == 0, run.said
    (restarting,) = run.of_type("restarting")
    step = restarting["from_step"]
    assert step >= 1
    for task in ("worker:0", "worker:1"):
        assert f"model-{step}.keras'] step {step}" in run.log(task, attempt=2)
    gathered = run.of_type("checkpoint_gathered")[-1]
    assert gathered["step"] == 3
    with zipfile.ZipFile(run.folder / gathered["path"]) as file:
        assert file.read("config.json") == b"3" * 100_000


def test_a_folder_given_for_the_code_keeps_its_files(office: Office) -> None:
    (host,) = office.add_hosts(1)
    (host.root / "scratch").mkdir()
    (host.root / "scratch" / "precious").write_text("the user's")
    python = {"python": sys.executable, "workdir": f"{Path('~').expanduser()}/scratch"}
    run = office.up(office.spec("import os; print(os.getcwd())", runtime={"hosts": {"*": python}}))
    assert run.end() == 0, run.said
    assert "/scratch/tfcluster/" in run.log("worker:0")
    assert (host.root / "scratch" / "precious").read_text() == "the user's"
    left = sorted(path.name for path in (host.root / "scratch").rglob("*"))
    assert left == ["precious", "tfcluster"]


def test_an_error_raised_while_the_network_is_cut_is_reported(office: Office) -> None:
    office.add_hosts(2)
    script = COUNT + "raise ValueError('what it died of')\n"
    run = office.up(office.spec(script, lasts=True, supervision={"max_restarts": 0}))
    run.wait_for_line("line 20", "worker:0", "worker:1")
    for host in office.hosts:
        office.lab.cut(host)
    until(lambda: len(run.of_type("node_unreachable")) == 2, "the loss of both")
    office.release()
    for host in office.hosts:
        until(lambda host=host: not tasks_of(host), f"the end of the task on {host.name}")  # type: ignore[misc]
        office.lab.repair(host)
    assert run.end() == 1, run.said
    for task in ("worker:0", "worker:1"):
        assert is_whole(run.log(task).partition("Traceback")[0])
    assert "what it died of" in run.said


def test_hosts_are_clean_after_the_lease_of_a_killed_coordinator(office: Office) -> None:
    office.add_hosts(2)
    run = office.up(office.spec(lasts=True, supervision={"lease_s": 5}))
    run.wait_for_line("line 20", "worker:1")
    kill_coordinator(office)
    assert run.end() == -signal.SIGKILL
    office.folders_stay = True  # files that were saved there and not gathered are kept


def kill_coordinator(office: Office) -> None:
    office.send("tfcluster.cli.main", signal.SIGKILL)


def test_down_ends_the_leftover_tasks_of_a_killed_coordinator_on_every_host(office: Office) -> None:
    first, second = office.add_hosts(2)
    run = office.up(office.spec(lasts=True), "-d")
    assert run.end() == 0, run.said
    assert "sleeps or loses its network, the hosts keep training for 1 h" in run.said
    until(lambda: run.has_line("line 5", "worker:1"), "a line")
    kill_coordinator(office)
    office.folders_stay = True
    office.lab.block(office.home, second, port=22)

    down = office.start("down", run.folder.name)

    assert down.end() == 3, down.said
    assert f"{first.address}: ended agent, worker:0\n" in down.said
    assert f"{first.address}: saved files stay in " in down.said
    assert f"{second.address}: its tasks may run until " in down.said
    assert "Connection timed out" in down.said
    until(lambda: not first.processes(), "the end of the first host's")
    assert second.processes()
    office.lab.unblock(office.home, second, port=22)
    again = office.start("down", run.folder.name)
    assert again.end() == 0, again.said
    assert first.address not in again.said
    assert f"{second.address}: ended agent, worker:1\n" in again.said
    until(lambda: not second.processes(), "the end of the second host's")
    last = office.start("down", run.folder.name)
    assert (last.end(), last.said) == (0, f"{run.folder.name} is lost and was already cleaned up\n")


def test_a_users_session_with_a_run(office: Office) -> None:
    _, second = office.add_hosts(2)
    run = office.up(office.spec(user_session.STEPS, job={"script": user_session.SCRIPT}))
    session = office.python(user_session.__file__, run.folder.name)
    assert (session.end(), session.said) == (0, f"{second.name}\n")
    assert run.end() == 143, run.said


def test_ctrl_c_ends_all_processes_on_all_hosts(office: Office) -> None:
    office.add_hosts(2)
    run = office.up(office.spec(lasts=True))
    run.wait_for_line("line 20", "worker:1")
    office.start("exec", "worker:1", "--", "sleep", "600")  # it is one of the processes
    until(lambda: any("sleep" in words for words in office.hosts[1].processes().values()), "it")
    office.send("tfcluster.cli.main", signal.SIGINT)
    assert run.end() == 130, run.said


def test_all_hosts_that_refuse_are_named_at_once_with_the_message_of_ssh(office: Office) -> None:
    first, second, changed = office.add_hosts(3)
    (first.root / ".ssh/authorized_keys").unlink()
    known = office.home.root / ".ssh/known_hosts"
    content = known.read_text()
    other_key = (office.home.root / ".ssh/authorized_keys").read_text()
    try:
        known.write_text(
            content.replace("10.77.0.*", first.address) + f"{changed.address} {other_key}"
        )
        run = office.up(office.spec())
        assert run.end() == 3
    finally:
        known.write_text(content)
    assert f"{first.address} cannot be reached" in run.said
    assert "Permission denied" in run.said
    assert f"{second.address} cannot be reached" in run.said
    assert "Host key verification failed" in run.said
    assert f"Host key for {changed.address} has changed" in run.said
    assert "its key is another one than before" in run.said
    assert "accept" not in run.said


def test_a_host_with_an_old_python_is_distinguished_from_one_that_is_down(office: Office) -> None:
    (host,) = office.add_hosts(1)
    pretending(host.root / "python3.7")
    for python in (f"{Path('~').expanduser()}/python3.7", *REAL[-1:]):
        run = office.up(office.spec(runtime={"hosts": {"*": {"python": python}}}))
        assert run.end() == 3
        assert f"Python 3.9 or newer is needed, and {python} is 3." in run.said
        assert f"runtime.hosts.{host.address}.python to a Python (3.9 or newer)" in run.said


def test_the_output_of_a_login_is_skipped(office: Office) -> None:
    (host,) = office.add_hosts(1)
    noise = "for i in $(seq 600); do echo 'Welcome to this host, it greets at length today'; done\n"
    (host.root / ".bashrc").write_text(noise)
    run = office.up(office.spec(count=3))
    assert run.end() == 0, run.said
    assert run.log("worker:0").splitlines() == numbered(3)


def test_outputs_and_tensorboard_files_are_gathered(office: Office) -> None:
    (host,) = office.add_hosts(1)
    script = (
        "import os, time\n"
        "if os.environ['TFCLUSTER_TASK'] == 'worker:1':\n"
        "    while not os.path.exists(os.environ['RELEASE']):\n"
        "        time.sleep(0.05)\n"
        "    open('late.txt', 'w').write('late')\n"
        "    open('half.npz', 'w').write('PK half an archive')\n"
        "    raise SystemExit\n"
        "os.makedirs('plots/deep')\n"
        "for name in ('plots/deep/a.png', 'b.txt', 'c.csv'):\n"
        "    open(name, 'w').write(name)\n"
        "os.makedirs(os.environ['TFCLUSTER_TENSORBOARD_DIR'])\n"
        "open(os.environ['TFCLUSTER_TENSORBOARD_DIR'] + '/events.out', 'w').write('curve')\n"
    )
    outputs = {"outputs": ["plots/**", "*.txt", "no/*", "*.npz"]}
    cluster = {"worker": [f"{host.address}:0"] * 2}
    run = office.up(office.spec(script, lasts=True, checkpoints=outputs, cluster=cluster))
    run.wait_for_event("task_exited")  # the chief's
    office.release()
    assert run.end() == 0, run.said
    gathered = [p for p in (run.folder / "outputs").rglob("*") if p.is_file()]
    names = sorted(path.name for path in gathered)
    assert names == ["a.png", "b.txt", "half.npz", "late.txt"], run.said
    assert (run.folder / "outputs/plots/deep/a.png").read_text() == "plots/deep/a.png"
    assert (run.folder / "outputs/late.txt").read_text() == "late", "after the chief's end"
    assert (run.folder / "tensorboard/worker-0/events.out").read_text() == "curve"
    assert "nothing matches no/*" in run.said
    damage = "half.npz was copied, but is damaged: it is not a complete zip archive"
    assert damage in " ".join(run.said.split())


def holds(path: Path, text: str) -> bool:
    return path.is_file() and text.encode() in path.read_bytes()


def kill_ssh_to(office: Office, address: str) -> bool:
    return office.send(f"-- {address} ", signal.SIGKILL)


def tasks_of(host: Machine) -> list[str]:
    """Return the command lines of the host's tasks."""
    return [words for words in host.processes().values() if words.endswith("train.py")]
