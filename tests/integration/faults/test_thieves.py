"""Runs keep the ports they chose while another process binds free ports on the same machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.integration.commandline import CommandLine, Done

from .scene import copy_jobs

RUNS, AT_ONCE = 20, 2
THIEF = Path(__file__).with_name("thief.py")


@pytest.fixture
def thief() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, THIEF], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_twenty_runs_keep_their_ports_beside_a_port_thief(
    shell: CommandLine, thief: subprocess.Popen[str]
) -> None:
    copy_jobs(shell.cwd)
    job = {"script": "stub_worker.py", "args": ["--steps=10", "--step-s=0.001"]}
    spec = shell.spec("chosen.json", job, checkpoints={"gather": False})

    def run_numbered(number: int) -> Done:
        return shell.run("up", "--name", f"r{number}", str(spec), timeout=120)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(run_numbered, range(RUNS)))

    assert [run.code for run in done] == [0] * RUNS, next(run.err for run in done if run.code)
    assert thief.poll() is None
    thief.kill()
    assert thief.stdout is not None
    taken = int(thief.stdout.read().split()[-1])
    assert taken > 100 * RUNS, "the thief was too slow to prove anything"
