"""The summary of a fault says when it was detected and resumed, or why it was never injected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.launcher.conftest import plan_of

from tfcluster.rundir import chaos
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.snapshot import RunSnapshot

W1: dict[str, Any] = {"task": "worker:1"}


def injected(fault: str = "kill worker:1 at step 5") -> Event:
    return ev.ChaosInjected(fault=fault, **W1, attempt=1, step=5)


def fold_events(*history: tuple[float, Event]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for now, event in history:
        chaos.apply(records, event, now)
    return records


def killed(task: str, **facts: Any) -> Event:
    return ev.TaskExited(task=task, attempt=1, exit_code=None, signal=9, **facts)


def step(task: str, attempt: int, number: int) -> Event:
    return ev.Progress(task=task, attempt=attempt, step=number)


def test_a_kill_is_detected_by_the_exit_and_resumed_with_the_next_first_step() -> None:
    (record,) = fold_events(
        (100.0, injected()),
        (100.25, killed("worker:1")),
        (101.0, step("worker:0", 1, 6)),
        (103.0, ev.TaskReady(**W1, attempt=2)),
        (104.5, step("worker:0", 2, 4)),
        (105.0, step("worker:1", 2, 5)),
    )
    assert record == {
        "fault": "kill worker:1 at step 5", "task": "worker:1", "attempt": 1, "step": 5,
        "injected_at": 100.0, "detected_after_s": 0.25,
        "resumed_after_s": 4.5, "resumed_step": 4,
    }  # fmt: skip


def test_a_task_without_steps_has_resumed_when_it_is_ready_again() -> None:
    (record,) = fold_events(
        (1.0, injected()), (2.0, killed("worker:1")), (4.0, ev.TaskReady(**W1, attempt=2))
    )
    assert record["resumed_after_s"] == 3.0
    assert "resumed_step" not in record


@pytest.mark.parametrize(
    ("fault", "sign"),
    [
        ("stop worker:1 at step 5", ev.TaskFrozen(**W1, attempt=1, signal=19)),
        ("hang worker:1 at step 5", ev.Stalled(silent_s=600)),
        ("hang worker:1 at step 5", ev.Diagnosis(root_cause=W1)),
        ("raise worker:1 at step 5", ev.TaskError(**W1, attempt=1, exception="E", message="m")),
        ("kill-agent local at step 5", ev.NodeLost(node="local", reason="its agent died")),
    ],
)
def test_a_fault_is_detected_by_the_first_event_that_shows_it(fault: str, sign: Event) -> None:
    (record,) = fold_events((1.0, injected(fault)), (3.5, sign))
    assert record["detected_after_s"] == 2.5


def test_events_of_other_tasks_and_exit_code_0_show_no_fault() -> None:
    (record,) = fold_events(
        (1.0, injected("term worker:1 at step 5")),
        (2.0, killed("worker:0")),
        (2.5, ev.NodeLost(node="other", reason="")),
        (3.0, ev.Diagnosis(root_cause={"task": "worker:0"})),
        (4.0, killed("worker:1", ended_by="tfcluster")),
        (9.0, ev.TaskExited(**W1, attempt=1, exit_code=0)),
    )
    assert record.keys() & {"detected_after_s", "resumed_after_s"} == set()


NEVER = [
    ("kill worker:1 at step 5000", 375, 1, "worker:1 reached step 375"),
    ("kill worker:1 at step 5000", None, 1, "the job reports no steps"),
    ("kill worker:1 at step 5 in attempt 2", 375, 1, "there was no attempt 2"),
    ("kill worker:1 at save 3", 375, 1, "worker:1 did not save that often"),
    ("kill worker:1 at join", 375, 1, "worker:1 never waited for its peers"),
]


@pytest.mark.parametrize(("text", "at", "attempt", "why"), NEVER)
def test_a_fault_that_was_never_injected_is_warned_about(
    state: RunSnapshot, text: str, at: int | None, attempt: int, why: str
) -> None:
    state.attempt, state.tasks[1].step = attempt, at
    faults = chaos.parse([text], plan_of())
    assert chaos.not_injected(faults, state) == (f"'{text}' was never injected: {why}",)


def test_an_injected_fault_is_not_warned_about(state: RunSnapshot) -> None:
    faults = chaos.parse(["kill worker:1 at step 5"], plan_of())
    chaos.apply(state.chaos, injected(), 1.0)
    assert chaos.not_injected(faults, state) == ()
    state.chaos.clear()
    state.attempt, state.tasks[0].step = 1, 9
    assert "worker:1 reported no steps" in chaos.not_injected(faults, state)[0]


def test_each_fault_keeps_its_own_times() -> None:
    other = ev.ChaosInjected(fault="raise worker:0 at step 6", task="worker:0", attempt=2, step=6)
    history: Sequence[tuple[float, Event]] = (
        (1.0, injected()), (2.0, killed("worker:1")), (3.0, step("worker:1", 2, 3)),
        (4.0, other), (4.5, killed("worker:0")), (5.5, step("worker:1", 3, 3)),
    )  # fmt: skip
    first, second = fold_events(*history)
    assert (first["detected_after_s"], first["resumed_after_s"]) == (1.0, 2.0)
    assert (second["detected_after_s"], second["resumed_after_s"]) == (0.5, 1.5)
