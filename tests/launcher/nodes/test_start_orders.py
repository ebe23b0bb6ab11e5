"""An order to start tasks has what they share once, so that a node may have thousands."""

from __future__ import annotations

from tests.launcher.conftest import plan_of

from tfcluster.agent import catalogue as msg
from tfcluster.agent import protocol
from tfcluster.nodes import orders
from tfcluster.nodes.sites import site_of
from tfcluster.plans.plan import Command
from tfcluster.plans.preloading import PreloadPlan
from tfcluster.plans.tf_config import Attempt, build
from tfcluster.rundir.paths import RunPaths


def start_of(attempt: Attempt, paths: RunPaths) -> msg.Start:
    return orders.start(
        attempt,
        site_of("local", paths, msg.Welcome(pid=5, guard_pid=6)),
        holds_ports=True,
        only=attempt.members,
        restored_step=None,
        faults=(),
        proxy_env={},
        assigned={},
        tracker_group=None,
    )


def test_the_addresses_of_a_thousand_tasks_are_sent_once_for_all_tasks(paths: RunPaths) -> None:
    plan = plan_of(*(f"worker:{number}" for number in range(1000)))
    ports = {task.id: 20_000 + number for number, task in enumerate(plan.tasks)}
    start = start_of(Attempt(plan, 1, tuple(ports), ports), paths)

    frame = protocol.control_frame(start.to_json())

    assert frame.count(b"127.0.0.1:20999") == 1
    assert len(frame) < protocol.MAX_PAYLOAD / 16


def test_the_agent_makes_the_tf_config_of_each_task_from_the_order(paths: RunPaths) -> None:
    plan = plan_of("chief:0", "worker:0", "ps:0", "evaluator:0")
    ports = {task.id: 2222 + number for number, task in enumerate(plan.tasks)}
    attempt = Attempt(plan, 1, tuple(ports), ports)
    start = start_of(attempt, paths)

    for task in start.tasks:
        assert "TF_CONFIG" not in task.env
        assert task.place is not None
        cluster = {**start.cluster, **task.place["cluster"]}
        name = next(each.id for each in plan.tasks if str(each.id) == task.task)
        assert {**task.place, "cluster": cluster} == build(attempt, name)


def test_tasks_that_form_no_cluster_get_no_addresses(paths: RunPaths) -> None:
    plan = plan_of(kind="plain")
    start = start_of(Attempt(plan, 1, tuple(task.id for task in plan.tasks), {}), paths)
    assert start.cluster == {}
    assert {task.place for task in start.tasks} == {None}


def test_the_same_preloader_has_the_same_key_and_another_one_another(paths: RunPaths) -> None:
    site = site_of("local", paths, msg.Welcome(pid=5, guard_pid=6))
    plans = (PreloadPlan(Command((argv,), (), "/"), frozenset()) for argv in ("a", "a", "b"))
    first, same, other = (orders.preload(plan, plan_of().nodes[0], site) for plan in plans)
    assert first == same
    assert first.key != other.key
