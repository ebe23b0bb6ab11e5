"""The nodes of a small run dial all tasks; those of a large run dial each link and port once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.launcher.conftest import plan_of

from tfcluster.plans.plan import Plan, TaskId
from tfcluster.supervision.connectivity import DialPlan, between


def spread(tasks: int, nodes: int) -> tuple[Plan, list[str], dict[TaskId, int]]:
    """Return a plan with `tasks` workers on `nodes` nodes, the nodes' names and the ports."""
    names = [f"node-{number}" for number in range(nodes)]
    plan = plan_of(*(f"worker:{index}" for index in range(tasks)))
    placed = [replace(t, node=names[t.id.index % nodes]) for t in plan.tasks]
    plan = replace(plan, tasks=tuple(placed))
    return plan, names, {task.id: 2000 + task.id.index for task in placed}


def count(calls: DialPlan) -> int:
    return sum(len(tasks) for tasks in calls.dialled.values())


def test_in_a_small_run_every_node_dials_every_task_on_the_other_nodes() -> None:
    calls = between(*spread(12, 3))
    assert count(calls) == 12 * 2
    assert {port["task"] for port in calls.of("node-0")} == {
        f"worker:{index}" for index in range(12) if index % 3
    }


@given(st.integers(65, 300), st.integers(2, 40))
def test_in_a_large_run_every_link_and_every_port_is_dialled(tasks: int, nodes: int) -> None:
    plan, names, ports = spread(tasks, nodes)
    calls = between(plan, names, ports)
    for caller in names:
        dialled = calls.dialled[caller]
        assert {task.node for task in dialled} == {*names} - {caller}
        assert len({task.id for task in dialled}) == len(dialled)
    assert all(calls.callers[task] for task in ports)


def test_a_thousand_tasks_on_fifty_nodes_are_dialled_once_per_link() -> None:
    assert count(between(*spread(1000, 50))) == 50 * 49
    assert count(between(*spread(1000, 2))) == 1000


def test_a_run_on_one_node_dials_nothing() -> None:
    assert count(between(*spread(100, 1))) == 0
