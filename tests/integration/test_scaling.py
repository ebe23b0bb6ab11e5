"""`scale-to` changes the number of workers of a live run, which goes on where it was."""

from __future__ import annotations

import re

import pytest

from .commandline import CommandLine, wait_for
from .live import Live
from .saving import SAVES

pytestmark = pytest.mark.slow


def test_a_run_goes_on_with_fewer_workers_and_then_with_all_again(shell: CommandLine) -> None:
    shell.script("save.py", SAVES)
    job = {"script": "save.py", "env": {"WORKERS": "3", "ATTEMPT": "3"}}
    spec = shell.spec("s.json", job, workers=3, supervision={"max_restarts": 0})
    run = Live(shell, "up", str(spec))
    wait_for(lambda: "\nstep" in run.log("worker:0"), what="a save of the chief")
    refused = shell.run("scale-to", run.run_id, "4")
    assert refused.code == 2
    assert f"{run.run_id}: it cannot have 4 workers: its spec has 3 workers" in refused.err
    scaled = shell.run("scale-to", run.run_id, "2")
    assert scaled.code == 0, scaled.err
    assert "restarting with 2 workers from the newest checkpoint, worker:2 out" in scaled.err
    wait_for(lambda: "\nstep" in run.log("worker:0", 2), what="a save of the second attempt")
    assert run.log("worker:2", 2) == ""
    assert shell.run("scale-to", run.run_id, "3").code == 0
    assert run.end() == 0, run.said()
    restarts = [event for event in run.events() if event["type"] == "restarting"]
    reasons = ["scaling to 2 workers", "scaling to 3 workers"]
    assert [event["reason"] for event in restarts] == reasons
    assert all(event["counts"] is False and event["planned"] for event in restarts)
    assert not [event for event in run.events() if event["type"] == "diagnosis"]
    begins = [re.findall(r"from step (\d+)", run.log("worker:0", n))[0] for n in (1, 2, 3)]
    assert 0 == int(begins[0]) < int(begins[1]) < int(begins[2])
    assert {run.log(f"worker:{n}", 3).splitlines()[0] for n in range(3)} == {
        f"3 workers from step {begins[2]}"
    }
    assert "attempt 3 of 3, from ckpt-" in run.said()


def test_other_jobs_than_training_are_not_scaled(shell: CommandLine) -> None:
    shell.script("wait.py", "import time\nprint('runs', flush=True)\ntime.sleep(60)\n")
    spec = shell.spec("s.json", {"script": "wait.py", "kind": "plain"})
    run = Live(shell, "up", str(spec))
    wait_for(lambda: "runs" in run.log("worker:0"), what="the task")
    refused = shell.run("scale-to", run.run_id, "1")
    assert (refused.code, "this job has kind plain" in refused.err) == (2, True)
    assert shell.run("down", run.run_id).code == 0
