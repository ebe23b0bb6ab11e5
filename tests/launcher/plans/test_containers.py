"""A plan for docker has a node for each task: a container with the task's name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tfcluster.plans.plan import Container, Plan, TaskId
from tfcluster.plans.tf_config import preview

from .conftest import Planner

DOCKER: dict[str, Any] = {"runtime": {"backend": "docker"}}


def containers(plan: Plan) -> list[Container]:
    return [node.container for node in plan.nodes if node.container is not None]


def variable(plan: Plan, task: str, name: str) -> str | None:
    env = plan.task(TaskId.parse(task)).command.env
    return next((var.value for var in env if var.name == name), None)


def test_every_task_has_a_container_whose_name_is_its_address(plan_of: Planner) -> None:
    plan = plan_of(DOCKER | {"cluster": {"worker": 2, "evaluator": 1}})
    names = ["worker-0", "worker-1", "evaluator-0"]
    assert [node.name for node in plan.nodes] == names
    assert [task.node for task in plan.tasks] == names
    env = {var.name: var.value for var in preview(plan, TaskId("worker", 1))}
    assert json.loads(env["TF_CONFIG"])["cluster"] == {"worker": ["worker-0:0", "worker-1:0"]}


def test_the_port_of_a_listed_address_is_kept(plan_of: Planner) -> None:
    listed = {"worker": ["127.0.0.1:2222", {"address": "localhost:2223", "env": {"A": "b"}}]}
    plan = plan_of(DOCKER | {"cluster": listed})
    assert [task.address for task in plan.tasks] == ["worker-0:2222", "worker-1:2223"]
    assert variable(plan, "worker:1", "A") == "b"


def test_resources_become_limits_of_the_containers(plan_of: Planner) -> None:
    resources = {"cpus": 2, "memory": "3G", "pin": True}
    plan = plan_of(DOCKER | {"resources": resources}, backends_here=frozenset({"docker"}))
    first, second = containers(plan)
    assert (first.cpus, first.memory) == (2, "3g")
    assert (first.cores, second.cores) == ((0, 1), (2, 3))


def test_a_container_runs_as_the_user_of_the_spec(plan_of: Planner) -> None:
    runtime = {"runtime": {"backend": "docker", "user": "1000:1000"}}
    assert {container.user for container in containers(plan_of(runtime))} == {"1000:1000"}
    assert {container.user for container in containers(plan_of(DOCKER))} == {None}
    (note,) = plan_of({"runtime": {"user": "root"}}).notes
    assert note == "runtime.user has no effect without containers (--backend docker)"


def test_cores_and_threads_are_divided_if_the_daemon_is_local(plan_of: Planner) -> None:
    local = plan_of(DOCKER, backends_here=frozenset({"docker"}))
    assert variable(local, "worker:0", "OMP_NUM_THREADS") == "2"
    remote = plan_of(DOCKER | {"resources": {"pin": True}})
    assert variable(remote, "worker:0", "OMP_NUM_THREADS") is None
    assert containers(remote)[0].cores is None


@pytest.mark.parametrize(
    ("requested", "given", "visible"),
    [
        (None, [(0, 1), (2, 3)], "0,1"),
        (1, [(0,), (1,)], "0"),
        (0, [None, None], "-1"),
        ("all", [(0, 1, 2, 3), (0, 1, 2, 3)], "0,1,2,3"),
        ([3], [(3,), (3,)], "0"),
    ],
)
def test_gpus_are_divided_and_renumbered_inside_a_container(
    plan_of: Planner, requested: object, given: list[object], visible: str
) -> None:
    resources = {} if requested is None else {"resources": {"gpus": requested}}
    plan = plan_of(DOCKER | resources, backends_here=frozenset({"docker"}), gpus=(0, 1, 2, 3))
    assert [container.gpus for container in containers(plan)] == given
    assert variable(plan, "worker:1", "CUDA_VISIBLE_DEVICES") == visible


def test_only_folders_of_the_spec_are_mounted(plan_of: Planner) -> None:
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


def test_all_gpus_of_a_remote_machine_are_not_listed(plan_of: Planner) -> None:
    plan = plan_of(DOCKER | {"resources": {"gpus": "all"}}, gpus=())
    assert [container.gpus for container in containers(plan)] == ["all", "all"]
