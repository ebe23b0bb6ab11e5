"""Each link between nodes is dialled; a lost one restarts or ends the run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import COLLATERAL, Replay

from tfcluster.plans.plan import NodePlan, Plan, Supervision, TaskId
from tfcluster.rundir.states import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision import task_network
from tfcluster.supervision.failure import Failure, Kind
from tfcluster.supervision.task_network import Cut, DialPlan, plan_dials

NODES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
HEARTBEAT = "Task /job:worker/replica:0/task:1 heartbeat timeout."
UNHEALTHY = (
    "The following tasks are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:2"
)


def cut(source: int, target: int, why: str = "timed out") -> Cut:
    return Cut(NODES[source], NODES[target], f"worker:{target}", why)


def replay_on_hosts(count: int = 3, **supervision: Any) -> Replay:
    """Return a replay of a run with one worker on each of `count` hosts."""
    plan = plan_of(*(f"worker:{number}" for number in range(count)))
    tasks = tuple(
        replace(task, node=node, host=node)
        for task, node in zip(plan.tasks, NODES[:count], strict=True)
    )
    nodes = tuple(NodePlan(name, "ssh", None, "/job") for name in NODES[:count])
    requested = Supervision(**supervision)
    return Replay(replace(plan, tasks=tasks, nodes=nodes, supervision=requested))


BETWEEN_0_AND_1 = ([cut(0, 1), cut(1, 0)], [cut(1, 0)], [cut(0, 1)])


@pytest.mark.parametrize(
    ("cuts", "chief", "host"),
    [
        ([cut(0, 2), cut(1, 2), cut(2, 0), cut(2, 1)], 0, 2),
        *((cuts, 0, 1) for cuts in BETWEEN_0_AND_1),
        *((cuts, 1, 0) for cuts in BETWEEN_0_AND_1),
        ([cut(1, 0), cut(2, 0)], 0, 0),
    ],
)
def test_the_host_that_no_other_reaches_is_named_or_of_two_the_one_without_the_chief(
    cuts: list[Cut], chief: int, host: int
) -> None:
    found = task_network.find_lost_links(cuts, chief_node=NODES[chief])
    assert list(found) == [NODES[host]]
    assert found[NODES[host]].startswith(f"link to host {NODES[host]} lost: ")
    link = cuts[0]
    words = f"{link.source} cannot connect to {link.task} on {link.target} (timed out)"
    assert words in found[NODES[host]]


@given(st.lists(st.builds(cut, st.integers(0, 2), st.integers(0, 2))))
def test_every_cut_link_is_explained(cuts: list[Cut]) -> None:
    found = task_network.find_lost_links(cuts, chief_node=NODES[0])
    assert all(link.source in found or link.target in found for link in cuts)
    assert len(found) <= len(cuts)


@given(st.one_of(st.text(), st.recursive(st.none() | st.integers(), st.lists).map(json.dumps)))
def test_malformed_reports_are_ignored(line: str) -> None:
    assert task_network.parse_report(NODES[0], line, attempt=1) == ()


def test_reports_of_another_attempt_are_ignored() -> None:
    line = json.dumps({"attempt": 1, "cut": [[NODES[1], "worker:1", NODES[1], 2222, "timed out"]]})
    assert task_network.parse_report(NODES[0], line, attempt=1) == (cut(0, 1),)
    assert task_network.parse_report(NODES[0], line, attempt=2) == ()


def test_each_node_dials_the_tasks_of_all_others() -> None:
    plan = replay_on_hosts().plan
    ports = {TaskId("worker", number): 2000 + number for number in range(3)}
    order = task_network.order_for(NODES[1], plan_dials(plan, NODES, ports), 4)
    assert [(o["task"], o["host"], o["port"]) for o in order["others"]] == [
        ("worker:0", NODES[0], 2000),
        ("worker:2", NODES[2], 2002),
    ]
    assert order["attempt"] == 4


@pytest.mark.parametrize(
    ("message", "node"), [(HEARTBEAT, NODES[1]), (UNHEALTHY, NODES[2]), ("Socket closed", None)]
)
def test_a_missed_heartbeat_names_the_lost_link(message: str, node: str) -> None:
    failure = Failure("worker:0", 1, None, node=NODES[0], last_lines=message)
    nodes = {f"worker:{number}": name for number, name in enumerate(NODES)}
    assert list(task_network.find_missed_heartbeats([failure], nodes)) == ([node] if node else [])
    same_host = dict.fromkeys(nodes, NODES[0])
    assert task_network.find_missed_heartbeats([failure], same_host) == {}


def test_the_nodes_dial_once_when_the_first_task_blames_another() -> None:
    replay = replay_on_hosts()
    assert replay.orders == []
    replay.exits("worker:0", 1, last=COLLATERAL).exits("worker:1", 1, last=COLLATERAL)
    assert replay.orders.count(do.ProbeLinks(1)) == 1


def test_no_links_are_probed_on_one_machine() -> None:
    replay = Replay(plan_of("worker:0", "worker:1"))
    replay.exits("worker:0", 1, last=COLLATERAL)
    assert do.ProbeLinks(1) not in replay.orders


def test_no_links_are_probed_after_a_failure_with_its_own_cause() -> None:
    replay = replay_on_hosts()
    replay.exits("worker:0", None, killed=9)
    assert do.ProbeLinks(1) not in replay.orders


def test_a_lost_link_restarts_the_gang_at_once() -> None:
    replay = replay_on_hosts(2)
    replay.exits("worker:0", 1, last=COLLATERAL)
    assert replay.stopped() == []
    description = f"link to host {NODES[1]} lost: no answer"
    replay.supervisor.links_probed({NODES[1]: description}, replay.now)
    replay._take()
    assert replay.stopped() == ["worker:1"]
    replay.ended("worker:1").gather()
    assert replay.cause()["kind"] == Kind.LINK_LOST
    assert replay.cause()["reason"] == description
    assert replay.cause()["node"] == NODES[1]
    assert replay.cause()["docs"] == "docs/failures.md#link-lost"
    assert replay.supervisor.next_attempt is not None


def test_a_failure_with_its_own_cause_is_blamed_rather_than_a_lost_link() -> None:
    replay = replay_on_hosts(2)
    replay.exits("worker:0", 1, last=COLLATERAL).exits("worker:1", None, killed=9)
    replay.supervisor.links_probed({NODES[0]: "link lost"}, replay.now)
    replay._take()
    replay.gather()
    assert replay.cause()["task"] == "worker:1"


def test_a_link_that_works_again_is_found_by_missed_heartbeats() -> None:
    replay = replay_on_hosts(2)
    replay.exits("worker:0", 1, last=HEARTBEAT).exits("worker:1", 1, last=COLLATERAL)
    replay.supervisor.links_probed({}, replay.now)
    replay._take()
    replay.gather()
    assert replay.cause()["reason"].startswith(f"link to host {NODES[1]} lost: ")


def test_without_restarts_a_lost_link_ends_the_run_with_exit_code_3() -> None:
    replay = replay_on_hosts(2, max_restarts=0)
    replay.exits("worker:0", 1, last=COLLATERAL).exits("worker:1", 1, last=COLLATERAL)
    replay.supervisor.links_probed({NODES[1]: f"link to host {NODES[1]} lost"}, replay.now)
    replay._take()
    replay.gather()
    assert replay.outcome() == (Status.FAILED, 3)


def spread_over(tasks: int, nodes: int) -> tuple[Plan, list[str], dict[TaskId, int]]:
    """Return a plan with `tasks` workers on `nodes` nodes, the nodes' names and the ports."""
    names = [f"node-{number}" for number in range(nodes)]
    plan = plan_of(*(f"worker:{index}" for index in range(tasks)))
    placed = [replace(t, node=names[t.id.index % nodes]) for t in plan.tasks]
    plan = replace(plan, tasks=tuple(placed))
    return plan, names, {task.id: 2000 + task.id.index for task in placed}


