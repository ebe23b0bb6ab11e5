"""The states of its tasks decide whether a run continues, finishes, fails or succeeds."""

from __future__ import annotations

import pytest

from tfcluster.plans.plan import TaskId
from tfcluster.supervision.decisions import Next, Standing, judge

WORDS = {
    "runs": {"running": True},
    "ok": {"running": False, "ok": True},
    "bad": {"running": False},
    "collateral": {"running": False, "collateral": True},
    "ended by us": {"running": False, "ended_by_us": True},
}


def standings(text: str) -> list[Standing]:
    """Return the tasks' standings from a text such as ``chief:0 ok, worker:0 runs``."""
    found = []
    for part in text.split(", "):
        task, _, word = part.partition(" ")
        job = TaskId.parse(task).job
        found.append(Standing(job, serves=job == "ps", **WORDS[word]))
    return found


TABLE = [
    ("worker:0 runs, worker:1 runs", Next.GO_ON),
    ("worker:0 runs, worker:1 ok", Next.GO_ON),
    ("worker:0 ok, worker:1 runs", Next.FINISH),
    ("worker:0 ok, worker:1 ok", Next.SUCCEED),
    ("worker:0 bad, worker:1 runs", Next.FAIL),
    ("worker:0 runs, worker:1 bad", Next.FAIL),
    ("worker:0 collateral, worker:1 runs", Next.AWAIT_CAUSE),
    ("worker:0 collateral, worker:1 bad", Next.FAILED),
    ("worker:0 collateral, worker:1 collateral", Next.FAILED),
    ("worker:0 collateral, worker:1 ended by us", Next.FAILED),
    ("worker:0 ok, worker:1 collateral", Next.FAILED),
    ("worker:0 ok, worker:1 bad", Next.FAILED),
    ("worker:0 ok, worker:1 ended by us", Next.SUCCEED),
    ("chief:0 ok, worker:0 runs, ps:0 runs", Next.FINISH),
    ("chief:0 runs, worker:0 ok, ps:0 runs", Next.GO_ON),
    ("chief:0 ok, worker:0 bad, evaluator:0 runs", Next.FAIL),
    ("chief:0 ok, worker:0 collateral, evaluator:0 runs", Next.FAIL),
    ("chief:0 ok, worker:0 ok, evaluator:0 ended by us", Next.SUCCEED),
    ("chief:0 runs, worker:0 collateral, worker:1 bad", Next.FAIL),
]


@pytest.mark.parametrize(("tasks", "expected"), TABLE)
def test_the_ends_of_a_gangs_tasks_decide_about_the_whole_gang(tasks: str, expected: Next) -> None:
    found = standings(tasks)
    assert judge(found, chief=found[0], gang=True) is expected


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ("worker:0 bad, worker:1 runs", Next.GO_ON),
        ("worker:0 ok, worker:1 runs", Next.GO_ON),
        ("worker:0 bad, worker:1 ok", Next.FAILED),
        ("worker:0 ok, worker:1 collateral", Next.FAILED),
        ("worker:0 ok, worker:1 ok", Next.SUCCEED),
    ],
)
def test_plain_tasks_are_independent(tasks: str, expected: Next) -> None:
    found = standings(tasks)
    assert judge(found, chief=found[0], gang=False) is expected
