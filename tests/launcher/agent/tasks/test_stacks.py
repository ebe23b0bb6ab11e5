"""A task's stacks: asked for with a signal, read from its log."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.launcher.agent.conftest import Rig, wait_until

from tfcluster.agent.tasks import stacks

pytestmark = pytest.mark.linux("the handlers of a task without hooks are seen in /proc")

BOOTED = f"""
import faulthandler, signal, sys, threading, time
faulthandler.register({int(stacks.SIGNAL)}, file=sys.__stderr__, all_threads=True)
"""
DUMP = """\
 12/100 [==>...........] Thread 0x00007f22aa5fe6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007f22ab5fe6c0 (most recent call first):
  <no Python frame>

Current thread 0x00007f230bb52740 (most recent call first):
  File "{script}", line 2 in load
  File "{script}", line 9 in <module>
"""


def test_the_main_thread_comes_first_and_frames_of_the_script_have_their_source(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("def load():\n    time.sleep(100)\n")
    main, other = stacks.parse(DUMP.replace("{script}", str(script)))
    assert [(frame.line, frame.function, frame.code) for frame in main.frames] == [
        (2, "load", "time.sleep(100)"),
        (9, "<module>", ""),  # the file is shorter
    ]
    assert [frame.code for frame in other.frames] == ["", ""]


def test_a_sleeping_task_reports_where_it_is_and_runs_on(rig: Rig) -> None:
    code = BOOTED + "def nap():\n    print('ready', flush=True)\n    time.sleep(600)\nnap()\n"
    rig.start_python(code)
    wait_until(lambda: b"ready" in rig.log().read_bytes())
    for _ in range(2):
        rig.peer.send("take_stacks", tasks=["worker:0", "worker:9"])
        answer = rig.peer.take("stacks")
        frames = answer["threads"][0]["frames"]
        assert [frame["function"] for frame in frames] == ["nap", "<module>"]
        assert (answer["task"], answer["silence"]) == ("worker:0", "")
    assert b"most recent call first" in rig.log().read_bytes()


def test_a_task_without_a_handler_is_not_ended_by_the_signal(rig: Rig) -> None:
    rig.start("sleep", "600")
    rig.peer.send("take_stacks", tasks=["worker:0"])
    answer = rig.peer.take("stacks")
    assert (answer["threads"], "no hooks" in answer["silence"]) == ([], True)
    rig.peer.send("stop", tasks=["worker:0"], grace_s=0)
    assert rig.exited()["ended_by"] == "tfcluster"


def test_a_stopped_task_says_that_it_is_stopped(rig: Rig) -> None:
    started = rig.start_python(BOOTED + "print('ready', flush=True)\ntime.sleep(600)\n")
    wait_until(lambda: b"ready" in rig.log().read_bytes())
    os.kill(started["pid"], signal.SIGSTOP)
    rig.peer.take("task_frozen")
    rig.peer.send("take_stacks", tasks=["worker:0"])
    answer = rig.peer.take("stacks")
    assert (answer["threads"], answer["silence"]) == ([], "it is stopped by a signal")


def test_a_task_that_ends_before_it_answers_sends_no_stacks(rig: Rig) -> None:
    started = rig.start_python(BOOTED + "print('ready', flush=True)\ntime.sleep(600)\n")
    wait_until(lambda: b"ready" in rig.log().read_bytes())
    os.kill(started["pid"], signal.SIGSTOP)  # it cannot answer
    rig.peer.take("task_frozen")
    rig.peer.send("take_stacks", tasks=["worker:0"])
    os.kill(started["pid"], signal.SIGKILL)
    rig.exited()
    assert not [message for message in rig.peer.messages if message["type"] == "stacks"]
