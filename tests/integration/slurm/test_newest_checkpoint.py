"""No complete step is lost when an agent is killed, or the coordinator with its whole job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.integration.hosts.office import until
from tests.integration.newest import LAST, SAVES, assert_nothing_lost, begun_at, saved_by

from .site import Site
from .test_allocation import SALLOC

pytestmark = pytest.mark.slow


def spec(site: Site, *args: str, **sections: Any) -> str:
    job = {"script": "train.py", "args": [*args], "hooks": "off"}
    policy = {"backoff_s": 0.1, "max_restarts": 3, "lease_s": 10}
    return str(site.spec(SAVES, job=job, supervision=policy, **sections))


def test_steps_that_a_killed_agent_has_left_are_gathered(site: Site) -> None:
    run = site.start("up", spec(site, "agent", "gathering"), within=SALLOC)

    assert run.end() == 0, run.said
    assert_nothing_lost(run.folder)


def test_resume_finds_what_a_job_that_was_killed_had_saved(site: Site) -> None:
    sections = {"runtime": {"backend": "slurm", "slurm": {"partition": "main"}}}
    run = site.start("up", spec(site, "outside", "training", **sections), "-d")
    assert run.end() == 0, run.said
    until(lambda: run.has_line("saved 3", "worker:0"), "three steps")
    job = json.loads((run.folder / "state.json").read_text())["job"]["id"]
    site.cluster("scancel", "--full", "--signal=KILL", job)
    site.cluster.wait_for_job(job)  # until then the run may go on, and nothing is missed

    again = site.start("up", "--resume", run.folder.name, "--name", "again", "--", "again")
    again.name = "again"

    assert again.end() == 0, again.said
    assert begun_at(again.log("worker:0")) >= saved_by(run.log("worker:0"))
    assert saved_by(again.log("worker:0")) == LAST
