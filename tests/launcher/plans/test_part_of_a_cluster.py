"""A part of a cluster that `join` or `up --except` starts still knows the whole cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.launcher.plans.conftest import Planner

from tfcluster.discovery.planning import Planned
from tfcluster.errors import SetupError, UsageError
from tfcluster.nodes.orders import hold_ports
from tfcluster.plans import tf_config
from tfcluster.plans.context import PlanContext
from tfcluster.plans.placement import (
    exclude_tasks,
    find_task,
    keep_tasks,
    local_tasks,
    place_tasks,
)
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.plans.tf_config import Attempt, build, environment, fixed
from tfcluster.preflight.rules import find_obstacles
from tfcluster.rundir.chaos import parse
from tfcluster.typed_json import from_json, to_json

THIS_HOST, OTHER_HOST = "192.168.7.1", "10.0.0.2"
CLUSTER = {
    "chief": [f"{OTHER_HOST}:2220"],
    "worker": [f"{THIS_HOST}:2222", f"{OTHER_HOST}:2222", f"{THIS_HOST}:2223"],
    "ps": [f"{OTHER_HOST}:2224"],
    "evaluator": [f"{THIS_HOST}:2225"],
}
OUR_TASKS = tuple(map(TaskId.parse, ("worker:0", "worker:2", "evaluator:0")))


@pytest.fixture
def whole(plan_of: Planner) -> Plan:
    return plan_of({"cluster": CLUSTER, "checkpoints": {"dir": "/shared/"}})


def test_local_tasks_are_those_at_this_machines_addresses(spec_of: Any) -> None:
    listed = place_tasks(spec_of({"cluster": CLUSTER}), ())
    assert local_tasks(listed, {THIS_HOST, "laptop"}) == OUR_TASKS


def test_a_machine_without_tasks_is_refused_and_the_addresses_are_named(spec_of: Any) -> None:
    listed = place_tasks(spec_of({"cluster": CLUSTER}), ())
    with pytest.raises(SetupError) as refused:
        local_tasks(listed, {"127.0.0.1", "::1", "fe80::7", "192.168.7.9", "laptop"})
    assert "it is 192.168.7.9, laptop, and the tasks are on 10.0.0.2, 192.168.7.1" in str(refused)
    assert "--task evaluator:0" in refused.value.fix


@pytest.mark.parametrize("name", ["worker:9", "worker", "boss:0"])
def test_an_unknown_task_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        find_task(OUR_TASKS, name)


def test_the_tf_config_of_a_part_is_that_of_the_whole_cluster(whole: Plan) -> None:
    joined = keep_tasks(whole, OUR_TASKS)
    assert tuple(task.id for task in joined.tasks) == OUR_TASKS
    assert [node.name for node in joined.nodes] == ["local"]
    assert (joined.chief, joined.by_hand) == (TaskId("chief", 0), ())
    assert [held.task for held in hold_ports(joined, "local").ports] == list(map(str, OUR_TASKS))
    assert from_json(Plan, json.loads(json.dumps(to_json(joined)))) == joined
    held = Attempt(joined, 1, OUR_TASKS, {task.id: task.port for task in joined.tasks})
    for task in OUR_TASKS:
        assert build(held, task) == build(fixed(whole), task)


def test_a_cluster_with_a_port_that_is_not_fixed_is_refused_on_any_machine(
    plan_of: Planner,
) -> None:
    whole = plan_of({"cluster": {"worker": [f"{THIS_HOST}:2222", f"{OTHER_HOST}:0"]}})
    with pytest.raises(UsageError, match="fixed ports in the spec: none for worker:1"):
        keep_tasks(whole, [TaskId("worker", 0)])


def test_a_plain_job_needs_no_port(plan_of: Planner) -> None:
    job = {"script": "train.py", "kind": "plain"}
    whole = plan_of({"cluster": {"worker": [f"{THIS_HOST}:0", f"{OTHER_HOST}:0"]}, "job": job})
    assert len(keep_tasks(whole, [TaskId("worker", 0)]).tasks) == 1


def test_tuners_that_join_share_the_folder_of_the_search_although_runs_differ(
    plan_of: Planner,
) -> None:
    sections = {
        "cluster": {"chief": [f"{OTHER_HOST}:2220"], "worker": [f"{THIS_HOST}:2222"]},
        "job": {"script": "train.py", "kind": "tuner"},
        "checkpoints": {"dir": "/shared/"},
        "name": "search",
    }
    worker = TaskId("worker", 0)
    joined = keep_tasks(plan_of(sections), [worker])
    attempt = Attempt(joined, 1, (worker,), {})
    env = environment(
        attempt, worker, run_id="R", checkpoint_dir="", tensorboard_dir="", tuner_dir="own"
    )
    values = {var.name: var.value for var in env}
    assert values[tf_config.FOLDER] == "/shared/tuner/search"
    assert values[tf_config.ORACLE_IP] == OTHER_HOST
    assert values[tf_config.ORACLE_PORT] == "2220"


# -- tasks started by hand


def test_a_task_started_by_hand_gets_the_port_that_is_held_for_it(plan_of: Planner) -> None:
    first, second = TaskId("worker", 0), TaskId("worker", 1)
    plan = exclude_tasks(plan_of(), [second])
    assert [task.id for task in plan.tasks] == [first]
    assert [task.id for task in plan.by_hand] == [second]
    order = hold_ports(plan, "local")
    assert [held.task for held in order.ports] == ["worker:0", "worker:1"]
    attempt = Attempt(plan, 1, (first,), {first: 4000, second: 4001})
    assert build(attempt, first)["cluster"] == {"worker": ["127.0.0.1:4000", "127.0.0.1:4001"]}
    with pytest.raises(UsageError, match="worker:1 is not started from here"):
        parse(["kill worker:1 at step 5"], plan)
    loaded = from_json(Plan, json.loads(json.dumps(to_json(plan))))
    assert [task.id for task in loaded.by_hand] == [second]
    assert "elsewhere" not in to_json(plan_of())


@pytest.mark.parametrize(
    ("sections", "tasks", "message"),
    [
        ({}, "worker:0 worker:1", "--except leaves no task to start"),
        ({"runtime": {"backend": "docker"}}, "worker:1", "docker makes the nodes"),
        (
            {"cluster": {"worker": [f"{THIS_HOST}:0", f"{OTHER_HOST}:2222"]}},
            "worker:1",
            "--except worker:1 needs fixed ports in the spec: none for worker:0",
        ),
        (
            {"cluster": {"worker": [f"{THIS_HOST}:0", f"{OTHER_HOST}:2222"]}},
            "worker:0",
            "--except worker:0 needs fixed ports in the spec: none for worker:0",
        ),
    ],
)
def test_tasks_that_cannot_be_started_by_hand_are_refused(
    plan_of: Planner, sections: dict[str, Any], tasks: str, message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        exclude_tasks(plan_of(sections), list(map(TaskId.parse, tasks.split())))


def test_with_fixed_ports_a_task_of_another_host_may_be_excluded(plan_of: Planner) -> None:
    cluster = {"worker": [f"{THIS_HOST}:2222", f"{OTHER_HOST}:2222"]}
    plan = exclude_tasks(plan_of({"cluster": cluster}), [TaskId("worker", 1)])
    assert [node.name for node in plan.nodes] == ["local"]
    assert plan.task(TaskId("worker", 1)).address == f"{OTHER_HOST}:2222"


HERE: dict[str, Any] = {"worker": [f"{THIS_HOST}:2222"], "evaluator": [f"{THIS_HOST}:2225"]}
LOOPBACK: dict[str, Any] = {
    "cluster": {"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]},
    "runtime": {"network": "private"},
}
ALONE: dict[str, Any] = {"cluster": {"worker": 2, "evaluator": 1}}


@pytest.mark.parametrize(
    ("choose", "sections", "tasks", "said"),
    [
        # Each machine that joins has its own run, so even tasks of one machine need the storage.
        (keep_tasks, {"cluster": CLUSTER}, "worker:0 worker:2 evaluator:0",
         "a parameter-server job on several hosts needs storage that all its tasks share"),
        (keep_tasks, {"cluster": HERE}, "evaluator:0", "an evaluator on several hosts needs"),
        (keep_tasks, {"cluster": HERE}, "evaluator:0 worker:0", None),
        (keep_tasks, {"cluster": HERE}, "worker:0", None),
        (keep_tasks, LOOPBACK, "worker:0", "worker:1"),
        (exclude_tasks, ALONE, "worker:0", "an evaluator whose chief is started by hand needs"),
        (exclude_tasks, ALONE, "worker:1", None),
        (exclude_tasks, {"cluster": {"chief": 1, "worker": 1, "ps": 1}}, "ps:0", None),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_part_that_needs_storage_or_a_network_that_is_not_there_is_refused(
    plan_of: Planner, spec_of: Any, machine: PlanContext, choose: Callable[..., Plan],
    sections: dict[str, Any], tasks: str, said: str | None,
) -> None:  # fmt: skip
    part = choose(plan_of(sections), [TaskId.parse(task) for task in tasks.split()])
    found = [error.message for error in find_obstacles(Planned(spec_of(sections), part, machine))]
    assert len(found) == (said is not None)
    assert all(str(said) in message for message in found)
