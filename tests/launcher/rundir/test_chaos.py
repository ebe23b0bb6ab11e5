"""`--chaos` parses faults, assigns each to the task that injects it, and rejects bad text."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launcher.conftest import plan_of

from tfcluster.agent import catalogue as msg
from tfcluster.errors import UsageError
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir import chaos
from tfcluster.rundir.chaos import Fault

W0, W1 = TaskId("worker", 0), TaskId("worker", 1)


def parse_one(text: str, plan: Plan | None = None) -> Fault:
    (fault,) = chaos.parse([text], plan or plan_of())
    return fault


def error_of(text: str, plan: Plan | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        chaos.parse([text], plan or plan_of())
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kill worker:1 at step 50", {"do": "kill", "place": "step", "number": 50}),
        ("  exit 3   worker-1 at  start", {"do": "exit", "exit_code": 3, "place": "start"}),
        ("hang worker:1 at join", {"do": "hang", "place": "join"}),
        ("raise worker:1 at save 2", {"do": "raise", "place": "save", "number": 2}),
        ("term worker:1 at save", {"do": "term", "place": "save", "number": 1}),
        ("kill-agent worker:1 at step 7", {"do": "report", "place": "step", "number": 7}),
    ],
)
def test_a_fault_is_passed_only_to_its_task_in_its_attempt(
    text: str, expected: dict[str, Any]
) -> None:
    fault = parse_one(text)
    record = {"fault": " ".join(text.split()), **expected}
    assert chaos.settings_for([fault], W1, 1) == [record]
    assert chaos.settings_for([fault], W1, 2) == []
    assert chaos.settings_for([fault], W0, 1) == []


def test_several_faults_and_later_attempts_can_be_given() -> None:
    texts = [
        "kill worker:1 at step 5; stop worker:0 at save in attempt 2;",
        "term worker:0 at start",
    ]
    faults = chaos.parse(texts, plan_of())
    assert [(f.verb, f.task, f.attempt) for f in faults] == [
        ("kill", W1, 1), ("stop", W0, 2), ("term", W0, 1),
    ]  # fmt: skip


def test_the_coordinator_kills_agents_and_tasks_inject_other_faults() -> None:
    faults = chaos.parse(["kill-agent local at step 7", "kill worker:1 at step 7"], plan_of())
    assert faults[0].witness == W0, "the chief counts the steps"
    assert chaos.ordered(faults, faults[0].text) == faults[0]
    assert chaos.order(faults[0]) == msg.KillAgent()
    assert chaos.ordered(faults, faults[1].text) is None


def test_the_step_of_a_fault_in_a_serving_task_is_counted_by_the_chief() -> None:
    plan = plan_of("chief:0", "worker:0", "ps:0")
    fault = parse_one("kill ps:0 at step 50", plan)
    (record,) = chaos.settings_for([fault], TaskId("chief", 0), 1)
    assert (record["do"], record["task"]) == ("report", "ps:0")
    order = msg.Signal(tasks=["ps:0"], signal=signal.SIGKILL)
    assert chaos.ordered([fault], fault.text) == fault
    assert (fault.node, chaos.order(fault)) == ("local", order)
    assert parse_one("hang ps:0 at start", plan).witness == TaskId("ps", 0)
    assert "ps:0 only serves" in error_of("hang ps:0 at step 50", plan)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kil worker:1 at step 5", "'kil' is not a fault"),
        ("kill worker:1", "'at' is missing"),
        ("kill worker at step 5", "'worker' is not a task"),
        ("kill worker:7 at step 5", "the cluster has no worker:7"),
        ("kill-agent gpu9 at step 5", "the nodes are local"),
        ("kill worker:1 on step 5", "expected 'at', not 'on'"),
        ("kill worker:1 at noon", "'noon' is not a place"),
        ("kill worker:1 at step 0", "a step must be an integer of at least 1, not '0'"),
        ("kill worker:1 at step ³", "not '³'"),
        ("exit 256 worker:1 at start", "from 0 to 255, not '256'"),
        ("exit worker:1 at start", "an exit code must be an integer"),
        ("kill worker:1 at step 5 in attempt", "an attempt is missing"),
        ("kill worker:1 at step 5 in attempt 2 now", "unexpected text at the end"),
        ("", "a fault is missing"),
        ("kill worker:1 at step 5; kill worker:1  at step 5", "is given twice"),
    ],
)
def test_a_malformed_fault_is_rejected_with_the_reason(text: str, message: str) -> None:
    assert message in error_of(text)


WORDS = [*chaos.VERBS, *chaos.PLACES, "at", "in", "attempt", "worker:1", "worker:9", "3", "0", ";"]


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=9).map(" ".join))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        faults = chaos.parse([text], plan_of())
    except UsageError:
        return
    for fault in faults:
        assert chaos.parse([fault.text], plan_of()) == (fault,), "its text parses to the same fault"


def test_the_error_points_at_the_wrong_word_and_names_the_fix() -> None:
    lines = error_of("kill worker:7  at step 5").splitlines()
    assert lines[1:] == [
        "    kill worker:7 at step 5",
        "         ^^^^^^^^",
        "  → the tasks are worker:0, worker:1",
    ]
    assert "kill worker:1 at step 50" in error_of("kill"), "the grammar, with an example"


@pytest.mark.parametrize("place", ["step 5", "start", "join", "save"])
def test_without_hooks_no_fault_can_be_injected(place: str) -> None:
    message = error_of(f"kill worker:1 at {place}", plan_of(hooks=False))
    assert "it is a command, or its hooks are off" in message
    assert ("reports no steps" in message) is (place == "step 5")


def test_a_plain_job_accepts_no_fault_at_a_step_or_at_join() -> None:
    plain = plan_of(kind="plain")
    assert "reports no steps" in error_of("kill worker:1 at step 5", plain)
    assert "never waits" in error_of("kill worker:1 at join", plain)
    assert parse_one("kill worker:1 at start", plain).place == "start"
