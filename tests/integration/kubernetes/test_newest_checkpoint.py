"""No complete step is lost when an agent in a pod, or the coordinator of the run, is killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from tests.integration.commandline import wait_for
from tests.integration.live import Live
from tests.integration.newest import BIG, SAVES, assert_nothing_lost

from .desk import HANG_S, Desk
from .submitted import coordinator, ended
from .test_submitted import coordinator_process

pytestmark = pytest.mark.slow


def up(desk: Desk, *args: str, **runtime: Any) -> Live:
    desk.shell.script("save.py", SAVES)
    job = {"script": "save.py", "args": [*args], "hooks": "off"}
    policy = {"backoff_s": 0.1, "max_restarts": 3}
    spec = desk.shell.spec("spec.json", job, runtime=desk.runtime(**runtime), supervision=policy)
    return Live(desk.shell, "up", str(spec))


def test_steps_in_the_pod_of_a_killed_agent_are_gathered_before_it_is_replaced(desk: Desk) -> None:
    run = up(desk, "agent", "gathering")

    ended(run, 0)
    assert_nothing_lost(run.folder)
    assert desk.left() == []


@pytest.mark.parametrize("volume", [False, True])
def test_a_coordinator_that_starts_again_asks_the_chiefs_pod_for_newer_steps(
    desk: Desk, volume: bool
) -> None:
    if volume:
        desk.claim("runs")
    run = up(desk, "outside", "training", **({"run_volume": "runs"} if volume else {}))
    wait_for(lambda: "saved 3" in run.log("worker:0", 1), timeout=HANG_S, what=run.said())
    if volume:
        pod = coordinator(desk)
        desk.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
    else:
        os.kill(coordinator_process(desk), signal.SIGKILL)

    ended(run, 0)
    assert_nothing_lost(run.folder)
    assert desk.left() == []


def test_down_while_the_last_checkpoint_is_gathered_does_not_destroy_it(desk: Desk) -> None:
    desk.shell.script("save.py", BIG)
    job = {"script": "save.py", "hooks": "off"}
    run = Live(desk.shell, "up", str(desk.shell.spec("spec.json", job, runtime=desk.runtime())))
    wait_for(lambda: run.state().get("gathering"), timeout=HANG_S, what=run.said())

    first = desk.shell.start("down", run.run_id)
    wait_for(lambda: "stop again to leave them" in run.said(), timeout=HANG_S, what=run.said())
    second = desk.shell.run("down", run.run_id, timeout=HANG_S)

    assert run.end(HANG_S) == 143, run.said()
    assert (first.wait(HANG_S), second.code) == (0, 0)
    said = " ".join(second.err.split())
    assert f"`tfcluster checkpoints {run.run_id}` gathers that" in said
    assert "the newest checkpoint was not gathered" in " ".join(run.said().split())
    shown = " ".join(desk.shell.run("ps", "-a").err.split())
    assert f"`tfcluster checkpoints {run.run_id}` gathers it" in shown
    gathered = desk.shell.run("checkpoints", run.run_id, timeout=HANG_S)
    assert "gathered ckpt-2" in gathered.err, gathered.err
    assert (run.folder / "checkpoints/ckpt-2/ckpt-2.index").exists()
    assert desk.shell.run("down", run.run_id, timeout=HANG_S).code == 0
    assert desk.left() == []
