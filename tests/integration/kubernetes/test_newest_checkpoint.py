"""No complete step is lost when an agent in a pod, or the coordinator of the run, is killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from tests.integration.commandline import wait_for
from tests.integration.live import Live
from tests.integration.newest import SAVES, assert_nothing_lost

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
    run = up(desk, "nobody", "never", **({"run_volume": "runs"} if volume else {}))
    wait_for(lambda: "saved 3" in run.log("worker:0", 1), timeout=HANG_S, what=run.said())
    if volume:
        pod = coordinator(desk)
        desk.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
    else:
        os.kill(coordinator_process(desk), signal.SIGKILL)

    ended(run, 0)
    assert_nothing_lost(run.folder)
    assert desk.left() == []
