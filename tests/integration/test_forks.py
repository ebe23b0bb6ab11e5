"""A command from the tests' fork server looks like the installed one to tests and kernel."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.forked import ForkServer

from .commandline import CommandLine, screen, wait_for
from .live import Live

pytestmark = pytest.mark.slow  # they test a tool of the tests

WAITS = """
import os, time
print("up", flush=True)
while not os.path.exists("finish"):
    time.sleep(0.02)
"""
STATUS_FIELDS = ("Umask", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "CapEff")


def facts(pid: int) -> dict[str, object]:
    """Return what the kernel reports of a process and its program could notice."""
    proc = Path(f"/proc/{pid}")
    status = dict(line.partition(":\t")[::2] for line in (proc / "status").read_text().splitlines())
    return {
        **{name: status[name].strip() for name in STATUS_FIELDS},
        "descriptors": sorted(
            re.sub(r"#?\d+|True|False", "", link.rpartition("/")[2]) for link in open_files(proc)
        ),
        "cwd": os.readlink(proc / "cwd"),
        "limits": (proc / "limits").read_text(),
        "group and session": (os.getpgid(pid), os.getsid(pid)),
        "nice": os.getpriority(os.PRIO_PROCESS, pid),
    }


def open_files(proc: Path) -> list[str]:
    """Return where the process's descriptors lead, without any closed meanwhile."""
    found = []
    for fd in (proc / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(fd))
    return found


@pytest.fixture
def waiting(shell: CommandLine) -> CommandLine:
    shell.script("waits.py", WAITS)
    return shell


def test_a_forked_command_looks_like_the_installed_one_to_the_kernel(waiting: CommandLine) -> None:
    pids = []
    for forks in (True, False):
        waiting.forks = forks
        run = Live(waiting, "run", "-n", "1", "waits.py", name=f"forks-{forks}")
        run.wait_for_line("up", "worker:0")
        wait_for(lambda run=run: run.state()["status"] == "running")  # type: ignore[misc]
        pids.append(run.process.pid)
        is_fork = b"fork_server" in Path(f"/proc/{run.process.pid}/cmdline").read_bytes()
        assert is_fork is forks
    forked, installed = pids
    # Either may have a file open at the moment of a check.
    wait_for(lambda: facts(forked) == facts(installed), what="no difference")
    waiting.script("finish", "")
    for process in waiting.started:
        assert process.wait(60) == 0


@pytest.mark.parametrize("forks", [True, False])
def test_the_end_of_a_command_is_reported_as_to_its_parent(
    waiting: CommandLine, forks: bool
) -> None:
    waiting.forks = forks
    assert waiting.run("--version").code == 0
    assert waiting.run("nonsense").code == 2
    echo = waiting.run("validate", "--json", "-", input=b"{}")
    assert (echo.code, echo.out[:1], echo.err) == (2, b"{", "")

    reader = waiting.start("validate", "-", stdin=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        reader.wait(0.2)
    assert reader.poll() is None
    reader.kill()
    assert reader.wait(60) == reader.poll() == -signal.SIGKILL


def test_threads_that_start_the_first_commands_at_once_share_one_server(
    waiting: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every thread gets the process of its own command, and none starts a second server."""
    waiting.server = new = ForkServer()

    def slow_pair(*args: int, pair: Any = socket.socketpair) -> tuple[socket.socket, socket.socket]:
        time.sleep(0.1)  # time for the other threads to come here, too
        made: tuple[socket.socket, socket.socket] = pair(*args)
        return made

    monkeypatch.setattr(socket, "socketpair", slow_pair)
    names = [f"threads-{number}" for number in range(6)]

    def start(name: str) -> subprocess.Popen[bytes]:
        return waiting.start("validate", "-", stdin=subprocess.PIPE, cwd=waiting.cwd / name)

    for name in names:
        (waiting.cwd / name).mkdir()
    with ThreadPoolExecutor(len(names)) as pool:
        processes = list(pool.map(start, names))
    parents = set()
    for name, process in zip(names, processes, strict=True):
        proc = Path(f"/proc/{process.pid}")
        wait_for(lambda proc=proc, name=name: os.readlink(proc / "cwd").endswith(name))  # type: ignore[misc]
        parents.add((proc / "stat").read_text().rpartition(")")[2].split()[1])
        process.kill()
        process.communicate(timeout=200)
    assert len(parents) == 1
    new.close()


def test_a_forked_command_has_its_own_controlling_terminal(waiting: CommandLine) -> None:
    with screen(waiting, "run", "-n", "1", "waits.py") as shown:
        wait_for(lambda: shown.read(0.1) and b"up" in shown.seen)
        pid = shown.process.pid
        assert os.getsid(pid) == os.getpgid(pid) == pid
        terminal = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[4])
        assert terminal == os.stat(f"/proc/{pid}/fd/0").st_rdev
        waiting.script("finish", "")
        assert shown.read_all() == 0


def test_a_command_with_other_interpreter_settings_is_not_forked(waiting: CommandLine) -> None:
    """Python reads some variables while it starts, so with them the installed command is run."""
    waiting.env["PYTHONUTF8"] = "0"

    process = waiting.start("run", "-n", "1", "waits.py")

    assert b"fork_server" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    waiting.script("finish", "")
    assert process.communicate(timeout=30)[0]
    assert process.returncode == 0
