"""`tfcluster join`: several on this machine, each with its own tasks, form one cluster."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .commandline import CommandLine, wait_for
from .gang import GREET
from .live import Live, free_ports

PEER = """
import json, os, socket, sys, time, zipfile
from tfcluster_workers import reporting
config = json.loads(os.environ["TF_CONFIG"])
print("config", json.dumps(config), flush=True)
me = os.environ["TFCLUSTER_TASK"]
own = config["cluster"][config["task"]["type"]][config["task"]["index"]]
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("127.0.0.1", int(own.rpartition(":")[2])))
listener.listen()
reporting.waiting_for_peers()
everybody = [address for job in config["cluster"].values() for address in job]
for address in everybody:
    while True:
        try:
            greeting = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
            break
        except OSError:
            time.sleep(0.02)
    greeting.sendall(own.encode())
    greeting.close()
heard = set()
while heard != set(everybody):
    heard |= {listener.accept()[0].recv(100).decode()} - {""}
reporting.ready()
folder = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
os.makedirs(folder, exist_ok=True)
with zipfile.ZipFile(f"{folder}/new", "w") as file:
    for name in ("metadata.json", "config.json", "model.weights.h5"):
        file.writestr(name, me)
os.rename(f"{folder}/new", f"{folder}/model-1.keras")
print("joined", flush=True)
"""
"""A job that finds its peers as TensorFlow would, and saves a checkpoint."""

FOLLOWS = "time.sleep(0.5); sys.exit('Collective ops is aborted by: somebody else')"
"""The end of a TensorFlow worker after another worker has died."""


def cluster(shell: CommandLine, ends: dict[str, str], **more: Any) -> tuple[str, list[int]]:
    """Write a spec with a worker for each of `ends`; return its name and the ports.

    `ends` maps each task to the code with which it ends.
    """
    ports = free_ports(len(ends))
    code = "".join(f"if me == {task!r}: {end}\n" for task, end in ends.items())
    shell.script("peer.py", PEER + code)
    spec = shell.spec("s.json", {"script": "peer.py"}, **more)
    value = json.loads(spec.read_text())
    value["cluster"] = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    spec.write_text(json.dumps(value))
    return spec.name, ports


def join(shell: CommandLine, spec: str, task: str, *more: str) -> Live:
    return Live(shell, "join", spec, "--task", task, *more, name=task.replace(":", ""))


def gathered(run: Live) -> list[Path]:
    return [*(run.folder / "checkpoints").rglob("*.keras")]


def test_two_joins_form_one_cluster_and_the_chiefs_gathers_the_checkpoint(
    shell: CommandLine,
) -> None:
    spec, ports = cluster(shell, {"worker:0": "pass", "worker:1": "pass"})
    first = join(shell, spec, "worker:0")
    wait_for(lambda: "waiting for worker:1" in said_of(shell, first), what="who is waited for")
    second = join(shell, spec, "worker:1")
    assert (first.end(), second.end()) == (0, 0), first.said() + second.said()
    for index, run in enumerate((first, second)):
        line = run.log(f"worker:{index}").splitlines()[0].removeprefix("config ")
        assert json.loads(line) == {
            "cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
            "task": {"type": "worker", "index": index},
        }
        assert [task["task"] for task in run.state()["tasks"]] == [f"worker:{index}"]
        assert f"worker:{1 - index} at 127.0.0.1:{ports[1 - index]}" in run.said()
    assert {path.name for path in gathered(first)} == {"model-1.keras"}
    assert not gathered(second)


SAYS_WHOM_IT_MET = f"{GREET}print('met', me, 'of', len(addresses), *addresses, flush=True)\n"


@pytest.mark.parametrize("launcher", ["TF_CONFIG", "Open MPI", "Flux"])
def test_processes_of_another_launcher_find_each_other(shell: CommandLine, launcher: str) -> None:
    """The spec has no cluster. Open MPI's variables are recorded, Flux's command is a stand-in."""
    shell.script("meet.py", SAYS_WHOM_IT_MET)
    shell.script("flux", "#!/bin/sh\necho localhost\n").chmod(0o755)
    port, _ = free_ports(2)
    spec = shell.spec("s.json", {"script": "meet.py", "hooks": "off"})
    value = json.loads(spec.read_text()) | {"runtime": {"ports": f"{port}-{port + 1}"}}
    del value["cluster"]
    spec.write_text(json.dumps(value))
    host = "localhost" if launcher == "Flux" else "127.0.0.1"
    addresses = [f"{host}:{port}", f"{host}:{port + 1}"]
    runs = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        environ = {
            "TF_CONFIG": {
                "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})
            },
            "Open MPI": {
                **dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), "2"),
                **dict.fromkeys(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), str(index)),
            },
            "Flux": {
                **{"FLUX_URI": "local:///flux", "FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": str(index)},
                **{"FLUX_TASK_LOCAL_ID": str(index), "PATH": f"{shell.cwd}:{shell.env['PATH']}"},
            },
        }[launcher]
        env = shell.env | environ
        runs.append(Live(shell, "join", spec.name, name=f"rank{index}", env=env))
    for index, run in enumerate(runs):
        assert run.end() == 0, run.said()
        assert run.log(f"worker:{index}") == f"met {index} of 2 {' '.join(addresses)}\n"
        assert launcher in run.said()


def said_of(shell: CommandLine, run: Live) -> str:
    """Return what `status` shows, in one line."""
    return re.sub(r"\s+", " ", shell.run("status", run.run_id).out.decode())


@pytest.mark.parametrize(
    ("end", "own_code"),
    [
        ("raise ValueError('its own')", 1),
        ("os.kill(os.getpid(), 9)", 1),
        ("sys.exit(42)", 1),
    ],
    ids=["exception", "signal", "preempted"],
)
def test_join_exits_with_1_if_its_task_failed_and_with_5_if_another_did(
    shell: CommandLine, end: str, own_code: int
) -> None:
    spec, _ = cluster(
        shell,
        {"worker:0": FOLLOWS, "worker:1": end},
        supervision={"restart_on_error": True, "max_restarts": 3, "backoff_s": 0},
    )
    first, second = join(shell, spec, "worker:0"), join(shell, spec, "worker:1")
    assert second.end() == own_code, second.said()
    assert first.end() == 5, first.said()
    assert "worker:1 failed first, on another machine" in first.said()
    for run in (first, second):
        assert {event.get("attempt", 1) for event in run.events()} == {1}
        assert not [event for event in run.events() if event["type"] == "restarting"]


def test_the_start_deadline_names_the_task_that_is_missing(shell: CommandLine) -> None:
    spec, ports = cluster(
        shell,
        {"worker:0": "pass", "worker:1": "pass", "worker:2": "pass"},
        supervision={"start_deadline_s": 3},
    )
    first, second = join(shell, spec, "worker:0"), join(shell, spec, "worker:1")
    for run in (first, second):
        assert run.end() == 4, run.said()
        assert f"worker:2 at 127.0.0.1:{ports[2]}: nothing listens there yet" in run.said()
        named = run.said().rpartition("did not find each other")[2].partition("→")[0]
        # The task that was started later may be missing for a moment, too.
        assert "worker:2" in re.findall(r"worker:\d", named)


def test_sigterm_of_a_scheduler_ends_the_tasks_and_exits_with_143(shell: CommandLine) -> None:
    spec, _ = cluster(shell, {"worker:0": "pass", "worker:1": "pass"})
    run = join(shell, spec, "worker:0")
    run.wait_for_line("config", "worker:0")
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 143, run.said()
    assert run.state()["status"] == "interrupted"


def test_join_d_returns_when_its_own_tasks_run(shell: CommandLine) -> None:
    spec, _ = cluster(shell, {"worker:0": "pass", "worker:1": "pass"})
    ids = []
    for task in ("worker:0", "worker:1"):
        done = shell.run("join", "-d", "--task", task, spec)
        assert done.code == 0, done.err
        ids.append(done.out.decode().strip())
    for run in ids:
        assert shell.run("wait", run).code == 0


def test_a_task_given_with_task_may_have_any_address(shell: CommandLine) -> None:
    """Behind an address translation no interface has the address to which others connect."""
    shell.script("say.py", "import os; print('config', os.environ['TF_CONFIG'])")
    spec = shell.spec("s.json", {"script": "say.py", "hooks": "off"})
    (port,) = free_ports(1)
    value = json.loads(spec.read_text())
    value["cluster"] = {"worker": ["198.51.100.1:2222", f"198.51.100.2:{port}"]}
    spec.write_text(json.dumps(value))
    run = join(shell, spec.name, "worker:1")
    assert run.end() == 0, run.said()
    config = json.loads(run.log("worker:1").removeprefix("config "))
    assert config == {"cluster": value["cluster"], "task": {"type": "worker", "index": 1}}
    exports = shell.run("env", spec.name, "worker:0").out.decode()
    (path,) = re.findall(r"export PYTHONPATH='?([^'\n]*)", exports)
    assert (Path(path) / "tfcluster_workers").is_dir(), "it is to be started here"


def test_a_task_started_with_the_output_of_env_finds_one_that_joined(shell: CommandLine) -> None:
    spec, _ = cluster(shell, {"worker:0": "pass", "worker:1": "pass"})
    first = join(shell, spec, "worker:0")
    exports = shell.run("env", spec, "worker:1")
    assert exports.code == 0, exports.err
    line = f"{exports.out.decode()}\nexec '{shell.env['VIRTUAL_ENV']}/bin/python' peer.py"
    by_hand = subprocess.run(
        ["bash", "-c", line], env=shell.env, cwd=shell.cwd, capture_output=True, timeout=200
    )
    assert by_hand.returncode == 0, by_hand.stderr
    assert first.end() == 0, first.said()
