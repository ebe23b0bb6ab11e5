"""Of several failed tasks one is the root cause; others are collateral or made its mistake."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import COLLATERAL, Replay, replay_of

from tfcluster.rundir import events as ev
from tfcluster.supervision.failure import Failure, Kind
from tfcluster.supervision.verdicts import CAUSE_WAIT_S, LAST_WORD_S, diagnosis, root_cause

RUNTIME = "tensorflow.python.framework.errors_impl"
ABORTED = "Collective ops is aborted by: Socket closed"


def report(exception: str, message: str, line: int = 12) -> dict[str, Any]:
    return {"exception": exception, "message": message, "file": "/job/main.py", "line": line}


def victim(task: str) -> Failure:
    return Failure(task, 1, None, error=report(f"{RUNTIME}.UnavailableError", ABORTED))


def raised(task: str, message: str = "no", line: int = 12) -> Failure:
    return Failure(task, 1, None, error=report("ValueError", message, line))


def observed(task: str, kind: Kind) -> Failure:
    return Failure(task, None, None, observed=kind, description="it was silent")


def killed(task: str) -> Failure:
    return Failure(task, None, signal.SIGKILL, last_lines=ABORTED)


PLAN = plan_of("worker:0", "worker:1", "worker:2")
ZERO, ONE, TWO = "worker:0", "worker:1", "worker:2"


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([victim(ZERO), raised(ONE)], 1),
        ([raised(ONE), victim(ZERO)], 0),
        ([victim(ZERO), killed(ONE), victim(TWO)], 1),
        ([raised(ZERO), killed(ONE)], 0),
        ([killed(ONE), raised(ZERO)], 0),
        ([victim(ZERO), victim(ONE)], 0),
        ([victim(ZERO), observed(ONE, Kind.LATE)], 1),
        ([victim(ZERO), observed(ONE, Kind.FROZEN)], 1),
        ([victim(ZERO), observed(ONE, Kind.NODE_LOST)], 1),
        ([observed(ONE, Kind.NODE_LOST), raised(ZERO)], 0),
        ([victim(ZERO), observed(ONE, Kind.LATE), raised(TWO)], 2),
        ([observed(ONE, Kind.STALLED), killed(TWO)], 1),
    ],
)
def test_the_first_failure_that_is_not_collateral_is_the_cause(
    failures: list[Failure], cause: int
) -> None:
    assert root_cause(failures) is failures[cause]


def test_a_run_without_failures_has_no_diagnosis() -> None:
    assert root_cause([]) is None
    assert diagnosis([], PLAN) is None


def test_a_diagnosis_has_the_fields_of_the_event() -> None:
    cause = Failure(
        ONE, 1, None, node="gpu2", attempt=3, error=report("ModuleNotFoundError", "No module")
    )
    assert diagnosis([victim(ZERO), cause, victim(TWO)], PLAN) == ev.Diagnosis(
        root_cause={
            "task": ONE,
            "node": "gpu2",
            "attempt": 3,
            "kind": "permanent",
            "reason": "ModuleNotFoundError: No module (main.py:12)",
            "exit_code": 1,
            "exception": "ModuleNotFoundError",
            "file": "/job/main.py",
            "line": 12,
            "hint": cause.hint,
            "docs": "docs/failures.md#import-error",
        },
        collateral=(ZERO, TWO),
        attempt=3,
    )


def test_a_shared_mistake_is_reported_once_and_no_task_is_collateral() -> None:
    found = diagnosis([raised(ZERO), raised(ONE, message="no, says 1"), raised(TWO)], PLAN)
    assert found is not None
    assert found.root_cause["also"] == [ONE, TWO]
    assert found.root_cause["reason"].endswith("(main.py:12)\nthe same on worker:1, worker:2")
    assert found.collateral == ()


def test_a_task_with_another_mistake_is_neither_listed_with_the_cause_nor_collateral() -> None:
    found = diagnosis([raised(ZERO), raised(ONE, line=99), killed(TWO)], PLAN)
    assert found is not None
    assert "also" not in found.root_cause
    assert found.collateral == ()


def test_if_all_failures_are_collateral_the_hint_names_the_network() -> None:
    found = diagnosis([victim(ZERO), victim(ONE)], PLAN)
    assert found is not None
    assert found.root_cause["kind"] == "collateral"
    assert "network" in found.root_cause["hint"]
    assert found.collateral == (ONE,)


KINDS = st.sampled_from([victim, raised, killed, lambda task: observed(task, Kind.LATE)])
FAILURES = st.lists(KINDS, max_size=6).map(
    lambda made: [make(f"worker:{n}") for n, make in enumerate(made)]
)


@given(FAILURES)
def test_a_collateral_failure_is_blamed_only_if_all_are_collateral(failures: list[Failure]) -> None:
    cause = root_cause(failures)
    if cause is None:
        assert failures == []
    elif cause.is_collateral:
        assert all(failure.is_collateral for failure in failures)
    else:
        certain = [f for f in failures if not f.is_collateral and f.observed is None]
        assert certain == [] or cause is certain[0]


@given(FAILURES, FAILURES)
def test_later_collateral_failures_do_not_change_the_root_cause(
    failures: list[Failure], later: list[Failure]
) -> None:
    cause = root_cause(failures)
    more = [*failures, *(victim(f.task) for f in later)]
    if cause is not None:
        assert root_cause(more) is cause


def mistake(line: int = 3) -> dict[str, object]:
    where = {"file": "main.py", "line": line, "traceback": "…"}
    return {"exception": "ValueError", "message": "bad", **where}


def test_stopped_tasks_that_raised_the_cause_s_exception_are_named() -> None:
    replay = replay_of("worker:0", "worker:1", "worker:2", "worker:3")
    replay.says("worker:0", "task_error", **mistake()).says("worker:1", "task_error", **mistake())
    replay.exits("worker:0", 1, error=mistake())
    assert replay.stopped() == ["worker:1", "worker:2", "worker:3"]
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster", error=mistake())
    replay.exits("worker:2", 1, by="tfcluster", error=mistake())  # raised while it was stopped
    replay.exits(
        "worker:3", 1, by="tfcluster", error=mistake(line=9)
    ).gather()  # raised because it was stopped
    assert replay.cause()["task"] == "worker:0"
    assert replay.cause()["also"] == ["worker:1", "worker:2"]
    assert replay.cause()["reason"].endswith("\nthe same on worker:1, worker:2")


@pytest.mark.parametrize(
    ("line", "signalled", "by"),
    [(3, None, "itself"), (9, None, "tfcluster"), (3, signal.SIGTERM, "tfcluster")],
)
def test_a_task_that_exits_with_the_cause_s_exception_ended_by_itself(
    line: int, signalled: int | None, by: str
) -> None:
    replay = replay_of().exits("worker:0", 1, error=mistake())
    code = None if signalled else 1
    event = ev.TaskExited(
        task="worker:1", attempt=1, exit_code=code, signal=signalled, ended_by="tfcluster"
    )
    found = replay.supervisor.gang.correct_ended_by(event, mistake(line))
    assert found.ended_by == by


def test_a_task_that_raised_but_hangs_is_blamed_for_its_exception() -> None:
    replay = replay_of().says("worker:1", "task_error", **mistake())
    replay.exits("worker:0", 1, last=COLLATERAL).after(CAUSE_WAIT_S + 0.1)
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster", error=mistake()).gather()
    assert (replay.cause()["task"], replay.cause()["kind"]) == ("worker:1", "exception")
    assert "ValueError: bad" in replay.cause()["reason"]


def test_a_hanging_task_is_also_blamed_for_an_exception_without_a_user_frame() -> None:
    message = {"exception": "RuntimeError", "message": "no line"}
    replay = replay_of().says("worker:1", "task_error", **message)
    replay.exits("worker:0", 1, last=COLLATERAL).after(CAUSE_WAIT_S + 0.1)
    replay.exits("worker:1", killed=signal.SIGKILL, by="tfcluster", error=message).gather()
    assert replay.cause()["reason"] == "RuntimeError: no line"


@pytest.mark.parametrize(("code", "by"), [(2, "itself"), (1, "tfcluster")])
def test_a_task_that_rejects_the_same_arguments_ended_by_itself(code: int, by: str) -> None:
    usage = "usage: main.py [-h]\nmain.py: error: unrecognized arguments: --epoch\n"
    replay = replay_of().exits("worker:0", 2, last=usage)
    event = ev.TaskExited(task="worker:1", attempt=1, exit_code=code, ended_by="tfcluster")
    assert replay.supervisor.gang.correct_ended_by(event, None).ended_by == by


RUNTIME = "tensorflow.python.framework.errors_impl"
MISMATCH = (
    "Collective ops is aborted by: Shape mismatch in the collective instance 170. Op at device"
    " /job:worker/replica:0/task:1/device:CPU:0 expected shape [] but another member in the group"
    " expected shape [1]."
)


def mismatch(line: int = 13) -> dict[str, Any]:
    error = {"exception": f"{RUNTIME}.InvalidArgumentError", "message": MISMATCH}
    return {**error, "file": "/job/train.py", "line": line, "traceback": ""}


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (
            [
                {"epochs": 2, "steps_per_epoch": 30, "total_steps": 60},
                {"epochs": 2, "steps_per_epoch": 20, "total_steps": 40},
            ],
            "the tasks train unequal steps per epoch: 30 in worker:0, worker:2; 20 in worker:1",
        ),
        (
            [{"total_steps": 60}, {"total_steps": 40}],
            "the tasks train unequal steps: 60 in worker:0, worker:2; 40 in worker:1",
        ),
    ],
)
def test_the_steps_that_the_tasks_were_to_take_are_compared(
    progress: list[dict[str, int]], words: str
) -> None:
    replay = replay_of("worker:0", "worker:1", "worker:2")
    for number in range(3):
        replay.says(f"worker:{number}", "progress", step=1, **progress[number % 2])
    replay.exits("worker:1", 1, error=mismatch()).ended("worker:0", "worker:2").gather()
    cause = replay.cause()
    assert cause["reason"].startswith(f"{words}\nInvalidArgumentError: Collective ops is aborted")
    assert cause["docs"] == "docs/failures.md#unequal-steps"


def test_if_the_steps_are_equal_the_places_of_the_tasks_are_compared() -> None:
    replay = replay_of()
    for task in ("worker:0", "worker:1"):
        replay.says(task, "progress", step=10, steps_per_epoch=10, total_steps=50)
    for task, step, line in (("worker:1", 20, 7), ("worker:0", 24, 6)):
        error = mismatch(line)
        replay.says(task, "progress", step=step).says(task, "task_error", **error)
        replay.exits(task, 1, error=error)
    assert replay.gather().cause()["reason"].splitlines()[0] == (
        "the tasks were at different lines: train.py:7 after step 20 in worker:1; train.py:6 after"
        " step 24 in worker:0"
    )


def test_steps_of_different_trainings_are_not_compared() -> None:
    """One task has begun its second `fit` while the other has still to finish its first."""
    replay = replay_of()
    first = {"epochs": 1, "steps_per_epoch": 20, "total_steps": 20}
    second = {"epochs": 1, "steps_per_epoch": 30, "total_steps": 50}
    replay.says("worker:0", "progress", step=21, **second)
    replay.says("worker:1", "progress", step=20, **first)
    replay.exits("worker:1", 1, error=mismatch()).ended("worker:0").gather()
    assert replay.cause()["reason"].startswith("InvalidArgumentError: Collective ops is aborted")


@pytest.mark.parametrize("task", ["worker:0", "worker:1"])
def test_an_exception_of_the_script_says_nothing_about_steps(task: str) -> None:
    replay = replay_of()
    for number, steps in enumerate((30, 20)):
        replay.says(f"worker:{number}", "progress", step=1, total_steps=steps)
    error = {"exception": "ValueError", "message": "no"}
    replay.exits(task, 1, error=error)
    replay.ended("worker:1" if task == "worker:0" else "worker:0").gather()
    assert replay.cause()["reason"] == "ValueError: no"


def test_a_chief_does_not_wait_for_servers_that_can_never_start() -> None:
    """Its workers run the chief's program, and are refused."""
    plan = plan_of("chief:0", "worker:0", "ps:0")
    tasks = [replace(task, serves=task.id.job != "chief") for task in plan.tasks]
    replay = Replay(replace(plan, tasks=tuple(tasks))).says("chief:0", "waiting_for_peers")
    message = "worker:0 makes a ParameterServerStrategy, which only the chief may make: …"
    error = {"exception": "tfcluster_workers.errors.NotServingError", "message": message}
    replay.exits("worker:0", 1, error=error).after(LAST_WORD_S + 0.1)
    assert set(replay.stopped()) == {"chief:0", "ps:0"}
    replay.ended("chief:0", "ps:0")
    assert "worker:0 is not restarted" in replay.last(ev.Warned).message
    assert (replay.cause()["task"], replay.outcome()[1]) == ("worker:0", 1)
    assert "per_task" in replay.cause()["hint"]
