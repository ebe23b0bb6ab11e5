"""No complete step is lost with the chief's container, or with the coordinator of a run."""

from __future__ import annotations

import os
import signal

import pytest
from tests.integration.commandline import wait_for
from tests.integration.live import Live
from tests.integration.newest import BIG, LAST, SAVES, assert_nothing_lost, begun_at, saved_by

from .harbor import Harbor, ended
from .test_faults import assert_removed_by_the_sweeper

pytestmark = pytest.mark.slow


def test_steps_in_an_ended_container_are_gathered_before_it_is_replaced(harbor: Harbor) -> None:
    for phase in ("saving", "gathering"):
        job = {"script": "train.py", "args": ["agent", phase], "hooks": "off"}
        policy = {"backoff_s": 0.1, "max_restarts": 3}
        spec = harbor.spec(SAVES, job=job, supervision=policy)
        run = Live(harbor.shell, "up", str(spec), name=phase)

        ended(run)
        assert_nothing_lost(run.folder)


def test_resume_finds_what_was_in_the_container_of_a_killed_coordinator(harbor: Harbor) -> None:
    job = {"script": "train.py", "args": ["outside", "training"], "hooks": "off"}
    run = harbor.up(harbor.spec(SAVES, job=job))
    run.wait_for_line("saved 3")
    os.kill(run.process.pid, signal.SIGKILL)
    run.end()

    again = harbor.shell.run("up", "--resume", run.run_id, "--name", "again", "--", "again")

    assert again.code == 0, again.err
    assert_removed_by_the_sweeper(harbor, run)
    (folder,) = (each for each in harbor.shell.runs() if each.name.startswith("again"))
    log = (folder / "logs/attempt-1/worker-0.log").read_text()
    assert begun_at(log) >= saved_by(run.log("worker:0"))
    assert saved_by(log) == LAST


def test_a_checkpoint_that_two_ctrl_c_have_left_in_its_container_can_be_gathered(
    harbor: Harbor,
) -> None:
    run = harbor.up(harbor.spec(BIG, job={"script": "train.py", "hooks": "off"}))
    wait_for(lambda: run.state().get("gathering"), what=run.said())
    run.process.send_signal(signal.SIGINT)
    wait_for(lambda: "stop again to leave them" in run.said(), what=run.said())
    run.process.send_signal(signal.SIGINT)

    ended(run, 130)
    assert "the newest checkpoint was not gathered" in " ".join(run.said().split())
    kept = harbor.shell.run("down", run.run_id)
    assert f"`tfcluster checkpoints {run.run_id}` gathers that" in " ".join(kept.err.split())
    gathered = harbor.shell.run("checkpoints", run.run_id)
    assert "gathered ckpt-2" in gathered.err, gathered.err
    assert (run.folder / "checkpoints/ckpt-2/ckpt-2.index").exists()
    assert harbor.shell.run("down", run.run_id).code == 0
    assert harbor.left() == []
