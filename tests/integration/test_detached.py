"""`up -d` returns once all tasks have started; its run lives on until `down` or a signal."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from .commandline import CommandLine, screen, wait_for
from .live import FAMILY, Family, InBackground, Live, is_alive, the_status

SLEEPS = """
import time
print("up", flush=True)
time.sleep(300)
"""
FAULT = """
from tfcluster.coordinator.startup import Startup
async def fail(*_, **__):
    raise RuntimeError("boom")
Startup.hold_ports = fail
"""
QUICK = "print('up')\n"


def test_run_d_returns_when_all_tasks_have_started_and_prints_only_the_id(
    shell: CommandLine,
) -> None:
    shell.script("family.py", FAMILY)
    run = InBackground(shell, "run", "-n", "2", "family.py")

    assert run.out.read_text() == f"{run.folder.name}\n"
    assert run.folder.is_dir()
    state = run.state()
    assert state["status"] == "running"
    assert all(is_alive(task["pid"]) for task in state["tasks"])
    assert run.id in run.said(), "the start panel"
    assert "worker:1" in run.said()
    assert f"tfcluster down {run.id[-4:]}" in run.said()
    family = Family(run)
    shell.script("finish", "")
    assert shell.run("wait", run.id).code == 0
    family.assert_gone()
    assert run.state()["status"] == "succeeded"
    assert not (run.folder / "coordinator.log").exists(), "nothing was said"


def test_the_coordinator_is_a_separate_process_without_a_terminal(shell: CommandLine) -> None:
    shell.script("task.py", SLEEPS)
    run = InBackground(shell, "run", "-n", "1", "task.py")
    coordinator = psutil.Process(run.coordinator())

    assert os.getsid(coordinator.pid) not in (os.getsid(0), coordinator.pid)
    assert coordinator.cwd() == "/"
    assert coordinator.terminal() is None
    log = str(run.folder / "coordinator.log")
    ends = [os.readlink(f"/proc/{coordinator.pid}/fd/{fd}") for fd in range(3)]
    assert ends == [os.devnull, log, log]
    assert run.id in run.said()
    run.down()
    wait_for(lambda: not is_alive(coordinator.pid))


def test_a_detached_run_outlives_its_terminal_and_down_stops_it_from_another(
    shell: CommandLine,
) -> None:
    shell.script("family.py", FAMILY)
    with screen(shell, "run", "-d", "-n", "2", "--name", "r", "family.py") as shown:
        assert shown.read_all() == 0
    run_id = shell.last_run().name
    assert run_id in shown.seen.decode()
    os.kill(shell.state()["pid"], signal.SIGHUP)
    time.sleep(0.3)
    assert the_status(shell, run_id)["status"] == "running"

    waiting = shell.start("wait", run_id)
    done = shell.run("down", run_id)

    assert done.code == 0, done.err
    assert waiting.wait(60) == 143
    assert the_status(shell, run_id)["status"] == "interrupted"


def test_a_detached_run_that_ends_at_once_succeeds(shell: CommandLine) -> None:
    shell.script("task.py", QUICK)
    run = InBackground(shell, "run", "-n", "2", "task.py")
    wait_for(lambda: run.state()["status"] == "succeeded")
    assert run.out.read_text() == f"{run.id}\n"
    waited = shell.run("wait")
    assert (waited.code, waited.err) == (0, f"{run.id} has already ended: succeeded\n")
    assert shell.run("wait").code == 2, "it has been waited for"


def test_up_d_reads_the_spec_from_a_pipe_and_its_id_can_be_captured(shell: CommandLine) -> None:
    shell.script("task.py", SLEEPS)
    spec = shell.spec("s.json", {"script": "task.py"})

    done = shell.shell(f'id=$(tfcluster up -d - < {spec.name}) && tfcluster down "$id" && echo $id')

    assert done.code == 0, done.err
    assert done.out.decode().strip() == shell.last_run().name
    wait_for(lambda: not shell.left())  # the coordinator reports the end just before it exits


def test_json_reports_run_and_folder(shell: CommandLine) -> None:
    shell.script("task.py", QUICK)
    done = shell.run("run", "-d", "--json", "-n", "1", "task.py")
    assert done.code == 0
    answer = json.loads(done.out)
    assert Path(answer["folder"]).name == answer["run"] == shell.last_run().name
    shell.run("wait", answer["run"])
    wait_for(lambda: not shell.left())


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        ({"script": "task.py", "kind": "plane"}, 2, "job.kind"),
        ({"script": "not-there.py"}, 2, "not-there.py"),
        ({"command": ["/not/there"]}, 3, "cannot start"),
        ({"script": "task.py", "prepare": {"command": ["false"]}}, 3, "prepare failed"),
    ],
    ids=["spec", "script", "command", "prepare"],
)
def test_errors_at_the_start_are_reported_as_in_the_foreground(
    shell: CommandLine, spec: dict[str, object], code: int, words: str
) -> None:
    shell.script("task.py", SLEEPS)
    path = shell.spec("s.json", spec, supervision={"max_restarts": 0})

    foreground = shell.run("up", path.name)
    done = shell.run("up", "-d", path.name)

    assert (done.code, foreground.code) == (code, code), done.err
    assert done.out == b"", "no id of a run that does not run"
    assert words in done.err
    assert words in foreground.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_before_up_d_returns_stops_the_run(
    shell: CommandLine, number: int, code: int
) -> None:
    shell.script("task.py", SLEEPS)
    job = {"script": "task.py", "prepare": {"command": ["sleep", "300"]}}
    spec = shell.spec("s.json", job)
    run = Live(shell, "up", "-d", spec.name)
    wait_for(lambda: "preparing" in run.said())

    run.process.send_signal(number)

    assert run.end() == code
    assert run.out.read_text() == ""
    assert run.state()["status"] == "interrupted"
    assert f"{run.run_id} ended before all of its tasks had started" in run.said()


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.3])
def test_ctrl_c_during_the_start_either_stops_the_run_or_leaves_it_running(
    shell: CommandLine, after_s: float
) -> None:
    shell.script("task.py", SLEEPS)
    run = Live(shell, "run", "-d", "-n", "2", "task.py")
    _ = run.folder
    time.sleep(after_s)

    run.process.send_signal(signal.SIGINT)

    code = run.end()
    assert code in (0, 130), run.said()
    if code == 0:
        assert run.out.read_text() == f"{run.run_id}\n"
        assert shell.run("down", run.run_id).code == 0
    assert run.state()["status"] == "interrupted"
    assert "Traceback" not in run.said()


def test_a_coordinator_killed_during_the_start_is_reported(shell: CommandLine) -> None:
    shell.script("task.py", SLEEPS)
    spec = shell.spec("s.json", {"script": "task.py", "prepare": {"command": ["sleep", "300"]}})
    run = Live(shell, "up", "-d", spec.name)
    wait_for(lambda: "preparing" in run.said())

    os.kill(run.state()["pid"], signal.SIGKILL)

    assert run.end() == 3
    assert "died before all tasks ran" in run.said()
    assert shell.run("down", run.run_id).code == 0
    wait_for(lambda: not shell.left())


def test_an_internal_error_is_reported_and_recorded(shell: CommandLine) -> None:
    shell.script("task.py", SLEEPS)
    shell.script("sitecustomize.py", FAULT)
    shell.env["PYTHONPATH"] = str(shell.cwd)

    done = shell.run("run", "-d", "task.py")

    assert done.code == 70, done.err
    assert done.out == b""
    assert "internal error: RuntimeError: boom" in done.err
    folder = shell.last_run()
    assert str(folder / "fault.txt") in done.err
    assert "RuntimeError: boom" in (folder / "fault.txt").read_text()
    assert "RuntimeError: boom" in (folder / "coordinator.log").read_text()
    state = shell.state()
    assert (state["status"], state["exit_code"]) == ("failed", 70)
    assert state["reason"] == shell.events()[-1]["reason"] == "internal error: RuntimeError: boom"
    assert str(folder / "fault.txt") in state["hint"]


def test_the_record_of_an_internal_error_has_no_secrets(shell: CommandLine) -> None:
    shell.script("task.py", SLEEPS)
    shell.script("sitecustomize.py", FAULT.replace("boom", "boom s3cret-value"))
    shell.env |= {"PYTHONPATH": str(shell.cwd), "API_KEY": "s3cret-value"}

    done = shell.run("run", "-d", "--set", "job.env.API_KEY=null", "task.py")

    assert done.code == 70, done.err
    folder = shell.last_run()
    assert "RuntimeError: boom ********" in (folder / "fault.txt").read_text()
    assert "s3cret-value" not in (folder / "coordinator.log").read_text()


def test_runs_of_one_name_started_in_one_second_share_nothing(shell: CommandLine) -> None:
    shell.script("family.py", FAMILY)
    spec = shell.spec("s.json", {"script": "family.py"})
    starting = [Live(shell, "up", "-d", spec.name, name=f"twin{n}") for n in range(2)]
    more = [shell.start("up", "-d", "--name", "twin", spec.name) for _ in range(2)]
    assert [run.end() for run in starting] == [0, 0]
    ids = [process.communicate()[0].decode().strip() for process in more]
    ids += [run.run_id for run in starting]

    states = [the_status(shell, run_id) for run_id in ids]

    assert len(set(ids)) == 4
    addresses = [task["address"] for state in states for task in state["tasks"]]
    assert len(set(addresses)) == 8
    assert len({state["pid"] for state in states}) == 4
    assert all(state["status"] == "running" for state in states)
    shell.script("finish", "")
    assert [shell.run("wait", run_id).code for run_id in ids] == [0] * 4
    wait_for(lambda: not shell.left())
