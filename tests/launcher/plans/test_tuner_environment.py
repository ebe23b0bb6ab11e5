"""The tasks of a KerasTuner search get KerasTuner's variables and no TF_CONFIG."""

from __future__ import annotations

from typing import Any

import pytest
from tests.launcher.plans.conftest import Planner

from tfcluster.plans.plan import Plan, TaskId
from tfcluster.plans.tf_config import Attempt, environment, fixed

SEARCH: dict[str, Any] = {"cluster": {"chief": 1, "worker": 2}, "job": {"kind": "tuner"}}


def values(plan: Plan, task: str, *, number: int = 1) -> dict[str, str]:
    ports = {found.id: 4000 + place for place, found in enumerate(plan.tasks)}
    found = environment(
        Attempt(plan, number, tuple(ports), ports),
        TaskId.parse(task),
        run_id="r-1",
        checkpoint_dir="/run/c",
        tensorboard_dir="/run/t",
        tuner_dir="/run/tuner",
    )
    return {var.name: var.value for var in found}


def planned(plan: Plan, task: str) -> dict[str, str]:
    return {var.name: var.value for var in plan.task(TaskId.parse(task)).command.env}


def test_the_oracle_has_the_chief_s_port_and_each_tuner_has_an_id(plan_of: Planner) -> None:
    plan = plan_of(SEARCH)
    for task, tuner in [("chief:0", "chief-0"), ("worker:0", "worker-0"), ("worker:1", "worker-1")]:
        found = values(plan, task)
        assert found["KERASTUNER_ORACLE_IP"] == "127.0.0.1"
        assert found["KERASTUNER_ORACLE_PORT"] == "4000"
        assert found["KERASTUNER_TUNER_ID"] == tuner
        # KerasTuner takes a process for the chief if its id contains "chief".
        assert ("chief" in tuner) == (task == "chief:0")


def test_a_single_tuner_needs_no_oracle(plan_of: Planner) -> None:
    found = values(plan_of(SEARCH | {"cluster": {"worker": 1}}), "worker:0")
    assert not [name for name in found if name.startswith("KERASTUNER")]
    assert found["TFCLUSTER_TUNER_DIR"] == "/run/tuner"


def test_tuners_train_independently(plan_of: Planner) -> None:
    plan = plan_of(SEARCH)
    assert plan.strategy == "default"
    assert "TF_CONFIG" not in values(plan, "worker:0")
    assert '"strategy": "default"' in planned(plan, "worker:0")["TFCLUSTER_SETTINGS"]
    # Keras 3 fails only with several workers, so a search may use it.
    assert "TF_USE_LEGACY_KERAS" not in planned(plan, "worker:0")


def test_all_tasks_of_a_search_share_one_folder(plan_of: Planner) -> None:
    plan = plan_of(SEARCH)
    assert {values(plan, str(task.id))["TFCLUSTER_TUNER_DIR"] for task in plan.tasks} == {
        "/run/tuner"
    }
    shared = plan_of(SEARCH | {"checkpoints": {"dir": "gs://bucket/exp7/"}})
    assert values(shared, "worker:0")["TFCLUSTER_TUNER_DIR"] == "gs://bucket/exp7/tuner/r-1"


@pytest.mark.parametrize("gpus", [None, 1, "all", [0, 1]])
def test_the_chief_takes_no_gpu_from_the_tuners(plan_of: Planner, gpus: object) -> None:
    plan = plan_of(SEARCH | ({"resources": {"gpus": gpus}} if gpus else {}), gpus=(0, 1))
    assert planned(plan, "chief:0")["CUDA_VISIBLE_DEVICES"] == "-1"
    visible = planned(plan, "worker:0")["CUDA_VISIBLE_DEVICES"]
    assert visible == ("0,1" if gpus in ("all", [0, 1]) else "0")


def test_a_chief_gets_the_gpus_that_the_spec_gives_it(plan_of: Planner) -> None:
    cluster = {"chief": [{"address": "127.0.0.1:0", "gpus": [0]}], "worker": ["127.0.0.1:0"]}
    plan = plan_of(SEARCH | {"cluster": cluster}, gpus=(0, 1))
    assert planned(plan, "chief:0")["CUDA_VISIBLE_DEVICES"] == "0"
    assert planned(plan, "worker:0")["CUDA_VISIBLE_DEVICES"] == "1"
    one_gpu = plan_of(SEARCH | {"cluster": cluster}, gpus=(0,))
    assert planned(one_gpu, "chief:0")["TF_FORCE_GPU_ALLOW_GROWTH"] == "true", "it is shared"


def test_only_the_port_of_the_oracle_must_be_fixed(plan_of: Planner) -> None:
    cluster = {"chief": ["127.0.0.1:8000"], "worker": ["127.0.0.1:0", "127.0.0.1:0"]}
    assert fixed(plan_of(SEARCH | {"cluster": cluster})).ports[TaskId("chief", 0)] == 8000
    with pytest.raises(ValueError, match="no port yet for chief:0"):
        fixed(plan_of(SEARCH))


def test_the_strategy_in_the_spec_is_kept(plan_of: Planner) -> None:
    assert plan_of(SEARCH | {"strategy": {"name": "mirrored"}}).strategy == "mirrored"
