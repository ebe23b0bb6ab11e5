"""Which variables of experiment trackers a task gets, and with which values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tfcluster.agent.node import machine
from tfcluster.plans import trackers
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.plans.trackers import at_node, find_variables

from .conftest import MACHINE, PACKAGES, Planner

BOTH = {
    "local": replace(
        MACHINE.interpreters["local"], packages={**PACKAGES, "mlflow": "3", "wandb": "1"}
    )
}
ALL = {"MLFLOW_RUN_CONTEXT", "WANDB_RESUME", "WANDB_RUN_GROUP", "WANDB_RUN_ID"}
WORKER = TaskId("worker", 1)


def values(
    plan: Plan, task: TaskId = WORKER, run: str = "lab-1", group: str = "lab-0"
) -> dict[str, str]:
    found = trackers.environment(plan, task, run_id=run, group=group)
    return {var.name: var.value for var in found}


def test_a_task_has_an_entry_of_its_own_in_the_group_of_the_run(plan_of: Planner) -> None:
    found = values(plan_of(interpreters=BOTH))
    tags = json.loads(found.pop("MLFLOW_RUN_CONTEXT"))
    assert found == {
        "WANDB_RUN_GROUP": "lab-0",
        "WANDB_RUN_ID": "lab-1-worker-1",
        "WANDB_RESUME": "allow",
    }
    assert tags == {
        "mlflow.runName": "lab-1-worker-1",
        "tfcluster.group": "lab-0",
        "tfcluster.run": "lab-1",
        "tfcluster.task": "worker:1",
    }


@pytest.mark.parametrize(
    ("packages", "set_there", "expected"),
    [
        ((), (), set()),
        (("wandb",), (), ALL - {"MLFLOW_RUN_CONTEXT"}),
        (("mlflow",), (), {"MLFLOW_RUN_CONTEXT"}),
        (("mlflow", "wandb"), ("WANDB_RUN_GROUP",), ALL - {"WANDB_RUN_GROUP"}),
        (("wandb",), ("WANDB_RUN_ID",), {"WANDB_RUN_GROUP"}),
        (("wandb",), ("WANDB_FORK_FROM",), {"WANDB_RUN_GROUP"}),
        (("mlflow",), ("MLFLOW_RUN_CONTEXT",), set()),
    ],
)
def test_what_the_user_sets_and_what_is_not_installed_is_left_alone(
    packages: tuple[str, ...], set_there: tuple[str, ...], expected: set[str], plan_of: Planner
) -> None:
    assert {*find_variables(packages, set_there)} == expected
    plan = plan_of({"job": {"env": dict.fromkeys(set_there, "mine")}}, interpreters=BOTH)
    assert values(at_node(plan, "local", packages, ())).keys() == expected


def test_a_probe_names_each_variable_that_rules_out_one_of_ours() -> None:
    for name in machine.TRACKERS:
        assert len(find_variables(("mlflow", "wandb"), (name,))) < len(ALL)


def test_the_launchers_own_variables_reach_local_tasks_only(plan_of: Planner) -> None:
    environ = {**MACHINE.environ, "WANDB_RUN_ID": "mine"}
    assert "WANDB_RUN_ID" not in values(plan_of(interpreters=BOTH, environ=environ))
    remote = {"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}}
    plan = at_node(plan_of(remote, environ=environ), "10.0.0.2", ("wandb",), ())
    assert values(plan)["WANDB_RUN_ID"] == "lab-1-worker-1"
    assert values(plan, TaskId("worker", 0)) == {}


@pytest.mark.parametrize("job", [{"trackers": "off"}, {"script": None, "command": ["sh", "x.sh"]}])
def test_off_and_commands_get_none_wherever_they_run(job: dict[str, Any], plan_of: Planner) -> None:
    plan = plan_of({"job": job}, interpreters=BOTH)
    assert values(plan) == values(at_node(plan, "local", ("wandb",), ())) == {}


def test_trials_of_a_search_are_entries_of_their_own(plan_of: Planner) -> None:
    plan = plan_of(
        {"cluster": {"chief": 1, "worker": 2}, "job": {"kind": "tuner"}}, interpreters=BOTH
    )
    found = values(plan)
    assert found.keys() == {"MLFLOW_RUN_CONTEXT", "WANDB_RUN_GROUP"}
    assert "mlflow.runName" not in json.loads(found["MLFLOW_RUN_CONTEXT"])


def test_a_long_id_keeps_the_end_by_which_runs_differ(plan_of: Planner) -> None:
    run = f"{'n' * 63}-20260914-153012-k7f3"
    own = values(plan_of(interpreters=BOTH), run=run)["WANDB_RUN_ID"]
    assert len(own) <= 64
    assert own.endswith("-20260914-153012-k7f3-worker-1")
