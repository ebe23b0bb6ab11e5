"""Hundreds of tasks on fifty stand-ins for hosts survive a crash and a restart, and stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.lab.stand_ins import StandIns, processes_with, stand_ins

pytestmark = pytest.mark.slow

NODES, TASKS = 50, 300
HANG_S = 240.0


@contextmanager
def running(hosts: StandIns, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    spec = {
        "name": "large",
        "cluster": {"worker": [f"{hosts.addresses[i % NODES]}:0" for i in range(TASKS)]},
        "job": {"command": ["sleep", "600"]},
        "supervision": {"backoff_s": 0},
        "runtime": {"backend": "ssh", "hosts": {"*": {"python": sys.executable}}},
    }
    (folder / "large.json").write_text(json.dumps(spec))
    env = {**hosts.environ, "TFCLUSTER_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "tfcluster.cli.main", "up", "large.json"]
    with (folder / "said").open("wb") as said:
        run = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=said)
        try:
            yield run
        finally:
            for _ in range(2):  # the second kills at once, so that nothing stays on the nodes
                run.send_signal(signal.SIGINT)
                time.sleep(0.2)
            run.wait(HANG_S)


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the complete events of the runs: the last line may still be incomplete."""
    lines = [
        line
        for path in folder.glob("home/runs/*/events.jsonl")
        for line in path.read_bytes().split(b"\n")[:-1]
    ]
    return [json.loads(line) for line in lines]


def started(folder: Path, attempt: int, run: subprocess.Popen[bytes]) -> dict[str, int]:
    """Wait until all tasks of the attempt have started; return their process ids."""
    deadline = time.monotonic() + HANG_S
    pids: dict[str, int] = {}
    while len(pids) < TASKS:
        assert run.poll() is None, (folder / "said").read_text()
        assert time.monotonic() < deadline, f"{len(pids)} of {TASKS} in attempt {attempt}"
        time.sleep(0.2)
        mine = [e for e in events(folder) if e.get("attempt") == attempt]
        pids = {e["task"]: e["pid"] for e in mine if e["type"] == "task_started"}
    return pids


def test_hundreds_of_tasks_restart_after_a_crash_and_leave_nothing(tmp_path: Path) -> None:
    hosts = stand_ins(NODES, tmp_path / "hosts")
    with running(hosts, tmp_path) as run:
        os.kill(started(tmp_path, 1, run)["worker:7"], signal.SIGKILL)
        started(tmp_path, 2, run)
        run.send_signal(signal.SIGINT)
        assert run.wait(HANG_S) == 130
    recorded = events(tmp_path)
    assert [e["seq"] for e in recorded] == [*range(1, len(recorded) + 1)]
    ended = [(e["task"], e["attempt"]) for e in recorded if e["type"] == "task_exited"]
    assert len(ended) == len(set(ended)) == 2 * TASKS
    (restart,) = (e for e in recorded if e["type"] == "restarting")
    assert restart["reason"].startswith("worker:7: ")
    deadline = time.monotonic() + HANG_S
    while (left := processes_with(str(hosts.folder))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert not [*hosts.folder.glob("*/.cache/tfcluster/nodes/*/*")]
