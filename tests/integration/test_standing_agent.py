"""An agent that hangs (SIGSTOP, a dead disk) cannot keep a run from ending."""

from __future__ import annotations

import os
import signal

import pytest

from .commandline import CommandLine, wait_for
from .live import FAMILY, Family, Live


@pytest.mark.parametrize("times", [1, 2], ids=["Ctrl-C", "Ctrl-C twice"])
def test_ctrl_c_ends_a_run_with_a_hung_agent_within_seconds(shell: CommandLine, times: int) -> None:
    shell.script("family.py", FAMILY)
    run = Live(shell, "run", "family.py")
    family = Family(run)
    agent, _ = run.agents()
    os.kill(agent, signal.SIGSTOP)

    code, took = run.end_timed(*[signal.SIGINT] * times)

    assert code == 130, run.said()
    assert took < 30, f"{took:.1f} s: the lease is longer"
    family.assert_gone()


@pytest.mark.slow
def test_an_agent_that_hangs_during_the_run_is_reported_and_replaced_after_the_lease(
    shell: CommandLine,
) -> None:
    shell.script("family.py", FAMILY)
    limits = ["--set", "supervision.lease_s=5", "--set", "supervision.max_restarts=1"]
    run = Live(shell, "run", *limits, "family.py")
    family = Family(run)
    agent, _ = run.agents()
    os.kill(agent, signal.SIGSTOP)

    wait_for(lambda: run.has_line(" whole", "worker:1") and run.log("worker:1", attempt=2))

    assert not family.living()
    assert f"its agent (pid {agent}) is stopped; `kill -CONT {agent}` resumes it" in run.said()
    assert "it did not answer for 5 s, so it was killed" in run.said()
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
