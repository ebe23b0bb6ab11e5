"""A task that fails ends the run; the user sees which task, its failure and its last lines."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from .commandline import CommandLine, wait_for
from .live import Live, is_alive, the_status

FAILS = """
import os, signal, sys, time
if os.environ["TFCLUSTER_TASK"] != "worker:1":
    print("up", flush=True)
    time.sleep(300)
for number in range(30):
    print("words", number, flush=True)
{how}
"""
HOWS: dict[str, tuple[str, dict[str, Any], str]] = {
    "exit 3": ("sys.exit(3)", {"exit_code": 3}, "exit 3"),
    "exception": ("raise ValueError('bad batch')", {"exit_code": 1}, "ValueError: bad batch"),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", {"signal": 9}, "SIGKILL"),
    "SIGSEGV": ("import ctypes; ctypes.string_at(0)", {"signal": 11}, "segmentation fault in"),
}
COLLATERAL = """
import os, sys, time
if os.environ["TFCLUSTER_TASK"] == "worker:0":
    print("Collective ops is aborted by: some other worker", flush=True)
    sys.exit(1)
time.sleep(2)
raise RuntimeError("the first cause")
"""


def assert_whole(events: list[dict[str, Any]], *, status: str, exit_code: int) -> None:
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "run_started"
    last = events[-1]
    assert (last["type"], last["status"], last["exit_code"]) == ("run_finished", status, exit_code)
    assert sum(event["type"] == "run_finished" for event in events) == 1


@pytest.mark.parametrize("how", HOWS)
def test_a_failing_task_stops_the_others_and_the_summary_names_it(
    shell: CommandLine, how: str
) -> None:
    code, ended, word = HOWS[how]
    shell.script("task.py", FAILS.format(how=code))
    run = Live(shell, "run", "-n", "3", "task.py")

    assert run.end() == 1, run.said()

    summary = run.said()
    assert "root cause: worker:1" in summary
    assert word in summary
    lines = [line.strip() for line in summary.splitlines()]
    head = next(i for i, line in enumerate(lines) if line.startswith("last 20 lines of worker:1"))
    ends = {"exception": "ValueError: bad batch", "SIGSEGV": "frames in tfcluster"}
    last = ends.get(how, "words 29")
    assert lines[head + 20].endswith(last)
    assert "words 29" in lines[head:]
    status = the_status(shell, run.run_id)
    assert (status["status"], status["exit_code"]) == ("failed", 1)
    cause = status["diagnosis"]["root_cause"]
    assert cause["task"] == "worker:1"
    assert ended.items() <= cause.items()
    states = {task["task"]: task["state"] for task in status["tasks"]}
    assert states == {"worker:0": "stopped", "worker:1": "failed", "worker:2": "stopped"}
    assert not any(is_alive(task["pid"]) for task in status["tasks"])
    assert_whole(run.events(), status="failed", exit_code=1)


def test_a_collateral_failure_that_comes_before_its_cause_is_not_blamed(shell: CommandLine) -> None:
    shell.script("task.py", COLLATERAL)
    run = Live(shell, "run", "-n", "2", "task.py")

    assert run.end() == 1
    (diagnosis,) = [event for event in run.events() if event["type"] == "diagnosis"]
    assert diagnosis["root_cause"]["task"] == "worker:1"
    assert "RuntimeError: the first cause" in diagnosis["root_cause"]["reason"]
    assert diagnosis["collateral"] == ["worker:0"]
    assert "root cause: worker:1" in run.said()
    assert "worker:0 failed because of it" in run.said()
    assert_whole(run.events(), status="failed", exit_code=1)


@pytest.mark.parametrize("failing", [True, False], ids=["one-fails", "none-fails"])
def test_one_plain_task_that_fails_does_not_stop_the_others(
    shell: CommandLine, failing: bool
) -> None:
    shell.script(
        "task.py",
        "import os, sys, time\n"
        f"if {failing} and os.environ['TFCLUSTER_TASK'] == 'worker:0': sys.exit(3)\n"
        "time.sleep(2)\nprint('all done', flush=True)",
    )
    shell.spec("plain.json", {"script": "task.py", "kind": "plain"})
    run = Live(shell, "up", "plain.json")

    assert run.end() == (1 if failing else 0), run.said()
    assert "all done" in run.log("worker:1")
    assert run.state()["tasks"][1]["state"] == "succeeded"


CHIEF = """
import os, pathlib, sys, time
task = os.environ["TFCLUSTER_TASK"]
root = pathlib.Path(os.environ["TFCLUSTER_TEST_ROOT"])
worker_is_up, chief_leaves = root / "worker-is-up", root / "chief-leaves"

def wait_for(path):
    while not path.exists():
        time.sleep(0.02)

print("up", flush=True)
if task == "chief:0":
    wait_for(worker_is_up)
    chief_leaves.touch()
    sys.exit(0)
if task == "worker:0":
    worker_is_up.touch()
    wait_for(chief_leaves)
    time.sleep(1)
    print("late but well", flush=True)
    sys.exit(0)
