"""No process that a benchmark starts outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from benchmarks.gathering import put_behind
from benchmarks.harness import Failed
from benchmarks.sandbox import Sandbox, lives, sandbox

RUNAWAY = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open("away", "w").write(str(os.getpid()))
    time.sleep(300)
"""
"""A process that leaves its group, its session and its parent, and ignores SIGTERM."""


def _run_away(box: Sandbox) -> int:
    box.run([sys.executable, "-c", RUNAWAY])
    box.until(lambda: bool((box.folder / "away").exists() and _text(box)), "it to be away")
    return int(_text(box))


def _text(box: Sandbox) -> str:
    return (box.folder / "away").read_text()


def test_a_process_that_left_its_group_and_session_is_killed() -> None:
    with sandbox() as box:
        pid = _run_away(box)
        assert pid in [process.pid for process in box.processes()]
    assert not lives(pid)
    assert not box.folder.exists()


def test_an_interrupted_benchmark_kills_its_processes() -> None:
    pids = []

    def benchmark() -> None:
        with sandbox() as box:
            pids.append(_run_away(box))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        benchmark()
    (pid,) = pids
    assert not lives(pid)


def test_other_sandboxes_are_left_alone() -> None:
    with sandbox() as outer:
        pid = _run_away(outer)
        with sandbox() as inner:
            assert inner.processes() == []
        assert lives(pid)


def test_until_fails_once_the_process_has_ended() -> None:
    with sandbox() as box:
        process = box.start([sys.executable, "-c", "print('nothing to do')"])
        with pytest.raises(Failed, match="nothing to do"):
            box.until(lambda: False, "a file", process=process)


@pytest.mark.skipif(sys.platform != "linux", reason="autogroups are Linux's")
def test_put_behind_skips_processes_that_have_ended() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    lives = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        put_behind([ended.pid, lives.pid])
        assert os.getpriority(os.PRIO_PROCESS, lives.pid) == 19
    finally:
        lives.send_signal(signal.SIGKILL)
        lives.wait()
