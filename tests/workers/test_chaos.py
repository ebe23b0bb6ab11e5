"""Faults are injected in the task itself, at the requested place, and are reported."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.commandline import wait_for

from .conftest import Boot, Start

LOOP = """
from tfcluster_workers import reporting
for step in range(1, 11):
    reporting.progress(step)
    print("step", step)
"""


def settings(**fault: Any) -> dict[str, str]:
    return {"TFCLUSTER_SETTINGS": json.dumps({"chaos": [{"fault": "as written", **fault}]})}


def at_step(verb: str, number: int = 4, **more: Any) -> dict[str, str]:
    return settings(do=verb, place="step", number=number, **more)


@pytest.fixture
def loop(tmp_path: Path) -> str:
    (tmp_path / "loop.py").write_text(LOOP)
    return str(tmp_path / "loop.py")


@pytest.mark.parametrize(
    ("verb", "code"),
    [("kill", -signal.SIGKILL), ("term", -signal.SIGTERM), ("exit", 3)],
)
def test_a_fault_is_reported_and_ends_the_task_at_its_step(
    boot: Boot, loop: str, python: str, verb: str, code: int
) -> None:
    ended = boot("script", loop, python=python, env=at_step(verb, exit_code=3))
    assert (ended.code, ended.out) == (code, "step 1\nstep 2\nstep 3\n"), ended.err
    assert [event["step"] for event in ended.of("progress")] == [1, 4], "nothing is held back"
    assert ended.events[-1] == {"type": "chaos_injected", "fault": "as written", "step": 4}


def test_raise_is_reported_at_the_user_line(boot: Boot, loop: str) -> None:
    ended = boot("script", loop, env=at_step("raise"))
    (error,) = ended.of("task_error")
    assert (ended.code, error["exception"]) == (1, "tfcluster_workers.chaos.InjectedFault")
    assert (error["file"], error["line"]) == (loop, 4)
    assert error["message"] == "injected: as written"
    assert "chaos.py" not in ended.err


def test_report_is_only_reported(boot: Boot, loop: str) -> None:
    ended = boot("script", loop, env=at_step("report", task="ps:0"))
    assert (ended.code, ended.out.count("step")) == (0, 10)
    (event,) = ended.of("chaos_injected")
    assert event["task"] == "ps:0"


@pytest.mark.linux("the state of a process is in /proc")
def test_stop_freezes_the_process_and_hang_only_the_training_thread(
    start: Start, loop: str
) -> None:
    stopped = start("script", loop, env=at_step("stop"))
    hanging = start("script", loop, env=at_step("hang"))
    wait_for(lambda: state_of(stopped.process.pid) == "T")
    os.kill(stopped.process.pid, signal.SIGCONT)
    assert stopped.end().code == 0
    wait_for(lambda: any(event["type"] == "chaos_injected" for event in hanging.events))
    wait_for(lambda: state_of(hanging.process.pid) == "S")  # the report comes before the hang
    os.kill(hanging.process.pid, signal.SIGUSR1)
    time.sleep(0.3)
    assert state_of(hanging.process.pid) == "S"
    os.kill(hanging.process.pid, signal.SIGTERM)
    ended = hanging.end()
    assert (ended.code, ended.out) == (-signal.SIGTERM, "step 1\nstep 2\nstep 3\n")
    assert "in _hang" in ended.err
    assert "loop.py" in ended.err


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_fault_at_a_skipped_step_is_injected_at_the_next_report(
    boot: Boot, tmp_path: Path
) -> None:
    (tmp_path / "jumps.py").write_text(LOOP.replace("range(1, 11)", "range(0, 100, 10)"))
    ended = boot("script", str(tmp_path / "jumps.py"), env=at_step("exit", 25))
    assert ended.events[-1]["step"] == 30


@pytest.mark.parametrize("verb", ["kill", "raise"])
def test_a_fault_at_start_is_injected_before_the_script(boot: Boot, loop: str, verb: str) -> None:
    ended = boot("script", loop, env=settings(do=verb, place="start"))
    assert ended.out == ""
    assert ended.events[0] == {"type": "chaos_injected", "fault": "as written"}


def test_a_fault_at_join_is_injected_when_the_task_waits_for_its_peers(
    boot: Boot, tmp_path: Path
) -> None:
    (tmp_path / "join.py").write_text(
        "from tfcluster_workers import reporting\nprint('before')\n"
        "reporting.waiting_for_peers()\nprint('after')"
    )
    ended = boot("script", str(tmp_path / "join.py"), env=settings(do="kill", place="join"))
    assert ended.out == "before\n"
    assert [event["type"] for event in ended.events] == ["waiting_for_peers", "chaos_injected"]


def test_a_fault_is_injected_at_a_save_that_only_the_job_reports(
    boot: Boot, tmp_path: Path
) -> None:
    (tmp_path / "saves.py").write_text(
        "from tfcluster_workers import reporting\nfor number in (1, 2, 3):\n"
        "    print(number)\n    reporting.saved('weights.npy', step=number)"
    )
    fault = settings(do="kill", place="save", number=2)
    assert boot("script", str(tmp_path / "saves.py"), env=fault).out == "1\n2\n"


def test_a_forked_child_gets_no_fault(boot: Boot, tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(
        "import os\nfrom tfcluster_workers import reporting\n"
        "if os.fork() == 0:\n    reporting.progress(9)\n    os._exit(0)\n"
        "print(os.wait()[1])"
    )
    ended = boot("script", str(tmp_path / "forks.py"), env=at_step("kill"))
    assert (ended.code, ended.out, ended.of("chaos_injected")) == (0, "0\n", [])


def test_without_faults_a_step_costs_almost_nothing() -> None:
    from tfcluster_workers import chaos

    began = time.process_time()
    for step in range(100_000):
        chaos.at_step(step)
    assert time.process_time() - began < 2.0
