"""Tasks that are stopped get exactly their grace period, and leave no process."""

from __future__ import annotations

import os
import signal
import time

from tests.launcher.agent.conftest import Rig, children_of, wait_until

EXITS = "trap 'exit 5' TERM; echo ready; while :; do sleep .05; done"
IGNORES = "trap '' TERM INT HUP; echo ready; while :; do sleep .05; done"
SAVES = "trap 'sleep .5; echo saved; exit 42' TERM; echo ready; while :; do sleep .05; done"
LEAVES_A_HOLDER = "sh -c 'trap \"\" TERM; echo ready; sleep 60' & sleep 60"


def stop(rig: Rig, script: str, grace_s: float) -> tuple[dict[str, object], float]:
    rig.start("sh", "-c", script)
    wait_until(lambda: b"ready\n" in rig.log().read_bytes())
    asked = time.monotonic()
    rig.peer.send("stop", tasks=["worker:0"], grace_s=grace_s, why="a test")
    exited = rig.exited()
    assert exited["ended_by"] == "tfcluster"
    return exited, time.monotonic() - asked


def test_a_task_that_exits_on_sigterm_ends_at_once(rig: Rig) -> None:
    exited, took = stop(rig, EXITS, grace_s=20)
    assert exited["exit_code"] == 5
    assert took < 15


def test_a_task_can_save_within_the_grace_period(rig: Rig) -> None:
    exited, _ = stop(rig, SAVES, grace_s=20)
    assert exited["exit_code"] == 42
    assert rig.log().read_text().endswith("saved\n")


def test_a_task_that_ignores_signals_is_killed_after_the_grace_period(rig: Rig) -> None:
    exited, took = stop(rig, IGNORES, grace_s=0.5)
    assert exited["signal"] == signal.SIGKILL
    assert took >= 0.5


def test_a_task_is_killed_at_once_without_a_grace_period(rig: Rig) -> None:
    exited, _ = stop(rig, SAVES, grace_s=0)
    assert exited["signal"] == signal.SIGKILL
    assert "saved" not in rig.log().read_text()


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
    rig.peer.send("stop", tasks=["worker:0"], grace_s=20, why="a test")
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
