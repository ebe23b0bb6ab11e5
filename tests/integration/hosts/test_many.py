"""A run on 64 hosts, all through the system's ssh, needs little memory and leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.lab.many import SSHD, many_hosts
from tests.lab.stand_ins import processes_with

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SSHD is None, reason="there is no sshd (Debian: openssh-server)"),
]

COUNT = 64
MOST_BYTES = 150e6


def test_a_run_on_sixty_four_hosts_ends_and_leaves_nothing(tmp_path: Path) -> None:
    with many_hosts(COUNT, tmp_path / "hosts") as hosts:
        spec = {
            "name": "many",
            "cluster": {"worker": [f"{address}:0" for address in hosts.addresses]},
            "job": {"command": ["sh", "-c", "echo here: $TFCLUSTER_TASK"]},
            "runtime": {"backend": "ssh", "hosts": {"*": {"python": sys.executable}}},
        }
        (tmp_path / "many.json").write_text(json.dumps(spec))
        # No preflight: 64 real hosts would do it on their own cores, not all on ours.
        command = [sys.executable, "-m", "tfcluster.cli.main", "up", "many.json", "--no-preflight"]
        env = {**hosts.environ, "TFCLUSTER_HOME": str(tmp_path / "home")}
        with (tmp_path / "said").open("wb") as said:
            run = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=said, stderr=said)
            most_bytes = 0
            while run.poll() is None:
                most_bytes = peak_bytes(run.pid) or most_bytes
                time.sleep(0.1)
        assert run.returncode == 0, (tmp_path / "said").read_text()
        assert 0 < most_bytes <= MOST_BYTES
        assert_all_ran_and_left_nothing(tmp_path, hosts.home)


def peak_bytes(pid: int) -> int:
    """Return the peak memory of a process (`ru_maxrss` begins with that of its parent)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(sizes[0]) * 1024 if sizes else 0


def assert_all_ran_and_left_nothing(folder: Path, home_there: Path) -> None:
    (run,) = (folder / "home" / "runs").iterdir()
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    for kind in ("node_connected", "task_started", "task_exited"):
        assert len([event for event in events if event["type"] == kind]) == COUNT
    logs = [path.read_text() for path in (run / "logs" / "attempt-1").glob("*.log")]
    assert sorted(logs) == sorted(f"here: worker:{number}\n" for number in range(COUNT))
    deadline = time.monotonic() + 20
    while (left := processes_with(str(home_there))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert not [*(home_there / ".cache" / "tfcluster" / "nodes").rglob("*")]
