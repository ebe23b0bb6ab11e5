"""The variables by which experiment trackers group a run's tasks and go on after a restart.

Weights & Biases resumes the run with the id in WANDB_RUN_ID (wandb/sdk/wandb_settings.py). MLflow's
server makes the ids of its runs, and its client fails for an MLFLOW_RUN_ID that the server does not
know; the tags in MLFLOW_RUN_CONTEXT become those of each run that the task starts, by which the
script finds its run again (mlflow/tracking/context/system_environment_context.py).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from tfcluster.plans.plan import EnvVar, Plan, TaskId

PACKAGES: Final = frozenset({"mlflow", "wandb"})
SOURCE: Final = "job.trackers"
_LONGEST_ID: Final = 64
"""The longest WANDB_RUN_ID, by W&B's documentation. Runs differ in the end of ours."""
_CHOOSES_RUN: Final = frozenset(
    {"WANDB_RUN_ID", "WANDB_RESUME", "WANDB_RESUME_FROM", "WANDB_FORK_FROM"}
)
"""The variables by which a user chooses the run in W&B, of which some exclude each other."""
_UNLESS: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    "WANDB_RUN_GROUP": ("wandb", frozenset({"WANDB_RUN_GROUP"})),
    "WANDB_RUN_ID": ("wandb", _CHOOSES_RUN),
    "WANDB_RESUME": ("wandb", _CHOOSES_RUN),
    "MLFLOW_RUN_CONTEXT": ("mlflow", frozenset({"MLFLOW_RUN_CONTEXT"})),
}
"""Variable → the package that reads it, and the variables of the user that rule it out."""


def find_variables(packages: Collection[str], set_there: Collection[str]) -> tuple[str, ...]:
    """Return the names of the variables for tasks of a node.

    `packages`: those in the tasks' Python; `set_there`: the variables in the node's environment.
    """
    return tuple(
        name
        for name, (package, ruled_out_by) in _UNLESS.items()
        if package in packages and ruled_out_by.isdisjoint(set_there)
    )


def at_node(plan: Plan, node: str, packages: Collection[str], set_there: Collection[str]) -> Plan:
    """Return the plan with what a node's own answer says about its trackers."""
    if plan.without_trackers:
        return plan
    names = find_variables(packages, set_there)
    nodes = (replace(n, trackers=names) if n.name == node else n for n in plan.nodes)
    return replace(plan, nodes=tuple(nodes))


def environment(plan: Plan, task_id: TaskId, *, run_id: str, group: str) -> tuple[EnvVar, ...]:
    """Return the variables of a task, the same in all attempts, which its plan's do not rule out.

    `group`: what the tasks of a run have in common with those of the runs that it resumes. In a
    search each trial may be a run of the tracker, so none gets an id or a name.
    """
    task = plan.task(task_id)
    names, given = plan.node(task.node).trackers, {var.name for var in task.command.env}
    own_name = f"{run_id}-{task_id.file_name}"
    tags = {"tfcluster.group": group, "tfcluster.run": run_id, "tfcluster.task": str(task_id)}
    if plan.kind == "tuner":
        values = {"WANDB_RUN_GROUP": group}
    else:
        values = {
            "WANDB_RUN_GROUP": group,
            "WANDB_RUN_ID": own_name[-_LONGEST_ID:].lstrip("-._"),
            "WANDB_RESUME": "allow",
        }
        tags = {"mlflow.runName": own_name, **tags}
    values["MLFLOW_RUN_CONTEXT"] = json.dumps(tags)
    return tuple(
        EnvVar(name, value, SOURCE)
        for name, value in values.items()
        if name in names and _UNLESS[name][1].isdisjoint(given)
    )
