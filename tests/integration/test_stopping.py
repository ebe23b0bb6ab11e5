"""Ctrl-C, signals and `down` stop a run with the right grace and exit code, and leave nothing."""

from __future__ import annotations

import os
import signal
import time

import pytest

from .commandline import CommandLine, screen, wait_for
from .live import FAMILY, Family, Live, the_status

SLEEPS = """
import time
print("up", flush=True)
time.sleep(300)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("heard SIGTERM", flush=True))
print("up", flush=True)
end = time.monotonic() + 300
while time.monotonic() < end:
    time.sleep(0.1)
"""
"""A job that catches SIGTERM and continues, as under MultiWorkerMirroredStrategy."""
SAVES = """
import signal, sys, time
from tfcluster_workers import event_channel

def save(*_):
    print("saving", flush=True)
    time.sleep(4)
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
for kind in ("saves_on_sigterm", "task_ready"):
    event_channel.current().send({"type": kind})
print("up", flush=True)
time.sleep(300)
"""
"""A job that saves on SIGTERM: it needs twice the grace of a task that does not report that.

Its output is read sooner than its reports: once `ready` is there, so is `saves_on_sigterm`.
"""
STOPPED_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def up(shell: CommandLine, script: str, *args: str) -> Live:
    shell.script("task.py", script)
    run = Live(shell, "run", "-n", "2", *args, "task.py")
    run.wait_for_line("up")
    return run


@pytest.mark.parametrize("number", STOPPED_CODES, ids=lambda number: number.name)
def test_a_signal_ends_the_run_as_interrupted_with_the_exit_code_of_a_shell(
    shell: CommandLine, number: signal.Signals
) -> None:
    shell.script("family.py", FAMILY)
    run = Live(shell, "run", "-n", "2", "family.py")
    family = Family(run)

    run.process.send_signal(number)

    assert run.end() == STOPPED_CODES[number], run.said()
    family.assert_gone()
    status = the_status(shell, run.run_id)
    assert (status["status"], status["exit_code"]) == ("interrupted", STOPPED_CODES[number])
    assert status["diagnosis"] is None, "nobody is to blame"
    assert {task["state"] for task in status["tasks"]} == {"stopped"}
    assert run.events()[-1]["type"] == "run_finished"
    assert shell.run("wait", run.run_id).code == STOPPED_CODES[number]


def test_a_task_that_swallows_sigterm_is_killed_two_seconds_later(shell: CommandLine) -> None:
    run = up(shell, DEAF)

    code, took = run.end_timed(signal.SIGINT)

    assert code == 130
    assert took >= 2.0
    assert "heard SIGTERM" in run.log("worker:0")
    assert [task["signal"] for task in run.state()["tasks"]] == [signal.SIGKILL] * 2


def test_a_task_that_saves_on_sigterm_may_finish_saving(shell: CommandLine) -> None:
    run = up(shell, SAVES)
    wait_for(lambda: [event["type"] for event in run.events()].count("task_ready") == 2)

    code, took = run.end_timed(signal.SIGINT)

    assert code == 130, run.said()
    assert took >= 4.0
    assert "saved" in run.log("worker:0")
    assert run.state()["status"] == "interrupted"
    assert "30 s" in run.said(), "how long the tasks get is said"


@pytest.mark.parametrize("script", [DEAF, SAVES], ids=["swallows", "saves"])
def test_a_second_ctrl_c_kills_at_once(shell: CommandLine, script: str) -> None:
    run = up(shell, script)
    wait_for(lambda: run.state()["status"] == "running")

    run.process.send_signal(signal.SIGINT)
    wait_for(lambda: "stopping the run" in run.said())
    run.process.send_signal(signal.SIGINT)

    assert run.end() == 130
    assert "Ctrl-C again, killing the tasks" in run.said()
    assert [task["signal"] for task in run.state()["tasks"]] == [signal.SIGKILL] * 2
    assert "saved" not in run.log("worker:0")


