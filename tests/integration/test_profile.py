"""`tfcluster profile`: the same steps of all tasks, traced and summed up while they train."""

from __future__ import annotations

import re

import pytest

from .commandline import CommandLine, wait_for
from .jobs.lab import PYTHONS
from .live import InBackground, Live
from .profiled import FIT, check_profile

STEPS = """
import os, time
from tfcluster_workers import reporting

reporting.waiting_for_peers()
reporting.ready()
step = 0
while not os.path.exists("finish"):
    time.sleep(0.01)
    if os.path.exists("begin"):
        step += 1
        reporting.progress(step)
"""
"""A job that takes steps without TensorFlow, once there is the file `begin`."""


def test_what_cannot_be_traced_is_said_in_one_sentence(shell: CommandLine) -> None:
    shell.script("steps.py", STEPS)
    run = Live(shell, "run", "-n", "2", "steps.py")
    wait_for(lambda: run.state()["tasks"][1]["state"] == "running", what="the tasks")
    refused = shell.run("profile")
    assert (refused.code, "no task has reported a step" in refused.err) == (2, True), refused.err
    shell.script("begin", "")
    wait_for(lambda: run.state()["tasks"][1]["step"], what="a step")
    refused = shell.run("profile", "--task", "worker:7")
    assert (refused.code, "has no task worker:7" in refused.err) == (2, True)

    asked = shell.run("profile", "--steps", "3")
    assert asked.code == 0, asked.err
    missing = [f"worker:{n}: no trace: it does not use TensorFlow" for n in (0, 1)]
    assert asked.out.decode().splitlines() == missing
    assert re.search(r"profiling steps \d+ to \d+ of worker:0, worker:1", asked.err)

    (shell.cwd / "finish").touch()
    assert run.end() == 0
    assert "0 traces of 2" in run.said()
    refused = shell.run("profile", run.run_id)
    assert (refused.code, "has ended" in refused.err) == (2, True)
    assert shell.run("profile", "--last").out == asked.out


def test_a_run_that_ends_meanwhile_ends_the_profile(shell: CommandLine) -> None:
    shell.script("steps.py", STEPS)
    shell.script("begin", "")
    run = Live(shell, "run", "-n", "2", "steps.py")
    wait_for(lambda: run.state()["figures"]["mean_steps_per_second"], what="a speed")
    asking = shell.start("profile", "--steps", "1000", "--json")
    wait_for(lambda: "profiling steps" in run.said(), what="the order")
    (shell.cwd / "finish").touch()
    assert run.end() == 0
    assert asking.wait(60) == 0
    (finished,) = (event for event in run.events() if event["type"] == "profile_finished")
    problems = {facts["problem"] for facts in finished["tasks"].values()}
    assert problems <= {
        "it ended before its trace was complete",
        "the run ended before its trace was complete",
    }


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("release", PYTHONS)
def test_both_workers_trace_the_same_steps_and_tensorflow_reads_them(
    shell: CommandLine, release: str
) -> None:
    shell.script("fit.py", FIT)
    python = PYTHONS[release]
    run = InBackground(shell, "run", "-n", "2", f"--python={python}", "fit.py")
    wait_for(lambda: run.state()["tasks"][1]["step"], what="a step", timeout=shell.patience_s)
    asked = shell.run("profile", "--steps", "5", "--json", timeout=120)
    assert asked.code == 0, asked.err
    found = check_profile(asked.out.decode(), run.folder, python, steps=5)
    assert found["folder"].startswith(str(run.folder))

    shown = shell.run("profile", "--last")
    header, *rows = [line.split() for line in shown.out.decode().splitlines()[:3]]
    assert header == ["task", "steps", "traced", "step", "compute", "collective", "input", "idle"]
    assert [row[0] for row in rows] == ["worker:0", "worker:1"]
    assert all(row[-1].endswith("%") for row in rows)
    assert "CollectiveReduceV2" in shown.out.decode()
    assert f"`tfcluster tensorboard {run.id[-4:]}` shows the traces" in shown.err
    assert "pip install xprof" in shown.err
    run.down()
