"""Tasks that share a remote node get their parts of its cores and GPUs from its probe answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.nodes.probed_resources import (
    AssignedResources,
    assign_resources,
    explain_shared_gpus,
)
from tfcluster.plans.build import make_plan
from tfcluster.plans.context import PlanContext
from tfcluster.plans.placement import place_tasks
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.spec.model import ClusterSpec

ANSWER = ProbeAnswer("10.0.0.1", gpus=("H100",) * 4, core_nodes=((0, 1, 2, 3), (4, 5, 6, 7)))
TWO = ["10.0.0.1:2222", "10.0.0.1:2223"]
NAMES = {"TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"}


def plan_of(workers: list[Any] | int, **sections: Any) -> Plan:
    job = {"script": "train.py"}
    spec = ClusterSpec.model_validate({"cluster": {"worker": workers}, "job": job} | sections)
    return make_plan(spec, PlanContext(environ={}, spec_dir="/specs", tasks=place_tasks(spec, ())))


def assigned(plan: Plan, answer: ProbeAnswer = ANSWER) -> list[AssignedResources]:
    found = assign_resources(plan, answer)
    return [found[task.id] for task in plan.tasks if task.id in found]


def env(share: AssignedResources) -> dict[str, str]:
    return {var.name: var.value for var in share.env}


def test_each_task_gets_its_part_of_the_cores_and_gpus() -> None:
    first, second = assigned(plan_of(TWO))
    assert (first.cores, second.cores) == ANSWER.core_nodes
    assert env(first).items() >= dict.fromkeys(NAMES, "4").items()
    assert [env(share)["CUDA_VISIBLE_DEVICES"] for share in (first, second)] == ["0,1", "2,3"]


def test_a_single_task_or_one_on_a_node_with_unknown_cores_is_assigned_nothing() -> None:
    assert assigned(plan_of(["10.0.0.1:2222", "10.0.0.2:2222"])) == []
    assert assigned(plan_of(TWO), ProbeAnswer("10.0.0.1")) == []


def test_variables_that_the_node_sets_are_kept() -> None:
    answer = replace(ANSWER, named=("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"))
    first, _ = assigned(plan_of(TWO), answer)
    assert not env(first).keys() & {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"}
    assert env(first)["TF_NUM_INTRAOP_THREADS"] == "4"


@pytest.mark.parametrize(
    ("seen", "gpus"),
    [
        # Slurm sets the variable for the agent's step, which all tasks of the node inherit.
        ({"named": ("CUDA_VISIBLE_DEVICES",), "visible_gpus": (2, 3)}, ["2", "3"]),
        ({"gpus": (), "gpu_trouble": "no answer"}, [None, None]),
    ],
    ids=["a scheduler's", "a driver that does not answer"],
)
def test_known_gpus_are_divided(seen: dict[str, Any], gpus: list[str | None]) -> None:
    shares = assigned(plan_of(TWO), replace(ANSWER, **seen))
    assert [env(share).get("CUDA_VISIBLE_DEVICES") for share in shares] == gpus


@pytest.mark.parametrize("trouble", ["", "nvidia-smi did not answer within 5 s"])
def test_named_gpus_and_parts_of_gpus_are_divided(trouble: str) -> None:
    parts = ("MIG-1", "MIG-2", "GPU-3", "GPU-4")
    answer = replace(ANSWER, named=("CUDA_VISIBLE_DEVICES",), visible_gpus=parts)
    answer = replace(answer, gpu_trouble=trouble)
    given = [env(share)["CUDA_VISIBLE_DEVICES"] for share in assigned(plan_of(TWO), answer)]
    assert given == ["MIG-1,MIG-2", "GPU-3,GPU-4"]
    assert explain_shared_gpus(plan_of(TWO), answer) == ""


@pytest.mark.parametrize(
    ("seen", "gpus", "why"),
    [
        (
            {"gpus": ("H100",)},
            None,
            "worker:0, worker:1 share 1 GPU, because there are fewer GPUs than tasks",
        ),
        (
            {"named": ("CUDA_VISIBLE_DEVICES",), "visible_gpus": ("MIG-1",)},
            None,
            "worker:0, worker:1 share 1 GPU, because there are fewer GPUs than tasks",
        ),
        (
            {"gpus": (), "gpu_trouble": "no answer"},
            None,
            "worker:0, worker:1 all see every GPU: the GPUs of this node are not known",
        ),
        ({"gpus": ()}, None, ""),
        ({"gpus": ("H100",)}, "all", ""),
        ({"gpus": ("H100",)}, (0,), ""),
    ],
)
def test_tasks_that_share_gpus_unasked_are_named(seen: Any, gpus: Any, why: str) -> None:
    plan = plan_of(TWO, resources={"gpus": gpus})
    assert explain_shared_gpus(plan, replace(ANSWER, **seen)) == why


def test_variables_that_the_spec_sets_are_kept() -> None:
    plan = plan_of(
        [{"address": TWO[0], "env": {"OMP_NUM_THREADS": "7"}}, TWO[1]],
        resources={"gpus": 1, "pin": False},
    )
    first, second = assigned(plan, replace(ANSWER, named=("OMP_NUM_THREADS",)))
    assert "OMP_NUM_THREADS" not in env(first)
    assert env(second)["OMP_NUM_THREADS"] == "4", "the probe saw only the first task's variable"
    assert "CUDA_VISIBLE_DEVICES" not in env(first), "the plan has assigned GPUs already"
    assert first.cores is None


@pytest.mark.parametrize(
    ("workers", "gpus"),
    [(TWO, "all"), ([{"address": TWO[0], "gpus": "all"}, TWO[1]], None)],
    ids=["for all", "for one"],
)
def test_gpus_all_hides_no_gpu(workers: list[Any], gpus: str | None) -> None:
    for share in assigned(plan_of(workers, resources={"gpus": gpus})):
        assert "CUDA_VISIBLE_DEVICES" not in env(share)


def test_gpus_that_one_task_requests_are_not_given_to_another() -> None:
    plan = plan_of([{"address": TWO[0], "gpus": [0, 1, 2]}, TWO[1]])
    found = assign_resources(plan, ANSWER)
    assert env(found[TaskId("worker", 1)])["CUDA_VISIBLE_DEVICES"] == "3"
