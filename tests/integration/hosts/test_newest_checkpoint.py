"""On hosts no complete step is lost when an agent, a guard or the coordinator is killed."""

from __future__ import annotations

import signal

import pytest
from tests.integration.newest import LAST, SAVES, assert_nothing_lost, begun_at, saved_by

from .office import Office

pytestmark = pytest.mark.slow


def test_steps_that_a_lost_agent_has_left_on_its_host_are_gathered(office: Office) -> None:
    office.add_hosts(2)
    for victim, phase in (("agent", "gathering"), ("guard", "saving"), ("agent", "finishing")):
        job = {"script": "train.py", "args": [victim, phase]}
        policy = {"backoff_s": 0.1, "max_restarts": 3, "lease_s": 10}
        name = f"{victim}-{phase}"
        run = office.up(office.spec(SAVES, job=job, supervision=policy, name=name))
        run.name = name

        assert run.end() == 0, run.said
        assert_nothing_lost(run.folder)


def test_resume_asks_the_host_for_what_a_killed_coordinator_has_not_gathered(
    office: Office,
) -> None:
    office.add_hosts(2)
    job = {"script": "train.py", "args": ["outside", "training"]}
    run = office.up(office.spec(SAVES, job=job, supervision={"lease_s": 60}))
    run.wait_for_line("saved 3", "worker:0")
    office.send("tfcluster.cli.main", signal.SIGKILL)
    assert run.end() == -signal.SIGKILL
    office.folders_stay = True  # only the checkpoints are gathered

    again = office.start("up", "--resume", run.folder.name, "--name", "again", "--", "again")
    again.name = "again"

    assert again.end() == 0, again.said
    assert begun_at(again.log("worker:0")) >= saved_by(run.log("worker:0"))
    assert saved_by(again.log("worker:0")) == LAST
