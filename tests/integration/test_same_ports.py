"""A second run on the same fixed port is refused with the holder's name; the first continues."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from .commandline import CommandLine
from .live import FAMILY, Family, Live, free_ports, is_alive

ORPHAN = """
import os, socket, sys, time
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen()
os.write(1, b"listening\\n")
time.sleep(300)
"""


def fixed(shell: CommandLine, ports: list[int]) -> str:
    shell.script("family.py", FAMILY)
    spec = shell.spec("fixed.json", {"script": "family.py"})
    value = json.loads(spec.read_text())
    value["cluster"] = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    spec.write_text(json.dumps(value))
    return spec.name


def test_the_second_run_is_refused_and_the_first_is_undisturbed(shell: CommandLine) -> None:
    ports = free_ports(2)
    spec = fixed(shell, ports)
    first = Live(shell, "up", spec, name="first")
    family = Family(first)

    second = shell.run("up", "--name", "second", spec)

    assert first.process.poll() is None, "the first must still train"
    assert second.code == 3, second.err
    assert str(ports[0]) in second.err
    assert first.run_id in second.err
    (pid,) = map(int, re.findall(r"pid (\d+)", second.err))
    assert pid in first.agents() or pid in family.pids
    assert is_alive(pid)
    assert "Traceback" not in second.err
    shell.script("finish", "")
    assert first.end() == 0, first.said()
    family.assert_gone()
    assert {task["state"] for task in first.state()["tasks"]} == {"succeeded"}


@pytest.fixture(params=["r-20260101-000000-abcd", None], ids=["of-a-run", "stranger"])
def orphan(
    request: pytest.FixtureRequest, shell: CommandLine
) -> Iterator[tuple[int, int, str | None]]:
    """A process that listens with SO_REUSEPORT, as a leftover task of a lost run would."""
    (port,) = free_ports(1)
    env = dict(os.environ) | ({"TFCLUSTER_RUN_ID": request.param} if request.param else {})
    process = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(port)], env=env, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        yield port, process.pid, request.param
    finally:
        process.kill()
        process.communicate()


def test_a_live_orphan_on_the_port_is_named(
    shell: CommandLine, orphan: tuple[int, int, str | None]
) -> None:
    port, pid, run_id = orphan
    spec = fixed(shell, [*free_ports(1), port])

    done = shell.run("up", spec)

    assert done.code == 3, done.err
    assert f":{port} (worker:1) is in use" in done.err
    assert f"pid {pid}" in done.err
    assert (run_id or "write another port") in done.err
    assert is_alive(pid), "nobody may touch a stranger's process"
    assert not list(shell.last_run().rglob("worker-*.log")), "nothing was started"


def test_runs_with_automatic_ports_at_the_same_time_never_share_one(shell: CommandLine) -> None:
    shell.script("family.py", FAMILY)
    runs = [Live(shell, "run", "-n", "2", "family.py", name=f"r{n}") for n in range(3)]
    ports = [port for run in runs for port in Family(run).ports]

    assert len(set(ports)) == len(ports) == 6
    shell.script("finish", "")
    assert [run.end() for run in runs] == [0, 0, 0]
