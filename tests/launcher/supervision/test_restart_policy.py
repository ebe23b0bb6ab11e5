"""Which failures lead to a restart, after which delay, and of which tasks."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of

from tfcluster.plans.plan import Supervision, TaskId
from tfcluster.plans.tf_config import Attempt, build
from tfcluster.supervision.failure import Failure, Kind
from tfcluster.supervision.restart_policy import (
    FREE_IN_A_ROW,
    LONGEST_BACKOFF_S,
    GiveUp,
    Restart,
    RestartHistory,
    chief_of,
    decide,
    last_attempt,
    restarts_alone,
    without,
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
        (KILLED, {"max_restarts": 0}, False, False),
        (failure(number=signal.SIGKILL, out_of_memory="cgroup"), {}, False, True),
        (failure(observed=Kind.STALLED, description="silent"), {}, False, True),
        (failure(observed=Kind.LATE, description="hung"), {}, False, True),
        (failure(observed=Kind.START_FAILED, description="no such file"), {}, True, False),
        (RAISED, {"restart_on_error": True}, False, True),
        (RAISED, {"restart_on_error": True, "max_restarts": 0}, False, False),
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


USED_UP = GiveUp("used up", exhausted=True)
CHIEF_KILLED = Failure(task="worker:0", exit_code=None, signal=9)


def remaining(
    tasks: list[str], least: int | None, cause: Failure = CHIEF_KILLED, why: GiveUp = USED_UP
) -> list[str] | None:
    plan = replace(plan_of(*tasks), supervision=Supervision(min_workers=least))
    found = without(plan, tuple(task.id for task in plan.tasks), cause, why)
    return None if found is None else [str(task) for task in found]


WORKERS = ["worker:0", "worker:1", "worker:2"]


@pytest.mark.parametrize(
    ("least", "expected"),
    [(None, None), (1, WORKERS[1:]), (2, WORKERS[1:]), (3, None)],
)
def test_at_least_min_workers_must_remain(least: int | None, expected: list[str] | None) -> None:
    assert remaining(WORKERS, least) == expected


def test_chief_and_workers_count_toward_min_workers_but_an_evaluator_does_not() -> None:
    chief = Failure(task="chief:0", exit_code=None, signal=9)
    assert remaining(["chief:0", "worker:0", "evaluator:0"], 1, chief) == [
        "worker:0",
        "evaluator:0",
    ]
    assert remaining(["chief:0", "worker:0", "evaluator:0"], 2, chief) is None


def test_a_gang_does_not_shrink_after_an_error_in_the_script() -> None:
    assert remaining(WORKERS, 1, why=GiveUp("it would come again")) is None
    cannot_start = Failure(
        "worker:0", None, None, observed=Kind.START_FAILED, description="no file"
    )
    assert remaining(WORKERS, 1, cannot_start, GiveUp("alike")) == WORKERS[1:]


def test_all_tasks_of_a_lost_node_are_removed() -> None:
    lost = Failure("worker:0", None, None, node="local", observed=Kind.NODE_LOST)
    assert remaining(WORKERS, 1, lost) is None, "no task would remain"


def test_the_chief_is_the_task_of_the_chief_job_or_the_lowest_worker() -> None:
    parse = TaskId.parse
    assert chief_of([parse("worker:2"), parse("worker:1")]) == parse("worker:1")
    assert chief_of([parse("worker:0"), parse("chief:0")]) == parse("chief:0")


def test_the_indexes_of_a_smaller_gang_are_dense_and_its_addresses_unchanged() -> None:
    plan = plan_of(*WORKERS)
    members = tuple(TaskId.parse(name) for name in WORKERS[1:])
    attempt = Attempt(plan, 2, members, {task.id: 4000 + task.id.index for task in plan.tasks})
    assert build(attempt, members[1]) == {
        "cluster": {"worker": ["127.0.0.1:4001", "127.0.0.1:4002"]},
        "task": {"type": "worker", "index": 1},
    }
