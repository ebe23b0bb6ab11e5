"""A gang that shrinks keeps at least `min_workers` tasks, and has a chief."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.launcher.conftest import plan_of

from tfcluster.plans.plan import Supervision, TaskId
from tfcluster.plans.tf_config import Attempt, build
from tfcluster.supervision.failure import Failure, Kind
from tfcluster.supervision.restart_policy import GiveUp, chief_of, without

USED_UP = GiveUp("used up", exhausted=True)
KILLED = Failure(task="worker:0", exit_code=None, signal=9)


def remaining(
    tasks: list[str], least: int | None, cause: Failure = KILLED, why: GiveUp = USED_UP
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
