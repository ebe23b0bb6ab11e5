"""Unkillable tasks (in uninterruptible sleep) are reported and not waited for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launcher.agent.conftest import Rig, is_alive, wait_until

pytestmark = pytest.mark.linux("the state of a process is in /proc")

FREEZER = Path("/sys/fs/cgroup/freezer")


class Freezer:
    """A cgroup (v1) whose processes react to no signal, not even SIGKILL, until they are thawed."""

    def __init__(self) -> None:
        self._folder = FREEZER / f"tfcluster-test-{os.getpid()}"
        self._folder.mkdir()

    def freeze(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))
        (self._folder / "freezer.state").write_text("FROZEN")
        wait_until(lambda: (self._folder / "freezer.state").read_text() == "FROZEN\n")

    def thaw(self) -> None:
        (self._folder / "freezer.state").write_text("THAWED")

    def remove(self) -> bool:
        with contextlib.suppress(OSError):
            self._folder.rmdir()
        return not self._folder.exists()


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    if not FREEZER.exists() and FREEZER.with_name("cgroup.controllers").exists():
        pytest.xfail("this machine has cgroup v2 only, whose frozen processes can be killed")
    try:
        freezer = Freezer()
    except OSError as error:
        pytest.skip(f"this user has no freezer cgroup: {error}")
    yield freezer
    freezer.thaw()
    wait_until(freezer.remove)


def test_an_unkillable_task_is_reported_once_and_its_end_later(rig: Rig, freezer: Freezer) -> None:
    pid = rig.start("sleep", "300")["pid"]
    freezer.freeze(pid)
    rig.stop(grace_s=0.1)
    reported = rig.peer.take("unkillable")
    assert (reported["task"], reported["attempt"], reported["pids"]) == ("worker:0", 1, [pid])
    assert rig.start("true", task="worker:1")["type"] == "task_started", (
        "the agent still starts other tasks"
    )
    rig.exited("worker:1")
    assert rig.start("true")["type"] == "start_failed"
    freezer.thaw()
    assert rig.exited()["ended_by"] == "tfcluster"
    assert rig.start("true")["type"] == "task_started"
    assert not [m for m in rig.peer.messages if m["type"] == "unkillable"]


def test_the_agent_does_not_wait_for_an_unkillable_task(rig: Rig, freezer: Freezer) -> None:
    pid = rig.start("sleep", "300")["pid"]
    freezer.freeze(pid)
    rig.peer.send("shutdown")
    assert rig.peer.take("unkillable")["pids"] == [pid]
    rig.peer.take("bye")
    wait_until(lambda: not is_alive(rig.pid))
    assert is_alive(pid)
    freezer.thaw()
    wait_until(lambda: not is_alive(pid))
    wait_until(lambda: not is_alive(rig.guard_pid))
