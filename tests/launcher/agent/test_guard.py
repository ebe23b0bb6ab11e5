"""Tasks end even if guard and agent are killed at once; `kill -9` of one is in integration."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.launcher.agent.conftest import Rig, is_alive, kill, wait_until

from tfcluster.agent.processes import signal_group, start_time


@pytest.mark.linux("a process dies with its parent")
def test_killing_guard_and_agent_at_once_still_ends_the_tasks(rig: Rig) -> None:
    """Other processes of the tasks are documented as not covered: no living process knows them."""
    tasks = [rig.start("sleep", "300", task=f"worker:{index}")["pid"] for index in range(2)]
    kill(rig.guard_pid)
    kill(rig.pid)
    wait_until(lambda: not any(map(is_alive, tasks)))
    os.unlink(rig.config.socket)


@pytest.mark.linux("start times are in /proc")
def test_a_process_with_a_reused_pid_is_not_killed() -> None:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        assert not signal_group(process.pid, start_time(process.pid) + 1, 9)
        assert process.poll() is None
        assert signal_group(process.pid, start_time(process.pid), 9)
        assert process.wait(10) == -9
    finally:
        process.kill()
        process.wait()
    assert not signal_group(process.pid, 0, 9), "a group that is gone is no error"
