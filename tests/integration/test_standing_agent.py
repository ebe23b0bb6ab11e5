"""An agent that stands still (SIGSTOP, a dead disk) cannot keep a run from its end."""

from __future__ import annotations

import os
import signal

import pytest

from .commandline import CommandLine
from .live import FAMILY, Family, Live


@pytest.mark.parametrize("times", [1, 2], ids=["Ctrl-C", "Ctrl-C twice"])
def test_a_stop_ends_the_run_within_seconds_and_leaves_nothing(
    shell: CommandLine, times: int
) -> None:
    shell.script("family.py", FAMILY)
    run = Live(shell, "run", "family.py")
    family = Family(run)
    agent, _ = run.agents()
    os.kill(agent, signal.SIGSTOP)

    for _ in range(times):
        run.process.send_signal(signal.SIGINT)
    code, took = run.end_timed()

    assert code == 130, run.said()
    assert took < 8.0, f"{took:.1f} s"
    family.assert_gone(within_s=1.0)