def test_ctrl_c_on_the_terminal_stops_the_run_and_no_task_sees_it(shell: CommandLine) -> None:
    shell.script("family.py", FAMILY)
    with screen(shell, "run", "-n", "2", "--name", "r", "family.py", columns=60) as shown:
        wait_for(lambda: shown.read(0.1) and shown.seen.count(b"family") >= 2)
        for pid in (shown.process.pid, shell.state()["pid"]):
            os.kill(pid, signal.SIGUSR1)  # Slurm's, to all processes of an interactive step
        shown.type(b"\x03")
        code = shown.read_all()

    assert code == 130
    said = shown.seen.decode(errors="replace")
    assert "stopping the run: Ctrl-C" in said
    assert "interrupted after" in said
    assert "KeyboardInterrupt" not in said
    assert "Traceback" not in said
    assert {event["ended_by"] for event in shell.events() if event["type"] == "task_exited"} == {
        "tfcluster"
    }


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_the_end_of_the_terminal_or_of_the_command_stops_the_run(
    shell: CommandLine, is_killed: bool
) -> None:
    """The command only shows the run, whose coordinator notices the end of a killed one, too."""
    shell.script("family.py", FAMILY)
    with screen(shell, "run", "-n", "2", "--name", "r", "family.py") as shown:
        wait_for(lambda: shown.read(0.1) and shown.seen.count(b"family") >= 2)
        if is_killed:
            shown.process.send_signal(signal.SIGKILL)
    # The end of the block has closed the terminal.
    wait_for(lambda: shell.state()["status"] == "interrupted")

    assert shown.process.wait(60) == (-signal.SIGKILL if is_killed else 129)
    assert shell.state()["exit_code"] == 129
    wait_for(lambda: not shell.left())


def test_prepare_gets_no_grace(shell: CommandLine) -> None:
    shell.script("task.py", SLEEPS)
    shell.script("prepare.py", DEAF)
    spec = shell.spec("s.json", {"script": "task.py", "prepare": {"script": "prepare.py"}})
    run = Live(shell, "up", spec.name)
    wait_for(lambda: "up" in (run.folder / "logs/prepare/local.log").read_text()
             if (run.folder / "logs/prepare/local.log").exists() else False)  # fmt: skip

    run.process.send_signal(signal.SIGINT)

    assert run.end() == 130
    assert run.state()["status"] == "interrupted"
    assert "interrupted after" in run.said()
    assert run.log("worker:0") == "", "no task was started"


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.4])
def test_ctrl_c_at_any_moment_of_the_start_ends_the_run_and_leaves_nothing(
    shell: CommandLine, after_s: float
) -> None:
    shell.script("task.py", SLEEPS)
    run = Live(shell, "run", "-n", "2", "task.py")
    _ = run.folder
    time.sleep(after_s)

    run.process.send_signal(signal.SIGINT)

    assert run.end() == 130, run.said()
    assert "Traceback" not in run.said()
    assert run.state()["status"] == "interrupted"


@pytest.mark.parametrize("now", [False, True], ids=["down", "down-now"])
def test_down_from_another_terminal_stops_the_run(shell: CommandLine, now: bool) -> None:
    run = up(shell, DEAF)
    waiting = shell.start("wait", run.run_id)

    since = time.monotonic()
    done = shell.run("down", *(["--now"] if now else []), run.run_id)
    took = time.monotonic() - since

    assert done.code == 0, done.err
    assert f"{run.run_id} has ended: interrupted" in done.err
    assert run.end() == 143
    assert "stopping the run: tfcluster down" in run.said()
    assert waiting.wait(60) == 143
    assert ("heard SIGTERM" in run.log("worker:0")) is not now
    if not now:
        assert took >= 2.0


def test_a_stopped_task_gets_sigterm_at_once(shell: CommandLine) -> None:
    """SIGSTOP must not keep a task, or its run, from ending."""
    run = up(shell, SLEEPS)
    pid = wait_for(lambda: run.state()["tasks"][0]["pid"])
    os.kill(pid, signal.SIGSTOP)

    run.process.send_signal(signal.SIGINT)

    assert run.end() == 130
    signals = [task["signal"] for task in run.state()["tasks"]]
    assert signals == [signal.SIGTERM] * 2, "not killed after the grace"


def test_down_all_stops_every_run_at_the_same_time(shell: CommandLine) -> None:
    shell.script("task.py", DEAF)
    runs = [Live(shell, "run", "-n", "1", "task.py", name=f"r{number}") for number in range(3)]
    for run in runs:
        run.wait_for_line("up", "worker:0")

    done = shell.run("down", "--all")

    assert done.code == 0, done.err
    assert [run.end() for run in runs] == [143] * 3
    ends = [run.state()["ended_at"] for run in runs]
    assert max(ends) - min(ends) < 1.9, "each takes two seconds, one after the other takes six"
    assert shell.run("down", "--all").code == 0
