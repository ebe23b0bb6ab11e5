"""Whatever dies at whatever moment: the newest complete step is never lost, nothing runs twice."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from .commandline import CommandLine
from .newest import LAST, PHASES, SAVES, assert_nothing_lost, begun_at, saved_by

SUPERVISION = {"backoff_s": 0.1, "max_restarts": 3}


def start_all(shell: CommandLine, victim: str) -> dict[str, subprocess.Popen[bytes]]:
    """Start a run for each phase, all at once."""
    shell.script("save.py", SAVES)
    started = {}
    for phase in PHASES:
        job = {"script": "save.py", "args": [victim, phase]}
        spec = shell.spec(f"{phase}.json", job, supervision=SUPERVISION)
        quiet = subprocess.DEVNULL
        started[phase] = shell.start("up", spec.name, "--name", phase, stdout=quiet, stderr=quiet)
    return started


def folder_of(shell: CommandLine, name: str) -> Path:
    (found,) = (path for path in shell.runs() if path.name.startswith(f"{name}-"))
    return found


@pytest.mark.parametrize("victim", ["worker:0", "worker:1", "agent", "guard"])
def test_no_complete_step_is_lost_when_a_part_of_the_run_is_killed(
    shell: CommandLine, victim: str
) -> None:
    codes = {phase: run.wait(shell.patience_s) for phase, run in start_all(shell, victim).items()}

    assert codes == dict.fromkeys(PHASES, 0)
    for phase in PHASES:
        assert_nothing_lost(folder_of(shell, phase))


def test_no_complete_step_is_lost_when_the_coordinator_is_killed(shell: CommandLine) -> None:
    started = start_all(shell, "coordinator")
    codes = {phase: run.wait(shell.patience_s) for phase, run in started.items()}
    assert codes == dict.fromkeys(PHASES, -signal.SIGKILL)

    for phase in PHASES:
        lost = folder_of(shell, phase)
        again = f"again-{phase}"
        done = shell.run("up", "--resume", lost.name, "--name", again, "--", "again")

        assert done.code == 0, done.err
        assert "was already cleaned up" in shell.run("down", lost.name).err
        (before,) = lost.glob("logs/attempt-1/worker-0.log")
        after = folder_of(shell, again) / "logs/attempt-1/worker-0.log"
        assert begun_at(after.read_text()) >= saved_by(before.read_text())
        assert saved_by(after.read_text()) == LAST
