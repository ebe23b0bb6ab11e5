"""What a run shows of its health: a stall with its cause, and the last step of every task."""

from __future__ import annotations

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
    while not os.path.exists("release"):
        time.sleep(0.02)

reporting.waiting_for_peers()
reporting.ready()
task = os.environ["TFCLUSTER_TASK"]
for step in range(1, 10_000):
    reporting.progress(step, metrics={"loss": 1 / step}, batch_size=32)
    time.sleep(0.02)
    if task == "worker:1" and step == 100:
        load_file()
    if os.path.exists("finish"):
        break
"""


def words(run: Live) -> str:
    """Return what the command has written, without its line breaks."""
    return " ".join(run.said().split())


@pytest.mark.slow
def test_a_stalled_run_names_the_task_that_is_waited_for_and_goes_on(shell: CommandLine) -> None:
    """worker:0 stands for one that waits: it stops to report as soon as worker:1 does."""
    script = STEPS.replace(
        "    if os.path.exists",
        "    if step == 100:\n        load_file()\n    if os.path.exists",
        1,
    )
    shell.script("steps.py", script)
    run = Live(shell, "run", "-n", "2", "steps.py")
    line = "worker:0, worker:1 are in steps.py:7 `time.sleep` (the stacks are in the logs)"
    wait_for(lambda: line in words(run), timeout=STALL_S + shell.patience_s)

    state = run.state()
    assert state["status"] == "stalled"
    assert state["stall"]["causes"] == ["worker:0", "worker:1"]
    assert state["figures"]["steps_per_second"] is None
    assert state["figures"]["eta_s"] is None
    for command in ("ps", "status"):
        shown = " ".join(shell.run(command).out.decode().split())
        assert "stalled" in shown
        assert "steps.py:7 `time.sleep`" in shown, shown
    assert "most recent call first" in run.log("worker:1")

    (shell.cwd / "release").touch()
    wait_for(lambda: "the run goes on, after" in words(run))
    assert run.state()["status"] == "running"
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
