"""A forked command is what the installed one is: whatever the tests and the kernel can see."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from .commandline import CommandLine, screen, wait_for
from .live import Live

pytestmark = pytest.mark.slow  # of the tests' own tool

WAITS = """
import os, time
print("up", flush=True)
while not os.path.exists("finish"):
    time.sleep(0.02)
"""
SEEN = ("Umask", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "CapEff")


def facts(pid: int) -> dict[str, object]:
    """What the kernel tells of a process that its program could notice."""
    proc = Path(f"/proc/{pid}")
    status = dict(line.partition(":\t")[::2] for line in (proc / "status").read_text().splitlines())
    return {
        **{name: status[name].strip() for name in SEEN},
        "descriptors": sorted(
            re.sub(r"#?\d+|True|False", "", link.rpartition("/")[2]) for link in open_files(proc)
        ),
        "cwd": os.readlink(proc / "cwd"),
        "limits": (proc / "limits").read_text(),
        "group and session": (os.getpgid(pid), os.getsid(pid)),
        "nice": os.getpriority(os.PRIO_PROCESS, pid),
    }


def open_files(proc: Path) -> list[str]:
    """Where its descriptors lead; one that is closed meanwhile is left out."""
    found = []
    for fd in (proc / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(fd))
    return found


@pytest.fixture
def waiting(shell: CommandLine) -> CommandLine:
    shell.script("waits.py", WAITS)
    return shell


def test_the_kernel_sees_no_difference(waiting: CommandLine) -> None:
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
    # Either may have a file open in the moment of a look.
    wait_for(lambda: facts(forked) == facts(installed), what="no difference")
    waiting.script("finish", "")
    for process in waiting.started:
        assert process.wait(20) == 0


@pytest.mark.parametrize("forks", [True, False])
def test_the_end_of_a_command_is_told_as_its_parent_would_see_it(
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
    assert reader.wait(10) == reader.poll() == -signal.SIGKILL


def test_a_terminal_is_its_own(waiting: CommandLine) -> None:
    with screen(waiting, "run", "-n", "1", "waits.py") as shown:
        wait_for(lambda: shown.read(0.1) and b"up" in shown.seen)
        pid = shown.process.pid
        assert os.getsid(pid) == os.getpgid(pid) == pid
        terminal = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[4])
        assert terminal == os.stat(f"/proc/{pid}/fd/0").st_rdev
        waiting.script("finish", "")
        assert shown.read_all() == 0


def test_another_interpreter_is_no_fork(waiting: CommandLine) -> None:
    """Some variables are read while Python starts: such a command is the installed one."""
    waiting.env["PYTHONUTF8"] = "0"

    process = waiting.start("run", "-n", "1", "waits.py")

    assert b"fork_server" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    waiting.script("finish", "")
    assert process.communicate(timeout=30)[0]
    assert process.returncode == 0
