"""The restart policy decides which failures lead to a restart, and after which delay."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from tests.launcher.conftest import plan_of

from tfcluster.plans.plan import Supervision, TaskId
from tfcluster.supervision.failure import Failure, Kind
from tfcluster.supervision.restart_policy import (
    FREE_IN_A_ROW,
    LONGEST_BACKOFF_S,
    GiveUp,
    Restart,
    RestartHistory,
    decide,
    last_attempt,
    restarts_alone,
)

ERROR = {"exception": "ValueError", "message": "bad", "file": "main.py", "line": 3}
OTHER = {**ERROR, "line": 9}
SAME = ("ValueError", "main.py", 3)
IMPORT = {"exception": "ModuleNotFoundError", "message": "No module named 'x'", "file": "m.py"}


def failure(code: int | None = None, number: int | None = None, **facts: Any) -> Failure:
    return Failure(task="worker:1", exit_code=code, signal=number, **facts)


KILLED = failure(number=signal.SIGKILL)
RAISED = failure(1, error=ERROR)


def verdict(
    failed: Failure,
    history: RestartHistory,
    *,
    advanced: bool = False,
    jitter: float = 0.0,
    **policy: Any,
) -> Restart | GiveUp:
    return decide(
        failed, history, Supervision(**policy), advanced=advanced, progressed=False, jitter=jitter
    )


@pytest.mark.parametrize(
    ("failed", "policy", "advanced", "restarted"),
    [
        (KILLED, {}, False, True),
        (KILLED, {"max_restarts": 0}, False, False),
        (failure(number=signal.SIGSEGV), {}, False, True),
        (failure(number=signal.SIGKILL, out_of_memory="cgroup"), {}, False, True),
        (failure(observed=Kind.NODE_LOST, description="gone"), {}, False, True),
        (failure(observed=Kind.FROZEN, description="SIGSTOP"), {}, False, True),
        (failure(observed=Kind.STALLED, description="silent"), {}, False, True),
        (failure(observed=Kind.LATE, description="hung"), {}, False, True),
        (failure(observed=Kind.START_FAILED, description="no such file"), {}, True, False),
        (RAISED, {}, False, False),
        (RAISED, {}, True, True),
        (RAISED, {"restart_on_error": True}, False, True),
        (RAISED, {"restart_on_error": True, "max_restarts": 0}, False, False),
        (failure(3), {}, False, False),
        (failure(3), {}, True, True),
        (failure(3), {"restart_on_error": True}, False, True),
        (failure(1, error=IMPORT), {"restart_on_error": True}, True, False),
        (failure(42), {"max_restarts": 0}, False, True),
        (failure(143, saved=True), {"max_restarts": 0}, False, True),
        (failure(143), {}, False, False),
        (failure(1, last_lines="Could not start gRPC server"), {"max_restarts": 0}, False, True),
    ],
)
def test_the_kind_of_failure_and_the_policy_decide_whether_to_restart(
    failed: Failure, policy: dict[str, Any], advanced: bool, restarted: bool
) -> None:
    decision = verdict(failed, RestartHistory(), advanced=advanced, **policy)
    assert isinstance(decision, Restart) is restarted, decision


def test_free_restarts_do_not_use_up_the_budget() -> None:
    history = RestartHistory()
    for failed in (KILLED, failure(42), failure(1, last_lines="Could not start gRPC server")):
        decision = verdict(failed, history)
        assert isinstance(decision, Restart)
        history = decision.history
    assert history.spent == 1
    assert last_attempt(4, history, Supervision(max_restarts=3)) == 6


def test_a_repeated_exception_is_not_restarted_without_a_newer_checkpoint() -> None:
    first = verdict(RAISED, RestartHistory(), restart_on_error=True)
    assert isinstance(first, Restart)
    assert first.history.signature == SAME
    assert isinstance(verdict(RAISED, first.history, restart_on_error=True), GiveUp)
    assert isinstance(verdict(RAISED, first.history, advanced=True), Restart)
    other_line = failure(1, error=OTHER)
    assert isinstance(verdict(other_line, first.history, restart_on_error=True), Restart)


def test_free_restarts_without_progress_are_limited() -> None:
    history = RestartHistory()
    for _ in range(FREE_IN_A_ROW):
        decision = verdict(failure(42), history)
        assert isinstance(decision, Restart)
        history = decision.history
    assert isinstance(verdict(failure(42), history), GiveUp)
    assert isinstance(verdict(failure(42), history, advanced=True), Restart)
    steps = decide(failure(42), history, Supervision(), advanced=False, progressed=True)
    assert isinstance(steps, Restart)


def test_delays_double_up_to_a_minute_and_are_reset_by_progress() -> None:
    def delay_after(without_progress: int, *, advanced: bool = False, jitter: float = 0.0) -> float:
        decision = verdict(
            KILLED,
            RestartHistory(without_progress=without_progress),
            advanced=advanced,
            jitter=jitter,
            max_restarts=99,
        )
        assert isinstance(decision, Restart)
        return decision.delay_s

    assert [delay_after(n) for n in range(8)] == [1, 2, 4, 8, 16, 32, 60, LONGEST_BACKOFF_S]
    assert delay_after(6, advanced=True) == 1
    assert delay_after(0) < delay_after(0, jitter=0.99) <= 1.25
    assert verdict(KILLED, RestartHistory(without_progress=5), backoff_s=0.0) == Restart(
        0.0, RestartHistory(spent=1, without_progress=6)
    )


@pytest.mark.parametrize(
    ("tasks", "kind", "alone"),
    [
        (["worker:0", "worker:1", "evaluator:0"], "training", ["evaluator:0"]),
        (["chief:0", "worker:0"], "training", []),
        (["chief:0", "worker:0", "worker:1"], "tuner", ["worker:0", "worker:1"]),
        (["worker:0", "worker:1"], "tuner", ["worker:1"]),
        (["worker:0", "worker:1"], "plain", ["worker:0", "worker:1"]),
        (["chief:0", "ps:0"], "training", []),
    ],
)
def test_the_job_and_its_kind_decide_which_tasks_restart_alone(
    tasks: list[str], kind: Any, alone: list[str]
) -> None:
    plan = plan_of(*tasks, kind=kind)
    assert [t for t in tasks if restarts_alone(plan, TaskId.parse(t))] == alone
