"""One of several failed tasks is the root cause; the others are collateral or made its mistake."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launcher.conftest import plan_of

from tfcluster.rundir import events as ev
from tfcluster.supervision.failure import Failure, Kind
from tfcluster.supervision.verdicts import diagnosis, root_cause

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
