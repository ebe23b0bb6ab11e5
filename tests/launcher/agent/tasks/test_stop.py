"""Tasks that are stopped get exactly their grace period, and leave no process."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tests.launcher.agent.conftest import Rig, children_of, wait_until

EXITS = "trap 'exit 5' TERM; echo ready; while :; do sleep .05; done"
IGNORES = "trap '' TERM INT HUP; echo ready; while :; do sleep .05; done"
SAVES = "trap 'sleep .5; echo saved; exit 42' TERM; echo ready; while :; do sleep .05; done"
LEAVES_A_HOLDER = "sh -c 'trap \"\" TERM; echo ready; sleep 60' & sleep 60"


def stop(rig: Rig, script: str, grace_s: float) -> tuple[dict[str, object], float]:
    rig.start("sh", "-c", script)
    wait_until(lambda: b"ready\n" in rig.log().read_bytes())
    asked = time.monotonic()
    rig.stop(grace_s=grace_s)
    exited = rig.exited()
    assert exited["ended_by"] == "tfcluster"
    return exited, time.monotonic() - asked


@pytest.mark.parametrize(
    ("script", "grace_s", "ends", "is_saved"),
    [
        (EXITS, 60, {"exit_code": 5}, False),
        (SAVES, 60, {"exit_code": 42}, True),
        (SAVES, 0, {"signal": signal.SIGKILL}, False),
        (IGNORES, 0.5, {"signal": signal.SIGKILL}, False),
    ],
    ids=["at once", "saves", "no grace", "ignores"],
)
def test_a_task_has_its_grace_period_to_end(
    rig: Rig, script: str, grace_s: float, ends: dict[str, int], is_saved: bool
) -> None:
    exited, took = stop(rig, script, grace_s)
    assert ends.items() <= exited.items()
    assert (grace_s if script == IGNORES else 0) <= took < 40
    assert rig.log().read_text().endswith("saved\n") is is_saved


def test_a_second_stop_can_only_shorten_the_grace_period(rig: Rig) -> None:
    rig.start("sh", "-c", IGNORES)
    wait_until(lambda: rig.log().read_bytes() == b"ready\n")
    for grace_s in (60, 0.2, 60):
        rig.peer.send("stop", tasks=["worker:0"], grace_s=grace_s, why="again")
    asked = time.monotonic()
    assert rig.exited()["signal"] == signal.SIGKILL
    assert time.monotonic() - asked < 30


def test_a_task_that_sigstop_stopped_is_ended(rig: Rig) -> None:
    pid = rig.start("sleep", "60")["pid"]
    os.kill(pid, signal.SIGSTOP)
    rig.stop()
    assert rig.exited()["signal"] == signal.SIGTERM


def test_a_grandchild_that_holds_the_pipe_delays_the_end_by_half_a_second(rig: Rig) -> None:
    exited, took = stop(rig, LEAVES_A_HOLDER, grace_s=20)
    assert exited["signal"] == signal.SIGTERM
    assert 0.4 < took < 15
    wait_until(lambda: children_of(rig.pid) == [])


def test_stopping_an_ended_task_is_no_error(rig: Rig) -> None:
    rig.start("true")
    rig.exited()
    rig.peer.send("stop", tasks=["worker:0", "ps:9"], grace_s=1, why="late")
    assert rig.start("true")["type"] == "task_started"
