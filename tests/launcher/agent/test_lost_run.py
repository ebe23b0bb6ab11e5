"""Agent and tasks of a run are ended on a node after the coordinator was lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import fencing
from tfcluster.agent.agent_config import EndLostRun

from .conftest import NewRig, Rig, is_alive, wait_until

pytestmark = pytest.mark.linux("the end of processes is proved by /proc")

RUN = f"lost-{os.getpid()}"
LEAVES = """
import subprocess, sys
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""
"""A task with a child in a process group that the agent does not know."""


def end(rig: Rig, cache: Path, **where: Any) -> dict[str, Any]:
    identity = rig.welcome["identity"]
    identity = {**identity, "where": {**identity["where"], **where}}
    return fencing.end_lost_run(EndLostRun(run_id=RUN, former=identity, cache=str(cache)))


def test_agent_and_tasks_of_a_lost_run_end_and_saved_files_are_kept(
    new_rig: NewRig, tmp_path: Path
) -> None:
    rig = new_rig(lease_s=300)
    env = {"TFCLUSTER_RUN_ID": RUN, "TFCLUSTER_TASK": "worker:0"}
    task = rig.start(sys.executable, "-S", "-c", LEAVES, env=env)["pid"]
    wait_until(lambda: rig.log().exists() and rig.log().read_text().endswith("\n"))
    child = int(rig.log().read_text())
    saved = tmp_path / "nodes" / RUN
    saved.mkdir(parents=True)
    with subprocess.Popen(["sleep", "300"], env={"TFCLUSTER_RUN_ID": f"{RUN}x"}) as other:
        found = end(rig, tmp_path)
        assert found["ended"] == ["agent", "worker:0"]
        assert (found["stays"], found["is_proved"], found["folder"]) == ([], True, str(saved))
        assert not any(map(is_alive, (task, child, rig.pid, rig.guard_pid)))
        assert other.poll() is None
        other.kill()
    assert end(rig, tmp_path)["ended"] == []


def test_an_agent_in_another_pid_namespace_is_not_reported_as_ended(
    new_rig: NewRig, tmp_path: Path
) -> None:
    rig = new_rig(lease_s=300)
    found = end(rig, tmp_path, pid_namespace=1)
    assert (found["ended"], found["is_proved"], found["folder"]) == ([], False, None)
    assert is_alive(rig.pid)
    end(rig, tmp_path)
