"""The states of its tasks decide whether a run continues, finishes, fails or succeeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.supervision.story import COLLATERAL

from tfcluster.plans.plan import TaskId
from tfcluster.rundir.events import TaskExited
from tfcluster.supervision.decisions import Next, judge
from tfcluster.supervision.member import Member

WORDS: dict[str, dict[str, object]] = {
    "runs": {},
    "ok": {"exit_code": 0},
    "bad": {"exit_code": 1},
    "collateral": {"exit_code": 1},
    "ended by us": {"exit_code": None, "signal": 15, "ended_by": "tfcluster"},
}


def tasks_of(text: str) -> list[Member]:
    """Return the tasks of a text such as ``chief:0 ok, worker:0 runs``."""
    found = []
    for part in text.split(", "):
        name, _, word = part.partition(" ")
        task = TaskId.parse(name)
        serves = task.job == "ps"
        member = Member(task, "local", serves=serves, is_hooked=True, restarts_alone=False)
        member = replace(member, is_ordered=True, started_at=1.0)
        if facts := WORDS[word]:
            event: Any = TaskExited(task=name, attempt=1, **facts)  # type: ignore[arg-type]
            member = replace(member, exit=event)
        if word == "collateral":
            member = replace(member, failure=replace(member.bare_failure, last_lines=COLLATERAL))
        found.append(member)
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
    ("worker:1 ok, data_worker:0 runs", Next.FINISH),
    ("data_worker:0 runs, data_dispatcher:0 runs", Next.GO_ON),  # a part of a cluster
]


@pytest.mark.parametrize(("tasks", "expected"), TABLE)
def test_the_ends_of_a_gangs_tasks_decide_about_the_whole_gang(tasks: str, expected: Next) -> None:
    found = tasks_of(tasks)
    assert judge(found, chief=found[0], forms_gang=True) is expected


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
    found = tasks_of(tasks)
    assert judge(found, chief=found[0], forms_gang=False) is expected
