"""What a run shows of its health: a stall with its cause, and the last step of every task."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

from .commandline import CommandLine, wait_for
from .live import Live

STALL_S = 10
"""The shortest silence of a stalled run (`supervision.silence.STALLED_S`)."""

STEPS = """
import os, time
from tfcluster_workers import reporting

def load_file():
    file = open("release")

reporting.waiting_for_peers()
reporting.ready()
task = os.environ["TFCLUSTER_TASK"]
for step in range(1, 10_000):
    reporting.progress(step, metrics={"loss": 1 / step}, batch_size=32)
    time.sleep(0.02)
    if step == 100:
        load_file()
    if os.path.exists("finish"):
        break
"""


def words(run: Live) -> str:
    """Return what the command has written, without its line breaks."""
    return " ".join(run.said().split())


@pytest.mark.slow
def test_a_stalled_run_names_the_task_that_is_waited_for_and_goes_on(shell: CommandLine) -> None:
    shell.script("steps.py", STEPS)
    shell.is_doubtful = True
    os.mkfifo(shell.cwd / "release")  # to open it blocks until it is opened for writing
    run = Live(shell, "run", "-n", "2", "steps.py")
    line = "worker:0, worker:1 are in steps.py:6 `open` (the stacks are in the logs)"
    patience_s = STALL_S + 1.5 * shell.patience_s  # a busy node may be silent for longer
    wait_for(lambda: "no step for" in words(run), timeout=patience_s, what="the stall")
    assert line in words(run)

    wait_for(lambda: run.state()["status"] == "stalled")
    state = run.state()
    assert state["stall"]["causes"] == ["worker:0", "worker:1"]
    assert state["figures"]["steps_per_second"] is None
    assert state["figures"]["eta_s"] is None
    for command in ("ps", "status"):
        shown = " ".join(shell.run(command).out.decode().split())
        assert "stalled" in shown
        assert "steps.py:6 `open`" in shown, shown
    assert "most recent call first" in run.log("worker:1")

    asked = shell.run("stacks", "worker:1").out.decode()
    assert "worker:1 is in steps.py:6 `open`" in asked
    assert re.search(r"steps\.py:6 in load_file  file = open", asked), asked
    found = json.loads(shell.run("stacks", run.run_id, "--json").out)
    assert [task["task"] for task in found["tasks"]] == ["worker:0", "worker:1"]
    refused = shell.run("stacks", run.run_id, "worker:7")
    assert (refused.code, "has no task worker:7" in refused.err) == (2, True)

    (shell.cwd / "release").open("w").close()
    wait_for(lambda: "the run goes on, after" in words(run))
    wait_for(lambda: run.state()["status"] == "running")
    (shell.cwd / "finish").touch()
    assert run.end() == 0
    events = [event["type"] for event in run.events()]
    assert (events.count("stalled"), events.count("stall_ended")) == (1, 1)


ENDS = """
import os, signal, sys
from tfcluster_workers import reporting
for step in range(1, 778):
    reporting.progress(step, metrics={"loss": 1 / step})
{how}
"""
HOWS = {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "crashed": "import ctypes; ctypes.string_at(0)",
    "left": "os._exit(3)",
    "raised": "raise ValueError('bad batch')",
    "returned": "",
}


@pytest.mark.parametrize("how", HOWS)
def test_the_last_step_of_a_task_is_known_however_it_ends(shell: CommandLine, how: str) -> None:
    shell.script("ends.py", ENDS.replace("{how}", HOWS[how]))
    run = Live(shell, "run", "-n", "1", "ends.py")
    run.end()
    (task,) = run.state()["tasks"]
    assert task["step"] == 777
    steps = [event["step"] for event in run.events() if event["type"] == "progress"]
    assert steps == sorted(set(steps)), "no step is reported twice"
    ends: list[dict[str, Any]] = [
        e for e in run.events() if e["type"] in ("progress", "task_exited")
    ]
    assert [event["type"] for event in ends][-2:] == ["progress", "task_exited"]
