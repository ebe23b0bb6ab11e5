"""Workers on one host read the batches that data workers on another host prepare."""

from __future__ import annotations

import pytest
from tests.integration.jobs.lab import PYTHONS

from .office import Office

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]

HANG_S = 240.0


def test_a_data_service_on_another_host(office: Office) -> None:
    """A dispatcher and a data worker that are killed restart alone, at their addresses."""
    first, second = office.add_hosts(2)
    spec = office.spec(
        cluster={
            "worker": [f"{first.address}:0"],
            "data_worker": [f"{second.address}:0"],
            "data_dispatcher": [f"{second.address}:0"],
        },
        job={
            "module": "tfcluster_workers.jobs.data_service",
            "prepare": {"module": "tfcluster_workers.data.prepare"},
        },
        runtime={"hosts": {"*": {"python": str(PYTHONS["tf215"])}}},
        supervision={"backoff_s": 0},
    )
    kills = ("data_worker:0 at step 3", "data_dispatcher:0 at step 6")
    faults = [f"--chaos=kill {kill}" for kill in kills]
    job = ("--steps=10", "--epochs=2", "--wait-ms=100", "--examples=960")
    run = office.up(spec, *faults, "--", *job)
    assert run.end(HANG_S) == 0, run.said
    assert [e["task"] for e in run.of_type("restarting")] == ["data_worker:0", "data_dispatcher:0"]
    assert f"batches from grpc://{second.address}:" in run.log("worker:0")
    ended = {e["task"]: e["ended_by"] for e in run.of_type("task_exited")}
    assert ended == {
        "worker:0": "itself",
        "data_worker:0": "tfcluster",
        "data_dispatcher:0": "tfcluster",
    }
