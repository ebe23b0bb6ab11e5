"""The division of a probed node's cores, threads and GPUs among its tasks (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tfcluster.errors import join_first
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.plans.plan import EnvVar, Gpu, Plan, TaskId, TaskPlan
from tfcluster.plans.resources import (
    EVEN_SHARE,
    Cores,
    Share,
    background_tasks,
    explain_sharing,
    gpu_env,
    share_machine,
    thread_env,
)


@dataclass(frozen=True, slots=True)
class AssignedResources:
    """Cores and variables for one task; variables of the plan take precedence."""

    env: tuple[EnvVar, ...]
    cores: tuple[int, ...] | None


def assign_resources(plan: Plan, answer: ProbeAnswer) -> Mapping[TaskId, AssignedResources]:
    """Divide the cores, threads and GPUs of a probed node among its tasks.

    Empty for a node with one task. Variables that the node's own environment sets are kept; of its
    CUDA_VISIBLE_DEVICES, as a scheduler sets it, each task gets a part.
    """
    by_task, set_by_node = _divide(plan, answer), set_on_node(plan, answer)
    if _scheduled_gpus(plan, answer):
        set_by_node -= {"CUDA_VISIBLE_DEVICES"}
    peers = sum(task.serves and task.id.job == "worker" for task in plan.tasks)
    return {
        name: AssignedResources(
            _resource_env(plan.task(name), share, set_by_node, peers), share.cores
        )
        for name, share in by_task.items()
    }


def explain_shared_gpus(plan: Plan, answer: ProbeAnswer) -> str:
    """Return why tasks of a probed node see the same GPUs although the spec names none; ""."""
    by_task = _divide(plan, answer) if plan.resources.gpus is None else {}
    even = {task: share for task, share in by_task.items() if plan.task(task).gpus is None}
    if answer.gpu_trouble and any(share.gpus is None for share in even.values()):
        return f"{join_first(even)} all see every GPU: the GPUs of this node are not known"
    return explain_sharing(even)


def _divide(plan: Plan, answer: ProbeAnswer) -> Mapping[TaskId, Share]:
    """Return the share of each task of a node that several tasks share."""
    tasks = shared_nodes(plan).get(answer.node, {})
    if not tasks or not answer.core_nodes:
        return {}
    gpus: Sequence[Gpu] | None = _scheduled_gpus(plan, answer)
    if not gpus:
        is_set = "CUDA_VISIBLE_DEVICES" in set_on_node(plan, answer)
        gpus = None if answer.gpu_trouble or is_set else range(len(answer.gpus))
    return share_machine(
        list(tasks),
        plan.resources,
        cores=Cores(tuple(map(tuple, answer.core_nodes)), answer.core_limit),
        gpus=gpus if plan.resources.gpus is None else None,
        task_gpus={task.id: task.gpus for task in tasks.values() if task.gpus is not None},
        background=background_tasks(list(tasks), is_search=plan.kind == "tuner"),
    )


def shared_nodes(plan: Plan) -> dict[str, dict[TaskId, TaskPlan]]:
    """Return node → its tasks, for each node with several."""
    tasks_by_node: dict[str, dict[TaskId, TaskPlan]] = {}
    for task in plan.tasks:
        tasks_by_node.setdefault(task.node, {})[task.id] = task
    return {node: tasks for node, tasks in tasks_by_node.items() if len(tasks) > 1}


def set_on_node(plan: Plan, answer: ProbeAnswer) -> set[str]:
    """Return the variables that the node's own environment sets, and not the spec."""
    first = next(task for task in plan.tasks if task.node == answer.node)
    return set(answer.named) - {var.name for var in first.command.env}


def _scheduled_gpus(plan: Plan, answer: ProbeAnswer) -> Sequence[Gpu]:
    """Return the GPUs in the node's own CUDA_VISIBLE_DEVICES; () if it has none to divide."""
    is_set = "CUDA_VISIBLE_DEVICES" in set_on_node(plan, answer)
    return answer.visible_gpus if is_set else ()


def _resource_env(
    task: TaskPlan, share: Share, set_by_node: Collection[str], peers: int
) -> tuple[EnvVar, ...]:
    """Return the variables of a task's share that neither the spec nor the node sets."""
    by_source = {
        EVEN_SHARE: thread_env(share.threads or 1, serving_peers=peers),
        "resources.gpus": gpu_env(share.gpus, shared=share.gpu_is_shared),
    }
    known = {*set_by_node, *(var.name for var in task.command.env)}
    return tuple(
        EnvVar(name, value, source)
        for source, values in by_source.items()
        for name, value in values.items()
        if name not in known
    )
