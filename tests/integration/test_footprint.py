"""A run needs little memory and CPU time beside its tasks; small commands import little."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .commandline import CommandLine, wait_for
from .live import Live

MOST_KB = 80_000
IDLE = 0.01
"""The allowed share of one core for coordinator, agent and guard together."""
WATCHED_S = 5.0
TASK = "import time; print('up', flush=True); time.sleep(300)"


@pytest.fixture
def family(shell: CommandLine) -> Iterator[list[int]]:
    """Process ids of coordinator, agent and guard while two tasks run."""
    shell.forks = False
    shell.script("task.py", TASK)
    run = Live(shell, "run", "-n", "2", "task.py")
    run.wait_for_line("up")
    wait_for(lambda: run.state()["status"] == "running")
    time.sleep(1.0)  # the work of the start is done
    yield [run.process.pid, *run.agents()]
    run.process.terminate()
    assert run.end() == 143


def rss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.pinned
def test_memory_and_idle_cpu_time_of_a_run_are_small(family: list[int]) -> None:
    sizes = [rss_kb(pid) for pid in family]
    before = [cpu_s(pid) for pid in family]
    time.sleep(WATCHED_S)
    used = sum(cpu_s(pid) for pid in family) - sum(before)

    print(f"RSS {sizes} kB = {sum(sizes)}; idle {100 * used / WATCHED_S:.2f} % of a core")
    assert sum(sizes) < MOST_KB
    # The clock of /proc ticks every 10 ms: one tick more or less does not count.
    assert used <= IDLE * WATCHED_S + 0.02


SMALL = (
    "--version", "--help", "ps --json", "ps -a --json", "logs r", "status --json r",
    "checkpoints --json r", "down r", "wait r", "rm r", "prune -y --keep 0",
)  # fmt: skip
RUN_AND_TELL = """
import sys
sys.argv = ["tfcluster", *sys.argv[1:]]
from tfcluster.cli.main import main
try:
    main()
finally:
    heavy = {"pydantic", "rich.console"} & set(sys.modules)
    sys.stderr.write("\\nHEAVY " + " ".join(heavy))
"""


@pytest.mark.slow
def test_small_commands_import_no_slow_modules(shell: CommandLine) -> None:
    shell.script("task.py", "print('done')")
    run = Live(shell, "run", "-n", "1", "task.py")
    assert run.end() == 0, run.said()

    for words in SMALL:
        done = subprocess.run(
            [sys.executable, "-c", RUN_AND_TELL, *words.split()],
            env=shell.env,
            cwd=shell.cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        assert done.stderr.rpartition("HEAVY")[2].strip() == "", words
    assert shell.runs() == [], "rm has deleted it"
