"""`runtime.network: "private"` closes TensorFlow's ports, which ask for no password."""

from __future__ import annotations

import json
import os
import socket

import pytest

from .commandline import CommandLine, wait_for
from .gang import MEET
from .live import Live
from .ordinary_user import OTHER_USER, as_ordinary_user

SERVER = (
    MEET
    + """
with open(f"written-by-{me}", "w") as file:
    file.write(os.readlink("/proc/self/ns/net"))
os.write(1, b"all peers answer\\n")
needed = ["finish", *(f"written-by-{i}" for i in range(len(addresses)))]
while not all(map(os.path.exists, needed)):
    time.sleep(0.05)
"""
)

PREPARE = """
import os
with open("prepared", "w") as file:
    file.write(os.readlink("/proc/self/ns/net"))
"""


def own_addresses() -> list[str]:
    """Return this machine's addresses: loopback, and that of the default route if there is one."""
    found = ["127.0.0.1"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; TEST-NET-1 (RFC 5737)
            found.append(probe.getsockname()[0])
        except OSError:
            pass
    return found


def answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 5).close()
    except OSError:
        return False
    return True


def ports_of(run: Live) -> list[int]:
    """Return the tasks' ports; none before the state has all, which may be later than a line."""
    ports = [int(task["address"].rpartition(":")[2]) for task in run.state()["tasks"]]
    return ports if all(ports) else []


@pytest.mark.parametrize("network", ["private", "host"])
def test_tasks_in_a_private_network_do_not_answer_from_outside(
    shell: CommandLine, network: str
) -> None:
    shell.script("server.py", SERVER)
    shell.script("prepare.py", PREPARE)
    job = {"script": "server.py", "prepare": {"script": "prepare.py"}}
    shell.spec("spec.json", job, runtime={"network": network})
    run = Live(shell, "up", "spec.json")
    run.wait_for_line("all peers answer")
    ports = wait_for(lambda: ports_of(run), what="the ports in the state")
    heard = {answers(address, port) for address in own_addresses() for port in ports}
    assert heard == {network == "host"}
    assert ("none: the network is private" in run.said()) is (network == "private")
    (shell.cwd / "finish").touch()
    assert run.end() == 0, run.said()
    ours = os.readlink("/proc/self/ns/net")
    assert (shell.cwd / "prepared").read_text() == ours, "prepare needs the internet"
    inside = {(shell.cwd / f"written-by-{i}").read_text() for i in range(2)}
    assert len(inside) == 1
    assert (inside == {ours}) is (network == "host")


def test_two_private_runs_may_use_the_same_fixed_ports(shell: CommandLine) -> None:
    shell.script("server.py", SERVER)
    cluster = {"worker": ["localhost:2222", "localhost:2223"]}
    spec = {"cluster": cluster, "job": {"script": "server.py"}, "runtime": {"network": "private"}}
    (shell.cwd / "spec.json").write_text(json.dumps({"name": "s", **spec}))
    runs = [Live(shell, "up", "spec.json", name=name) for name in "ab"]
    for run in runs:
        run.wait_for_line("all peers answer")
    assert [run.process.poll() for run in runs] == [None, None], "both at the same time"
    (shell.cwd / "finish").touch()
    assert [run.end() for run in runs] == [0, 0]


def test_an_ordinary_user_gets_a_private_network_and_owns_the_written_files(
    shell: CommandLine,
) -> None:
    shell.script("server.py", SERVER)
    shell.script("prepare.py", PREPARE)
    (shell.cwd / "finish").touch()
    job = {"script": "server.py", "prepare": {"script": "prepare.py"}}
    shell.spec("spec.json", job, runtime={"network": "private"})
    done = as_ordinary_user(shell, "up", "spec.json")
    assert done.code == 0, done.err
    assert "none: the network is private" in done.err
    ours = os.readlink("/proc/self/ns/net")
    assert (shell.cwd / "prepared").read_text() == ours
    assert (shell.cwd / "written-by-0").read_text() not in ("", ours)
    owner = os.geteuid() or OTHER_USER
    written = [shell.cwd / "prepared", shell.cwd / "written-by-1", shell.last_run()]
    assert {path.stat().st_uid for path in written} == {owner}


def test_an_address_outside_the_private_network_is_refused_with_a_hint(shell: CommandLine) -> None:
    shell.script("server.py", SERVER)
    spec = {"cluster": {"worker": ["192.0.2.7:2222"]}, "job": {"script": "server.py"}}
    spec |= {"runtime": {"network": "private", "backend": "local"}}
    (shell.cwd / "spec.json").write_text(json.dumps(spec))
    refused = shell.run("up", "spec.json")
    assert refused.code == 3
    assert "a private network cannot reach 192.0.2.7 (worker:0)" in refused.err
    assert "cluster.worker=2" in refused.err