def dials(calls: DialPlan) -> int:
    return sum(len(tasks) for tasks in calls.dialled.values())


def test_in_a_small_run_every_node_dials_every_task_on_the_other_nodes() -> None:
    calls = plan_dials(*spread_over(12, 3))
    assert dials(calls) == 12 * 2
    assert {port["task"] for port in calls.of("node-0")} == {
        f"worker:{index}" for index in range(12) if index % 3
    }


@given(st.integers(65, 300), st.integers(2, 40))
def test_in_a_large_run_every_link_and_every_port_is_dialled(tasks: int, nodes: int) -> None:
    plan, names, ports = spread_over(tasks, nodes)
    calls = plan_dials(plan, names, ports)
    for caller in names:
        dialled = calls.dialled[caller]
        assert {task.node for task in dialled} == {*names} - {caller}
        assert len({task.id for task in dialled}) == len(dialled)
    assert all(calls.callers[task] for task in ports)


def test_a_thousand_tasks_on_fifty_nodes_are_dialled_once_per_link() -> None:
    assert dials(plan_dials(*spread_over(1000, 50))) == 50 * 49
    assert dials(plan_dials(*spread_over(1000, 2))) == 1000


def test_a_run_on_one_node_dials_nothing() -> None:
    assert dials(plan_dials(*spread_over(100, 1))) == 0
