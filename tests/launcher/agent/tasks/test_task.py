"""A task's environment, descriptors and process group, and the report of its end."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from tests.launcher.agent.conftest import Rig, is_alive, kill, wait_until

SAY = "import json, os, sys; print(json.dumps({}))"


def test_exit_code_and_output_are_reported(rig: Rig) -> None:
    started = rig.start_python("import sys; print('out'); sys.stderr.write('err\\n'); sys.exit(7)")
    assert started["type"] == "task_started"
    exited = rig.exited()
    assert (exited["exit_code"], exited["signal"], exited["ended_by"]) == (7, None, "itself")
    assert exited["peak_rss_bytes"] > 1 << 20
    assert 0 < exited["duration_s"] < 20
    assert sorted(rig.log().read_text().split()) == ["err", "out"]


def test_the_signal_that_ended_a_task_is_reported(rig: Rig) -> None:
    pid = rig.start("sleep", "60")["pid"]
    kill(pid)
    exited = rig.exited()
    assert (exited["exit_code"], exited["signal"]) == (None, signal.SIGKILL)


def test_the_environment_is_the_agent_s_minus_unset_plus_env(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = SAY.format("{k: os.environ.get(k) for k in ('HOME', 'PATH', 'NEW')}")
    rig.start_python(code, unset=["HOME"], env={"NEW": "äöü=1"})
    rig.exited()
    assert json.loads(rig.log().read_text()) == {
        "HOME": None,
        "PATH": os.environ["PATH"],
        "NEW": "äöü=1",
    }


@pytest.mark.linux("cores are pinned")
def test_a_task_has_its_own_group_directory_and_cores_and_no_agent_descriptor(rig: Rig) -> None:
    core = min(os.sched_getaffinity(0))
    code = SAY.format(
        "[os.getpgrp() == os.getpid(), os.getcwd(), list(os.sched_getaffinity(0)),"
        " sys.stdin.read(), [fd for fd in os.listdir('/proc/self/fd')"
        " if int(fd) > 2 and os.path.exists('/proc/self/fd/' + fd)]"
        " == [os.environ['TFCLUSTER_EVENTS_FD']]]"
    )
    rig.start_python(code, cwd=str(rig.folder), cores=[core])
    rig.exited()
    assert json.loads(rig.log().read_text()) == [True, str(rig.folder), [core], "", True]


def test_default_signals_are_restored(rig: Rig) -> None:
    rig.start("sh", "-c", "yes | head -1; kill -PIPE $$")
    assert rig.exited()["signal"] == signal.SIGPIPE


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"argv": ["/no/such/python"]}, "/no/such/python: No such file"),
        ({"argv": ["true"], "cwd": "/no/such/folder"}, "/no/such/folder: No such file"),
        ({"argv": ["/etc/passwd"]}, "/etc/passwd: Permission denied"),
    ],
    ids=["program", "cwd", "not executable"],
)
def test_a_program_that_cannot_be_started_is_named(
    rig: Rig, spec: dict[str, object], reason: str
) -> None:
    entry = {"task": "worker:0", "env": {}, "cwd": "/", "log": str(rig.log())} | spec
    rig.peer.send("start", attempt=1, tasks=[entry])
    assert reason in rig.peer.take("start_failed")["error"]
    assert rig.start("true")["type"] == "task_started"


def test_a_running_task_is_not_started_twice(rig: Rig) -> None:
    rig.start("sleep", "60")
    assert rig.start("sleep", "60")["type"] == "start_failed"


def test_an_unknown_order_is_refused(rig: Rig) -> None:
    rig.peer.send("dance")
    assert "dance" in rig.peer.take("refused")["reason"]
    rig.peer.send("stop", tasks=["worker:0"])
    assert "grace_s" in rig.peer.take("refused")["reason"]


def test_a_signal_reaches_the_task(rig: Rig) -> None:
    rig.start("sh", "-c", "trap 'echo got it; exit 3' USR1; echo ready; while :; do sleep .1; done")
    wait_until(lambda: rig.log().read_bytes() == b"ready\n")
    rig.peer.send("signal", tasks=["worker:0"], signal=int(signal.SIGUSR1))
    exited = rig.exited()
    assert (exited["exit_code"], exited["ended_by"]) == (3, "itself")


EVENTS = """
import json, os, socket, sys
line = socket.socket(fileno=int(os.environ["TFCLUSTER_EVENTS_FD"]))
"""


def test_reports_of_a_task_come_before_its_exit_in_order_without_malformed_ones(rig: Rig) -> None:
    code = EVENTS + (
        "for step in range(50): line.send(json.dumps({'type': 'progress', 'step': step}).encode())"
        "\nfor wrong in (b'', b'not json', b'[]', b'[' * 60_000, b'\\xff', b'x' * 65536):"
        " line.send(wrong)"
        "\nline.send(json.dumps({'type': 'task_error', 'traceback': 'x' * 60000}).encode())"
    )
    rig.start_python(code)
    rig.exited()
    events = [m["event"] for m in rig.peer.messages if m["type"] == "task_event"]
    assert [event.get("step") for event in events[:-1]] == list(range(50))
    assert (events[-1]["type"], len(events[-1]["traceback"])) == ("task_error", 60000)


def test_a_task_that_closes_its_output_keeps_running(rig: Rig) -> None:
    code = "import os, time; print('last words', flush=True); os.close(1); os.close(2)"
    rig.start_python(code + "; time.sleep(0.5); os._exit(4)")
    exited = rig.exited()
    assert exited["exit_code"] == 4
    assert exited["duration_s"] >= 0.5
    assert rig.log().read_text() == "last words\n"


def test_output_is_appended_to_an_existing_log(rig: Rig) -> None:
    for _ in range(2):
        rig.start("echo", "again")
        rig.exited()
    assert rig.log().read_text() == "again\nagain\n"


def test_processes_in_a_task_s_group_end_with_it(rig: Rig) -> None:
    rig.start("sh", "-c", "sleep 60 & echo $!")
    rig.exited()
    wait_until(lambda: not is_alive(int(rig.log().read_text())))


@pytest.mark.linux("stray processes are found in /proc")
def test_orphans_outside_the_group_end_with_the_agent(rig: Rig) -> None:
    rig.start(sys.executable, "-S", "-c", "import os\nif os.fork(): os._exit(0)\nos.setsid()\n"
              "print(os.getpid(), flush=True)\nos.close(1); os.close(2)\n"
              "import time; time.sleep(60)")  # fmt: skip
    rig.exited()
    wait_until(lambda: rig.log().read_text().endswith("\n"))
    orphan = int(rig.log().read_text())
    assert is_alive(orphan)
    rig.shut_down()
    assert not is_alive(orphan)


def test_a_task_that_is_ending_is_not_told_to_have_refused_a_trace(rig: Rig) -> None:
    closes = 'os.close(int(os.environ["TFCLUSTER_EVENTS_FD"]))'
    rig.start_python(f"import os, time; {closes}; print('ready', flush=True); time.sleep(600)")
    wait_until(lambda: b"ready" in rig.log().read_bytes())
    rig.peer.send("trace_steps", task="worker:0", id="one", file="/no/such", within_s=9.0, steps=1)
    rig.peer.send("stop", tasks=["worker:0"], grace_s=0)
    assert rig.peer.take("task_event", "task_exited")["type"] == "task_exited"
