"""Each task gets a TF_CONFIG exactly as TensorFlow reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of

from tfcluster.plans.plan import (
    CheckpointPlan,
    JobKind,
    Plan,
    Resources,
    TaskId,
)
from tfcluster.plans.tf_config import Attempt, build, environment, fixed


def a_plan(*tasks: str, kind: JobKind = "training", directory: str | None = None) -> Plan:
    """Return a plan of these tasks, each on its own port."""
    plan = plan_of(*tasks, kind=kind)
    placed = tuple(
        replace(task, port=2222 + place, in_cluster=task.id.is_in_gang)
        for place, task in enumerate(plan.tasks)
    )
    return replace(plan, tasks=placed, checkpoints=CheckpointPlan(dir=directory))


def config(plan: Plan, task: str, *, without: str | None = None) -> dict[str, Any]:
    whole = fixed(plan)
    members = tuple(m for m in whole.members if str(m) != without)
    return build(Attempt(plan, 1, members, whole.ports), TaskId.parse(task))


def values(attempt: Attempt, task: str, restored_step: int | None = None) -> dict[str, str]:
    found = environment(
        attempt,
        TaskId.parse(task),
        run_id="r-1",
        checkpoint_dir="/run/c",
        tensorboard_dir="/run/t",
        tuner_dir="/run/tuner",
        restored_step=restored_step,
    )
    return {var.name: var.value for var in found}


def test_jobs_are_in_tensorflows_order() -> None:
    plan = a_plan("ps:0", "worker:1", "worker:0", "chief:0")
    assert list(config(plan, "ps:0")["cluster"]) == ["chief", "worker", "ps"]
    assert config(plan, "ps:0")["cluster"]["worker"] == ["127.0.0.1:2224", "127.0.0.1:2223"]


def test_indexes_stay_dense_when_a_member_is_missing() -> None:
    plan = a_plan("worker:0", "worker:1", "worker:2")
    found = config(plan, "worker:2", without="worker:1")
    assert found["cluster"]["worker"] == ["127.0.0.1:2222", "127.0.0.1:2224"]
    assert found["task"] == {"type": "worker", "index": 1}


def test_a_task_outside_the_attempt_has_no_tf_config() -> None:
    with pytest.raises(KeyError, match="worker:1"):
        config(a_plan("worker:0", "worker:1"), "worker:1", without="worker:1")


def test_chosen_ports_replace_those_of_the_spec() -> None:
    plan = a_plan("worker:0")
    attempt = Attempt(plan, 2, (TaskId("worker", 0),), {TaskId("worker", 0): 40001})
    found = values(attempt, "worker:0")
    assert "\n" not in found["TF_CONFIG"]
    assert json.loads(found["TF_CONFIG"])["cluster"]["worker"] == ["127.0.0.1:40001"]
    assert found["TFCLUSTER_ATTEMPT"] == "2"
    assert found["TF_GRPC_REUSE_PORT"] == "1"


def test_plain_tasks_form_no_cluster() -> None:
    found = values(fixed(a_plan("worker:0", "worker:1", kind="plain")), "worker:1")
    assert "TF_CONFIG" not in found
    assert "TF_GRPC_REUSE_PORT" not in found
    assert found["TFCLUSTER_TASK"] == "worker:1"


def test_each_library_gets_its_own_variables_with_dense_indexes() -> None:
    plan = a_plan("worker:2", "worker:0", "worker:1", "chief:0", "evaluator:0")
    chief = "127.0.0.1:2225"

    def of(strategy: str, task: str = "worker:2", **changes: Any) -> dict[str, str]:
        whole = fixed(replace(plan, strategy=strategy, **changes))
        members = tuple(m for m in whole.members if str(m) != "worker:1")
        found = values(Attempt(whole.plan, 1, members, whole.ports), task)
        return {name: text for name, text in found.items() if not name.startswith("TF")}

    keras = {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": chief,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "3",
        "KERAS_DISTRIBUTION_PROCESS_ID": "2",
    }
    jax = {"JAX_COORDINATOR_ADDRESS": chief, "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"}
    assert of("jax") == keras | jax
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "2225", "RANK": "2", "WORLD_SIZE": "3"}
    assert of("torch") == keras | address | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}
    seen = {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"}
    assert of("torch", resources=Resources(gpus="all")) == keras | address | seen
    assert of("dtensor", "chief:0") == {
        "DTENSOR_CLIENT_ID": "0",
        "DTENSOR_NUM_CLIENTS": "3",
        "DTENSOR_JOB_NAME": "worker",
        "DTENSOR_JOBS": f"{chief},127.0.0.1:2223,127.0.0.1:2222",
    }
    assert of("jax", "evaluator:0") == of("multi_worker_mirrored") == {}


def test_the_restored_step_is_absent_on_a_fresh_start() -> None:
    attempt = fixed(a_plan("worker:0"))
    assert "TFCLUSTER_RESTORED_STEP" not in values(attempt, "worker:0")
    assert values(attempt, "worker:0", restored_step=0)["TFCLUSTER_RESTORED_STEP"] == "0"


def test_a_shared_checkpoint_folder_replaces_the_folder_of_each_task() -> None:
    own = values(fixed(a_plan("worker:0")), "worker:0")
    shared = values(fixed(a_plan("worker:0", directory="gs://b/x")), "worker:0")
    assert own["TFCLUSTER_CHECKPOINT_DIR"] == "/run/c"
    assert shared["TFCLUSTER_CHECKPOINT_DIR"] == "gs://b/x"


def test_the_data_service_is_in_no_tf_config_and_all_tasks_get_its_address() -> None:
    plan = a_plan("worker:0", "data_worker:0", "data_dispatcher:0", directory="/shared")
    assert config(plan, "worker:0")["cluster"] == {"worker": ["127.0.0.1:2222"]}
    of = {str(task.id): values(fixed(plan), str(task.id)) for task in plan.tasks}
    assert {env["TFCLUSTER_DATA_SERVICE"] for env in of.values()} == {"grpc://127.0.0.1:2224"}
    assert ["TF_CONFIG" in env for env in of.values()] == [True, False, False]
    assert of["data_worker:0"]["TFCLUSTER_DATA_ADDRESS"] == "127.0.0.1:2223"
    folders = [env["TFCLUSTER_CHECKPOINT_DIR"] for env in of.values()]
    assert folders == ["/shared", "/run/c", "/run/c"], "a dispatcher keeps its journal to itself"
