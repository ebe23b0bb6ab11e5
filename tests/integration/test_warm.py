"""`--warm`: the next run starts with the imports of the last one, and nothing else of it."""

from __future__ import annotations

import os
import re
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from .commandline import CommandLine, wait_for
from .live import is_alive

WARM = ("run", "-n", "2", "--warm", "--set", "runtime.preload=on")
IMPORTER = "import numpy, os\nprint('seen', os.environ.get('EDITED'), os.getppid())\n"


class Kept:
    """Runs with `--warm`, and the agents that wait after them."""

    def __init__(self, shell: CommandLine) -> None:
        self.shell = shell
        shell.script("job.py", IMPORTER)

    def run(self, *options: str) -> bytes:
        """Run the job and return what its tasks printed."""
        done = self.shell.run(*WARM, *options, "job.py")
        assert done.code == 0, done.err
        return done.out

    def agent(self) -> int:
        (pid,) = {e["pid"] for e in self.shell.events() if e["type"] == "node_connected"}
        return int(pid)

    def socket(self) -> Path:
        """Return the socket of the only waiting agent."""
        folder = Path(self.shell.env["XDG_RUNTIME_DIR"], "tfcluster", "warm")
        (found,) = folder.glob("*.sock")
        return found

    def resting(self) -> list[int]:
        """Return the process ids of the waiting agents that `ps` shows."""
        return [int(pid) for pid in re.findall(r"\(pid (\d+)\)", self.shell.run("ps").err)]

    def end(self) -> str:
        return self.shell.run("down", "--warm").err


@pytest.fixture
def kept(shell: CommandLine) -> Any:
    kept = Kept(shell)
    yield kept
    kept.end()
    wait_for(lambda: not shell.left(), what="the end of the agents and their guards")


def test_the_next_run_is_served_by_the_same_agent_with_its_own_environment(kept: Kept) -> None:
    kept.run()
    first = kept.agent()
    assert kept.resting() == [first]
    kept.shell.env["EDITED"] = "twice"
    out = kept.run()
    assert kept.agent() == first
    assert out.count(f"seen twice {first}".encode()) == 2
    assert kept.resting() == [first]
    assert f"pid {first}" in kept.end()
    assert not is_alive(first)
    assert kept.resting() == []


def test_only_the_users_own_processes_can_reach_a_waiting_agent(kept: Kept) -> None:
    kept.run()
    socket = kept.socket()
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("change", ["environment", "limit", "packages"])
def test_an_agent_is_not_reused_if_what_an_import_may_have_read_changed(
    kept: Kept, change: str
) -> None:
    library = kept.shell.root / "lib"
    library.mkdir()
    kept.shell.env["PYTHONPATH"] = str(library)
    kept.run()
    first = kept.agent()
    if change == "environment":
        kept.shell.env["PYTHONHASHSEED"] = "7"
        kept.run()
    elif change == "packages":
        (library / "new.py").write_text("")
        kept.run()
    else:
        done = kept.shell.shell(f"ulimit -c 0; ulimit -n 900; tfcluster {' '.join(WARM)} job.py")
        assert done.code == 0, done.err
    assert kept.agent() != first
    assert sorted(kept.resting()) == sorted([first, kept.agent()])


def test_an_agent_waits_no_longer_than_warm_s(kept: Kept) -> None:
    kept.run("--set", "runtime.warm_s=0.2")
    wait_for(lambda: not is_alive(kept.agent()))
    assert kept.resting() == []


def test_a_run_whose_coordinator_is_killed_leaves_no_waiting_agent(kept: Kept) -> None:
    kept.shell.script("job.py", IMPORTER + "import time; time.sleep(60)\n")
    process = kept.shell.start(*WARM, "job.py")
    wait_for(lambda: b"seen" in _log(kept.shell))
    agent = kept.agent()
    os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(agent))
    assert kept.resting() == []
    assert kept.shell.run("prune", "--keep", "0", "-y").code == 0


def test_two_runs_at_the_same_time_have_an_agent_each_and_one_stays(kept: Kept) -> None:
    kept.run()
    first = kept.agent()
    kept.shell.script("job.py", IMPORTER + "import time; time.sleep(1)\n")
    both = [kept.shell.start(*WARM, "job.py") for _ in range(2)]
    for process in both:
        process.communicate(timeout=200)
        assert process.returncode == 0
    (left,) = kept.resting()
    assert is_alive(left)
    assert is_alive(first) == (left == first)


def test_down_warm_ends_a_hung_agent_by_its_process_id(kept: Kept) -> None:
    kept.run()
    os.kill(kept.agent(), signal.SIGSTOP)
    assert kept.resting() == []
    assert f"pid {kept.agent()}" in kept.end()
    wait_for(lambda: not is_alive(kept.agent()))


def test_a_waiting_agent_accepts_an_environment_of_any_size(kept: Kept) -> None:
    kept.shell.forks = False  # the fork server cannot take such an environment
    kept.shell.env |= {f"LARGE_{number}": "x" * 100_000 for number in range(5)}
    kept.run()
    first = kept.agent()
    kept.run()
    assert kept.agent() == first


def test_a_run_leaves_no_descriptor_in_its_agent(kept: Kept) -> None:
    counts = []
    for _ in range(3):
        kept.run()
        assert kept.resting() == [kept.agent()], "it has closed what was the run's"
        counts.append(len(os.listdir(f"/proc/{kept.agent()}/fd")))
    assert counts[1] == counts[2]


def test_warm_is_refused_for_a_script_that_imports_nothing(kept: Kept) -> None:
    kept.shell.script("job.py", "print('no imports')")
    done = kept.shell.run("run", "-n", "2", "--warm", "job.py")
    assert done.code == 2
    assert "import nothing" in done.err


def _log(shell: CommandLine) -> bytes:
    try:
        return shell.log("worker:0")
    except (OSError, ValueError):
        return b""
