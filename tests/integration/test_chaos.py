"""A run detects and survives every kind of injected fault, one after the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.documentation import unprinted

from .commandline import CommandLine

LOOP = """
import os, time
from tfcluster_workers import reporting
reporting.waiting_for_peers()
attempt, task = os.environ["TFCLUSTER_ATTEMPT"], os.environ["TFCLUSTER_TASK"]
open(f"{task} in {attempt}", "w").close()
while not all(os.path.exists(f"worker:{n} in {attempt}") for n in (0, 1)):
    time.sleep(0.02)
reporting.ready()
for step in range(1, 41):
    time.sleep(0.02)
    reporting.progress(step)
    if step == 2:
        reporting.saved("by-own-means", step=2)
print("trained", os.environ["TFCLUSTER_TASK"])
"""
PATIENT = {"max_restarts": 20, "restart_on_error": True, "backoff_s": 0, "stall_deadline_s": 4}
FAULTS = [
    "kill worker:1 at step 3",
    "stop worker:0 at step 3 in attempt 2",
    "kill-agent worker:1 at step 3 in attempt 3",
    "raise worker:0 at join in attempt 4",
    "exit 3 worker:1 at start in attempt 5",
    "term worker:1 at save in attempt 6",
    "hang worker:0 at step 3 in attempt 7",
]
NEVER = "kill worker:0 at step 5000 in attempt 8"


@pytest.mark.slow
def test_each_fault_is_injected_once_detected_and_survived(shell: CommandLine) -> None:
    shell.script("loop.py", LOOP)
    shell.is_doubtful = True
    spec = shell.spec("s.json", {"script": "loop.py"}, supervision=PATIENT)
    first, *others = FAULTS
    done = shell.run("up", str(spec), "--chaos", first, "--chaos", "; ".join([*others, NEVER]))
    assert done.code == 0, done.err
    state = json.loads(shell.run("status", "--json").out)
    records: list[dict[str, Any]] = state["chaos"]
    assert [record["fault"] for record in records] == FAULTS
    assert [record["attempt"] for record in records] == [1, 2, 3, 4, 5, 6, 7]
    assert [record.get("step") for record in records] == [3, 3, 3, None, None, 2, 3]
    for record in records:
        assert record["detected_after_s"] < record["resumed_after_s"], record
        assert record["resumed_step"] < 40
    assert records[6]["detected_after_s"] > 3.9, "a hang is only found by the stall deadline"
    assert state["attempt"] == 8
    assert f"'{NEVER}' was never injected: worker:0 reached step 40" in done.err
    assert unprinted("guides/chaos.md", "never injected", done.err) == []


@pytest.mark.parametrize(
    ("fault", "job", "said"),
    [
        ("kill worker:7 at step 5", {"script": "loop.py"}, "the tasks are worker:0, worker:1"),
        ("kill worker:1 at step 5", {"command": ["true"]}, "the job reports no steps"),
        ("kill worker:1 at step 5", {"script": "loop.py", "hooks": "off"}, "its hooks are off"),
        ("kill worker:1 at step 5", {"script": "loop.py", "kind": "plain"}, "reports no steps"),
    ],
)
def test_an_impossible_fault_is_refused_before_a_run_is_created(
    shell: CommandLine, fault: str, job: dict[str, Any], said: str
) -> None:
    shell.script("loop.py", LOOP)
    done = shell.run("up", str(shell.spec("s.json", job)), "--chaos", fault)
    assert (done.code, done.out) == (2, b"")
    assert said in done.err
    assert not (shell.home / "runs").exists()


def test_a_fault_at_a_step_is_never_injected_if_the_job_reports_no_steps(
    shell: CommandLine,
) -> None:
    shell.script("still.py", "print('done')")
    done = shell.run("run", "--chaos", "kill worker:1 at step 5", "still.py")
    assert done.code == 0
    assert "'kill worker:1 at step 5' was never injected: the job reports no steps" in done.err
