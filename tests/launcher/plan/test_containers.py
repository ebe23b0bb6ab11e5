"""With docker each task is a node of its own: a container that bears the task's name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tfcluster.plan.attempt import preview
from tfcluster.plan.plan import Container, Plan, TaskId, plan_from_json, plan_to_json

from .conftest import Planner

DOCKER: dict[str, Any] = {"runtime": {"backend": "docker"}}


def containers(plan: Plan) -> list[Container]:
    return [node.container for node in plan.nodes if node.container is not None]


def variable(plan: Plan, task: str, name: str) -> str | None:
    env = plan.task(TaskId.parse(task)).command.env
    return next((var.value for var in env if var.name == name), None)


def test_every_task_has_a_container_whose_name_its_peers_dial(plan_of: Planner) -> None:
    plan = plan_of(DOCKER | {"cluster": {"worker": 2, "evaluator": 1}})
    names = ["worker-0", "worker-1", "evaluator-0"]
    assert [node.name for node in plan.nodes] == names
    assert [task.node for task in plan.tasks] == names
    told = {var.name: var.value for var in preview(plan, TaskId("worker", 1))}
    assert json.loads(told["TF_CONFIG"])["cluster"] == {"worker": ["worker-0:0", "worker-1:0"]}


def test_the_port_of_a_written_address_stays(plan_of: Planner) -> None:
    listed = {"worker": ["127.0.0.1:2222", {"address": "localhost:2223", "env": {"A": "b"}}]}
    plan = plan_of(DOCKER | {"cluster": listed})
    assert [task.address for task in plan.tasks] == ["worker-0:2222", "worker-1:2223"]
    assert variable(plan, "worker:1", "A") == "b"


def test_nothing_but_docker_makes_a_container(plan_of: Planner) -> None:
    assert containers(plan_of()) == []
    assert plan_of().images == ()
    assert all("container" not in node for node in plan_to_json(plan_of())["nodes"])


def test_resources_become_limits(plan_of: Planner) -> None:
    wishes = {"cpus": 2, "memory": "3G", "pin": True}
    plan = plan_of(DOCKER | {"resources": wishes}, docker_is_here=True)
    first, second = containers(plan)
    assert (first.cpus, first.memory) == (2, "3g")
    assert (first.cores, second.cores) == ((0, 1), (2, 3))


def test_the_user_of_a_container_is_the_specs(plan_of: Planner) -> None:
    runtime = {"runtime": {"backend": "docker", "user": "1000:1000"}}
    assert {one.user for one in containers(plan_of(runtime))} == {"1000:1000"}
    assert {one.user for one in containers(plan_of(DOCKER))} == {None}
    (note,) = plan_of({"runtime": {"user": "root"}}).notes
    assert note == "runtime.user is for containers only (--backend docker)"


def test_cores_and_threads_are_shared_out_where_the_daemon_is_here(plan_of: Planner) -> None:
    here = plan_of(DOCKER, docker_is_here=True)
    assert variable(here, "worker:0", "OMP_NUM_THREADS") == "2"
    elsewhere = plan_of(DOCKER | {"resources": {"pin": True}})
    assert variable(elsewhere, "worker:0", "OMP_NUM_THREADS") is None
    assert containers(elsewhere)[0].cores is None


@pytest.mark.parametrize(
    ("wish", "given", "seen"),
    [
        (None, [(0, 1), (2, 3)], "0,1"),
        (1, [(0,), (1,)], "0"),
        (0, [None, None], "-1"),
        ("all", [(0, 1, 2, 3), (0, 1, 2, 3)], "0,1,2,3"),
        ([3], [(3,), (3,)], "0"),
    ],
)
def test_gpus_are_dealt_out_and_counted_anew_inside(
    plan_of: Planner, wish: object, given: list[object], seen: str
) -> None:
    resources = {} if wish is None else {"resources": {"gpus": wish}}
    plan = plan_of(DOCKER | resources, docker_is_here=True, gpus=(0, 1, 2, 3))
    assert [one.gpus for one in containers(plan)] == given
    assert variable(plan, "worker:1", "CUDA_VISIBLE_DEVICES") == seen


def test_all_gpus_of_another_machine_are_all_it_has(plan_of: Planner) -> None:
    plan = plan_of(DOCKER | {"resources": {"gpus": "all"}}, gpus=())
    assert [one.gpus for one in containers(plan)] == ["all", "all"]


def test_only_what_the_spec_names_is_mounted(plan_of: Planner) -> None:
    assert [(c.data_dir, c.shared_dir) for c in containers(plan_of(DOCKER))] == [(None, None)] * 2
    hosts = {"*": {"data_dir": "~/sets"}, "worker-1": {"data_dir": "../sets"}}
    runtime = {"backend": "docker", "hosts": hosts}
    plan = plan_of({"runtime": runtime, "checkpoints": {"dir": "/mnt/exp"}})
    first, second = containers(plan)
    assert (first.data_dir, first.shared_dir) == ("/home/ann/sets", "/mnt/exp")
    assert second.data_dir == "/home/ann/project/sets"
    assert variable(plan, "worker:1", "TFDS_DATA_DIR") == "/home/ann/project/sets"


def test_a_bucket_is_not_mounted(plan_of: Planner) -> None:
    hosts = {"*": {"data_dir": "gs://sets/all"}}
    runtime = {"backend": "docker", "hosts": hosts}
    plan = plan_of({"runtime": runtime, "checkpoints": {"dir": "gs://exp/7"}})
    assert {(c.data_dir, c.shared_dir) for c in containers(plan)} == {(None, None)}
    assert variable(plan, "worker:0", "TFDS_DATA_DIR") == "gs://sets/all"


def test_a_plan_comes_back_from_its_file(plan_of: Planner) -> None:
    wishes = {"resources": {"gpus": [0, 1], "pin": True}}
    plan = plan_of(DOCKER | wishes, docker_is_here=True, gpus=(0, 1))
    again = plan_from_json(json.loads(json.dumps(plan_to_json(plan))))
    assert containers(again) == containers(plan)
