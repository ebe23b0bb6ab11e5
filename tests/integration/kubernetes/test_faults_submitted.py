"""A submitted run does not need the API server once its pods run, and is watched again after it."""

from __future__ import annotations

import pytest
from tests.lab.kube import KubeCluster

from .desk import Desk
from .submitted import await_attempt, await_nothing_left, checkpoint, ended, release, up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_run_goes_on_without_the_api_server_and_is_fetched_after_it(
    own_kube: KubeCluster, own_desk: Desk
) -> None:
    run = up(own_desk)
    await_attempt(run, 1)
    own_kube.kill_api_server()
    assert not run.is_over()
    own_kube.start_api_server()
    release(own_desk)
    ended(run, 0)
    assert "restarting" not in [event["type"] for event in run.events()]
    assert run.log("worker:0").endswith("released\n")
    assert checkpoint(run, "ckpt-1") == "weights 1"
    await_nothing_left(own_desk)
