"""`tfcluster tensorboard` and `up --tensorboard`: a real TensorBoard that ends with its starter."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.forked import COMMAND

from .commandline import CommandLine, wait_for
from .live import Live

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]

WRITES = """
import os, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter(os.environ["TFCLUSTER_TENSORBOARD_DIR"])
for step in range(3):
    value = Summary.Value(tag="my_loss", simple_value=1.0 / (step + 1))
    writer.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=[value])))
writer.close()
print("written", flush=True)
while not os.path.exists("finish"):
    time.sleep(0.05)
"""


def test_a_live_runs_curves_are_served_on_loopback_until_it_ends(shell: CommandLine) -> None:
    shell.script("writes.py", WRITES)
    run = Live(shell, "run", "--tensorboard", "-n", "1", "writes.py", name="one")
    url = wait_for(lambda: run.state()["tensorboard"], what="TensorBoard", timeout=200)
    assert url.startswith("http://127.0.0.1:")
    server = _server_of(run.process.pid)
    listening = [c.laddr.ip for c in server.net_connections() if c.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]
    wait_for(lambda: "my_loss" in _tags(url).get("worker-0", ()), what="a curve")
    wait_for(lambda: url in run.said(), what="its address")

    shell.script("finish", "")
    assert run.end() == 0
    server.wait(30)
    assert run.state()["tensorboard"] is None


def test_it_ends_when_the_coordinator_is_killed(shell: CommandLine) -> None:
    shell.script("writes.py", WRITES)
    run = Live(shell, "run", "--tensorboard", "-n", "1", "writes.py", name="one")
    wait_for(lambda: run.state()["tasks"][0]["pid"], what="the task")
    server = wait_for(lambda: _servers_below(run.process.pid), what="TensorBoard")[0]
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    server.wait(30)
    assert shell.run("down", "one").code == 0, "removes its socket"


def test_several_runs_are_compared_by_their_ids_and_ctrl_c_ends_it(shell: CommandLine) -> None:
    shell.script("writes.py", WRITES)
    shell.script("finish", "")
    for name in ("one", "two"):
        assert shell.run("run", "--name", name, "-n", "1", "writes.py").code == 0
    ids = sorted(path.name for path in shell.home.glob("runs/*"))

    process = subprocess.Popen(
        [COMMAND, "tensorboard", "one", "two", "--port", "0"],
        env=shell.env,
        cwd=shell.cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    shell.started.append(process)
    assert process.stdout is not None
    url = process.stdout.readline().decode().strip()
    expected = [f"{run}/worker-0" for run in ids]
    wait_for(lambda: sorted(_tags(url)) == expected, what="both runs", timeout=200)
    server = _server_of(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    server.wait(30)


def test_without_tensorboard_the_line_that_installs_it_is_given_and_nothing_is_started(
    shell: CommandLine, tmp_path: Path
) -> None:
    """The Pythons are this one's, without its packages."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    hide = "import sys; sys.executable = sys.argv[1]; sys.argv[1:2] = []\n"
    hide += "from tfcluster.cli.main import entry; entry()"
    shell.script("task.py", "")
    python = bare / "bin" / "python"
    options = ("--python", str(python), "--tensorboard", "-n", "1")
    done = subprocess.run(
        [sys.executable, "-c", hide, str(python), "run", *options, "task.py"],
        env=shell.env,
        cwd=shell.cwd,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert f"→ {python} -m pip install tensorboard" in done.stderr
    assert not list(shell.home.glob("runs/*"))


def _tags(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}data/plugin/scalars/tags", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _servers_below(pid: int) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "tensorboard" in " ".join(process.cmdline()):
                found.append(process)
    return found


def _server_of(pid: int) -> psutil.Process:
    (server,) = _servers_below(pid)
    return server
