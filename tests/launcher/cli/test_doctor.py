"""`tfcluster doctor` on this machine reports problems and their fixes before a start."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launcher.cli.conftest import Forked


def written(folder: Path, port: int = 0, **sections: object) -> str:
    (folder / "train.py").write_text("print(1)\n")
    cluster = {"worker": [f"127.0.0.1:{port}"]}
    spec = {"cluster": cluster, "job": {"script": "train.py"}, **sections}
    (folder / "spec.json").write_text(json.dumps(spec))
    return "spec.json"


@pytest.mark.pinned  # TensorFlow
@pytest.mark.linux("the range of ports is in /proc")
def test_without_a_spec_this_machine_is_checked(tmp_path: Path, forked: Forked) -> None:
    done = forked("doctor", https_proxy="http://anna:secret@proxy:8080")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert sys.prefix in rows["Python path"]
    assert {"Python", "TensorFlow", "NumPy", "GPUs", "cores", "disk", "port range"} <= set(rows)
    assert "https_proxy: not passed to tasks" in rows["proxies"]
    assert "secret" not in done.stdout
    assert not (tmp_path / "home").exists()


def test_a_python_without_tensorflow_is_a_problem(tmp_path: Path, forked: Forked) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "bare"], cwd=tmp_path, check=True
    )
    done = forked("doctor", "--python", "bare")
    assert done.returncode == 3
    assert "its Python has no TensorFlow\n  → name a Python that has it" in done.stdout


@pytest.mark.linux("the holder of a port is found in /proc")
def test_a_port_in_use_and_an_unwritable_folder_are_reported_together(
    tmp_path: Path, forked: Forked
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as thief:
        port = thief.getsockname()[1]
        spec = written(tmp_path, port, checkpoints={"dir": "/proc/exp"})
        done = forked("doctor", spec, "--json")
    assert done.returncode == 3
    report = json.loads(done.stdout)
    assert not report["ok"]
    problems = {finding["check"]: finding["what"] for finding in report["findings"]}
    assert (
        f"port 127.0.0.1:{port} (worker:0) is in use: held by pid {os.getpid()}"
        in problems["ports"]
    )
    assert problems["folders"].startswith("/proc/exp cannot be written")


def test_a_missing_gpu_stops_doctor_and_up_and_is_listed_by_plan(
    tmp_path: Path, forked: Forked
) -> None:
    spec = written(tmp_path, resources={"gpus": [1023]})
    asked = "resources.gpus requests GPU 1023, but this machine has"
    for command, code in (("doctor", 3), ("up", 3), ("plan", 0)):
        done = forked(command, spec)
        assert done.returncode == code, done.stderr
        assert asked in done.stdout + done.stderr
    assert not (tmp_path / "home" / "runs").exists()


@pytest.mark.linux("it makes /proc/exp an unwritable folder")
def test_up_refuses_with_the_same_table(tmp_path: Path, forked: Forked) -> None:
    spec = written(tmp_path, checkpoints={"dir": "/proc/exp"})
    for more in ([], ["-d"]):
        done = forked("up", spec, *more)
        assert (done.returncode, done.stdout) == (3, "")
        assert "local: /proc/exp cannot be written" in done.stderr
        assert "1 problem to fix before a start" in done.stderr
        assert (
            "tfcluster: nothing was started\n  → check again: tfcluster doctor SPEC" in done.stderr
        )
        assert done.stderr.count("cannot be written") == 1
    done = forked("up", spec, "--no-preflight")
    assert "cannot be written" not in done.stderr


def test_all_checks_pass_for_a_good_spec_and_nothing_is_started(
    tmp_path: Path, forked: Forked
) -> None:
    done = forked("doctor", written(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "All checks passed" in done.stdout
    assert not (tmp_path / "home").exists()
