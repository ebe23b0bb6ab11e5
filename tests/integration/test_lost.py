"""A run whose coordinator died: every command reports it, and `down` ends leftover processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from .commandline import CommandLine, wait_for
from .live import FAMILY, Family, InBackground, free_ports, is_alive, the_status

ESCAPES = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"],
                         start_new_session=True, cwd="/")
os.write(1, f"{child.pid} escaped\\n".encode())
import time
time.sleep(300)
"""


def lose(run: InBackground, *, stopped: bool) -> None:
    """Kill the coordinator; `stopped`: agent and guard are stopped first and clean up nothing."""
    pids = run.agents()
    if stopped:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    os.kill(run.coordinator(), signal.SIGKILL)
    wait_for(lambda: not is_alive(run.coordinator()))
    if not stopped:
        wait_for(lambda: not any(map(is_alive, pids)))


@pytest.fixture
def run(shell: CommandLine) -> InBackground:
    shell.script("family.py", FAMILY)
    return InBackground(shell, "run", "-n", "2", "family.py")


def test_down_ends_leftover_processes_and_records_the_end(
    shell: CommandLine, run: InBackground
) -> None:
    family = Family(run)
    agents = run.agents()
    lose(run, stopped=True)
    assert len(family.living()) == 6
    assert the_status(shell, run.id)["status"] == "lost"
    listed = shell.run("ps")
    assert f"tfcluster down {run.id[-4:]}" in listed.err
    assert f"tfcluster down {run.id}" in shell.run("status", run.id).out.decode()

    done = shell.run("down", run.id)

    assert done.code == 0, done.err
    assert f"{run.id} is lost: its coordinator died" in done.err
    assert "worker:1 (pid " in done.err
    assert f"agent (pid {agents[0]})" in done.err
    family.assert_gone()
    assert not any(map(is_alive, agents))
    assert f"{run.id}"[-40:] in done.err, "the sockets that were removed"
    state = run.state()
    assert state["status"] == "lost"
    assert state["started_at"] < state["ended_at"] <= time.time()
    assert {task["state"] for task in state["tasks"]} == {"lost"}
    assert "cleans up" not in shell.run("ps").err
    again = shell.run("down", run.id)
    assert (again.code, again.err) == (0, f"{run.id} is lost and was already cleaned up\n")


def test_down_removes_the_socket_that_is_left_after_agent_and_guard_ended(
    shell: CommandLine, run: InBackground
) -> None:
    family = Family(run)
    lose(run, stopped=False)
    family.assert_gone()

    done = shell.run("down", run.id)

    assert done.code == 0
    assert "ended" not in done.err
    assert f"removed {shell.root}/run/tfcluster/{run.id[-40:]}.ctl" in done.err


def test_a_process_that_left_its_group_is_found_by_its_environment(shell: CommandLine) -> None:
    shell.script("task.py", ESCAPES)
    run = InBackground(shell, "run", "-n", "1", "task.py")
    run.wait_for_line("escaped", "worker:0")
    pid = int(run.log("worker:0").split()[0])
    lose(run, stopped=True)
    for agent_pid in run.agents():
        os.kill(agent_pid, signal.SIGKILL)
    assert is_alive(pid)

    done = shell.run("down", run.id)

    assert f"worker:0 (pid {pid})" in done.err
    wait_for(lambda: not is_alive(pid))


def test_down_never_touches_foreign_processes(shell: CommandLine, run: InBackground) -> None:
    """Another run, a process that got a recorded pid, a process with a similar environment."""
    family = Family(run)
    other = InBackground(shell, "run", "-n", "1", "family.py", name="other")
    others = Family(other, ["worker:0"])
    stranger = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(300)"],
        env=shell.env | {"TFCLUSTER_RUN_ID": run.id + "x"},
    )
    lose(run, stopped=True)
    agent = run.agents()[0]
    state = run.state()
    state["agents"]["local"] = {"pid": stranger.pid, "guard_pid": stranger.pid}
    state["tasks"][0]["pid"] = stranger.pid
    (run.folder / "state.json").write_text(json.dumps(state))

    done = shell.run("down", run.id)

    assert done.code == 0
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
    family.assert_gone()
    assert not is_alive(agent), "found without its recorded number"
    assert len(others.living()) == 3
    assert the_status(shell, other.id)["status"] == "running"
    other.down()


def test_down_frees_the_ports_for_the_next_run(shell: CommandLine) -> None:
    shell.script("family.py", FAMILY)
    spec = shell.spec("s.json", {"script": "family.py"})
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    spec.write_text(json.dumps(json.loads(spec.read_text()) | {"cluster": {"worker": workers}}))
    run = InBackground(shell, "up", spec.name)
    Family(run)
    locks = Path(shell.root, "run", "tfcluster", "ports")
    lose(run, stopped=True)
    assert len(list(locks.iterdir())) == 2
    shell.run("down", run.id)
    assert not list(locks.iterdir())
    again = InBackground(shell, "up", spec.name, name="again")
    again.down()


def test_after_a_reboot_a_run_is_lost(shell: CommandLine, run: InBackground) -> None:
    """The process that now has its pid and start time belongs to another boot."""
    Family(run)
    before = run.state()
    run.down()
    for path in [run.folder / "state.json"]:
        me = psutil.Process()
        stat = Path(f"/proc/{me.pid}/stat").read_text().rpartition(")")[2].split()
        state = before | {"pid": me.pid, "pid_start": int(stat[19])}
        path.write_text(json.dumps(state))
        assert the_status(shell, run.id)["status"] == "running"
        path.write_text(json.dumps(state | {"boot_id": "another"}))
    assert the_status(shell, run.id)["status"] == "lost"
    assert shell.run("wait", run.id).code == 3
    assert shell.run("down", run.id).code == 0
    assert me.is_running()


def test_down_finds_a_coordinator_in_another_runtime_folder(
    shell: CommandLine, run: InBackground
) -> None:
    """A desktop session (`up`) and ssh (`down`) have different values of XDG_RUNTIME_DIR."""
    Family(run)
    (shell.root / "xdg").mkdir()
    done = shell.run("down", run.id, env=shell.env | {"XDG_RUNTIME_DIR": str(shell.root / "xdg")})
    assert done.code == 0, done.err
    assert run.state()["status"] == "interrupted"