time.sleep(300)
"""


def chief_spec(shell: CommandLine, cluster: dict[str, int], finish_grace_s: float) -> list[str]:
    shell.script("task.py", CHIEF)
    spec = shell.spec("chief.json", {"script": "task.py"}, cluster=cluster)
    return [spec.name, "--set", f"supervision.finish_grace_s={finish_grace_s}"]


def test_an_evaluator_that_never_ends_after_the_chief_is_stopped_with_a_warning(
    shell: CommandLine,
) -> None:
    cluster = {"chief": 1, "worker": 1, "evaluator": 1}
    run = Live(shell, "up", *chief_spec(shell, cluster, 4))

    assert run.end() == 0, run.said()
    assert "late but well" in run.log("worker:0")
    states = {task["task"]: task["state"] for task in run.state()["tasks"]}
    assert states == {"chief:0": "succeeded", "worker:0": "succeeded", "evaluator:0": "stopped"}
    (warning,) = [event["message"] for event in run.events() if event["type"] == "warned"]
    assert "evaluator:0" in warning
    assert warning in run.said()


def test_a_worker_that_must_be_stopped_after_the_chief_fails_the_run(shell: CommandLine) -> None:
    run = Live(shell, "up", *chief_spec(shell, {"chief": 1, "worker": 2}, 4))

    assert run.end() == 1, run.said()
    assert "late but well" in run.log("worker:0")
    said = " ".join(run.said().split())
    assert "root cause: worker:1" in said
    assert "it had not finished 4 s after the chief and was stopped" in said
    assert "--set supervision.finish_grace_s=SECONDS" in said


def test_a_failed_prepare_starts_no_task_and_every_command_gives_it_as_the_reason(
    shell: CommandLine,
) -> None:
    shell.script("task.py", "print('started')")
    say = "import os; print('no disk for', os.environ['API_TOKEN']); raise SystemExit(4)"
    shell.script("prepare.py", say)
    shell.env["API_TOKEN"] = "s3cr3t-s3cr3t"
    job = {"script": "task.py", "prepare": {"script": "prepare.py"}, "secrets": ["API_TOKEN"]}
    shell.spec("s.json", job)
    run = Live(shell, "up", "s.json")

    assert run.end() == 3
    said = " ".join(run.said().split())
    assert "prepare failed on local with exit code 4; no task was started" in said
    assert "its last line: no disk for ********" in said
    assert run.log("worker:0") == ""
    assert_whole(run.events(), status="failed", exit_code=3)
    finished = run.events()[-1]
    assert "no task was started; its last line: no disk for ********" in finished["reason"]
    assert "logs/prepare/local.log" in finished["hint"]
    waited = shell.run("wait", "--json", run.run_id)
    assert waited.code == 3
    for record in (run.state(), json.loads(waited.out)):
        assert (record["reason"], record["hint"]) == (finished["reason"], finished["hint"])
    status, listed = shell.run("status", run.run_id).out, shell.run("ps", "-a").out
    for shown in (status.decode(), listed.decode(), waited.err):
        assert "prepare failed on local with exit code 4" in shown
        assert "s3cr3t" not in shown


def test_the_children_of_a_killed_task_are_ended_too(shell: CommandLine) -> None:
    shell.script(
        "task.py",
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        "print('child', child.pid, flush=True)\ntime.sleep(300)",
    )
    run = Live(shell, "run", "-n", "2", "task.py")
    run.wait_for_line("child")
    child = int(run.log("worker:0").split()[1])
    pid = wait_for(lambda: run.state()["tasks"][0]["pid"])

    os.kill(pid, signal.SIGKILL)

    assert run.end() == 1
    assert not is_alive(child)
    assert "killed by SIGKILL" in run.said()


NONSENSE = r"""
import json, os, socket, sys
from tfcluster_workers import event_channel
raw = socket.socket(fileno=os.dup(event_channel.current()._socket.fileno()))
raw.setblocking(True)
for message in (
    b"", b"nonsense", b"\xff\x00", b"[]", b"null", b"[" * 60000, b'{"a":' * 300 + b"1" + b"}" * 300,
    b'{"type": ["progress"]}', b'{"type": "progress", "step": Infinity}',
    b'{"type": "progress", "step": 1, "metrics": {"loss": NaN, "x": "high"}}',
    b'{"type": "progress", "step": 1e400, "metrics": []}',
    b'{"type": "progress", "step": 3, "metrics": {"loss": NaN}, "steps_per_second": [1]}',
    b'{"type": "task_error"}',
    b'{"type": "task_error", "exception": [], "message": {}, "line": "x"}',
    b'{"type": "saved", "path": "\\u0000", "step": "many"}', b'{"type": "saved", "path": 3}',
    b'{"type": "note"}', b'{"type": "note", "message": "\\ud800 \\u001b[2J"}',
    b'{"type": "setting_read", "name": {}}',
):
    if message:
        raw.send(message)
print("said it all", flush=True)
"""


def test_invalid_reports_of_a_task_do_not_disturb_the_run(shell: CommandLine) -> None:
    shell.script("task.py", NONSENSE)
    shell.is_doubtful = True
    run = Live(shell, "run", "-n", "2", "task.py")

    assert run.end() == 0, run.said()
    assert "said it all" in run.log("worker:0")
    assert run.state()["tasks"][0]["step"] == 3
    assert "\x1b[2J" not in run.said(), "a note cannot clear the screen"
    assert_whole(run.events(), status="succeeded", exit_code=0)
    assert shell.run("status", run.run_id).code == 0
