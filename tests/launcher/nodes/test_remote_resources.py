"""What tasks that share another machine are given of it, once somebody has looked there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tfcluster.nodes.orders import AssignedResources, deal
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.plan.build import make_plan
from tfcluster.plan.context import PlanContext
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.spec.model import ClusterSpec

FAR = ProbeAnswer("10.0.0.1", gpus=("H100",) * 4, core_nodes=((0, 1, 2, 3), (4, 5, 6, 7)))
TWO = ["10.0.0.1:2222", "10.0.0.1:2223"]
NAMES = {"TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"}


def plan_of(workers: list[Any], **sections: Any) -> Plan:
    job = {"script": "train.py"}
    spec = ClusterSpec.model_validate({"cluster": {"worker": workers}, "job": job} | sections)
    return make_plan(spec, PlanContext(environ={}, spec_dir="/specs"))


def dealt(plan: Plan, seen: ProbeAnswer = FAR) -> list[AssignedResources]:
    found = deal(plan, seen)
    return [found[task.id] for task in plan.tasks if task.id in found]


def env(share: AssignedResources) -> dict[str, str]:
    return {var.name: var.value for var in share.env}


def test_each_gets_its_part_of_the_cores_and_gpus() -> None:
    first, second = dealt(plan_of(TWO))
    assert (first.cores, second.cores) == FAR.core_nodes
    assert env(first).items() >= dict.fromkeys(NAMES, "4").items()
    assert [env(share)["CUDA_VISIBLE_DEVICES"] for share in (first, second)] == ["0,1", "2,3"]


def test_a_task_alone_on_its_machine_gets_none_of_it() -> None:
    assert dealt(plan_of(["10.0.0.1:2222", "10.0.0.2:2222"])) == []


def test_a_machine_whose_cores_nobody_knows_is_left_alone() -> None:
    assert dealt(plan_of(TWO), ProbeAnswer("10.0.0.1")) == []


def test_what_its_own_environment_says_stays() -> None:
    seen = replace(FAR, named=("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"))
    first, _ = dealt(plan_of(TWO), seen)
    assert not env(first).keys() & {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"}
    assert env(first)["TF_NUM_INTRAOP_THREADS"] == "4"


def test_what_the_spec_says_stays() -> None:
    plan = plan_of(
        [{"address": TWO[0], "env": {"OMP_NUM_THREADS": "7"}}, TWO[1]],
        resources={"gpus": 1, "pin": False},
    )
    first, second = dealt(plan, replace(FAR, named=("OMP_NUM_THREADS",)))
    assert "OMP_NUM_THREADS" not in env(first)
    assert env(second)["OMP_NUM_THREADS"] == "4", "only the other task's own variable was seen"
    assert "CUDA_VISIBLE_DEVICES" not in env(first), "the plan has numbered them already"
    assert first.cores is None


@pytest.mark.parametrize(
    ("workers", "gpus"),
    [(TWO, "all"), ([{"address": TWO[0], "gpus": "all"}, TWO[1]], None)],
    ids=["for all", "for one"],
)
def test_all_gpus_are_all_of_them(workers: list[Any], gpus: str | None) -> None:
    for share in dealt(plan_of(workers, resources={"gpus": gpus})):
        assert "CUDA_VISIBLE_DEVICES" not in env(share)


def test_a_driver_that_does_not_answer_is_no_machine_without_gpus() -> None:
    first, _ = dealt(plan_of(TWO), replace(FAR, gpus=(), gpu_trouble="no answer"))
    assert "CUDA_VISIBLE_DEVICES" not in env(first)


def test_what_one_task_wants_is_not_given_to_another() -> None:
    plan = plan_of([{"address": TWO[0], "gpus": [0, 1, 2]}, TWO[1]])
    found = deal(plan, FAR)
    assert env(found[TaskId("worker", 1)])["CUDA_VISIBLE_DEVICES"] == "3"
