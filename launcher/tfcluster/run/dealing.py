"""What tasks that share another machine get of it, once its probe has told what there is (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tfcluster.plan.plan import EnvVar, Plan, TaskId, TaskPlan
from tfcluster.plan.resources import (
    EVEN,
    Cores,
    Share,
    gpu_env,
    shares,
    stand_aside,
    thread_env,
)
from tfcluster.run.seen import Seen


@dataclass(frozen=True, slots=True)
class Dealt:
    """Laid under what the plan says of a task."""

    env: tuple[EnvVar, ...]
    cores: tuple[int, ...] | None


def deal(plan: Plan, seen: Seen) -> Mapping[TaskId, Dealt]:
    """Cores, threads and GPUs of the tasks of the node that was `seen`, where it has several.

    A container is one task's already. What the node's own environment says stays.
    """
    tasks = {task.id: task for task in plan.tasks if task.node == seen.node}
    if len(tasks) < 2 or plan.node(seen.node).container is not None or not seen.core_nodes:
        return {}
    first = next(iter(tasks.values()))
    theirs = set(seen.named) - {var.name for var in first.command.env}
    shows_some = seen.gpu_trouble or "CUDA_VISIBLE_DEVICES" in theirs
    dealt = plan.resources.gpus is None and not shows_some
    found = shares(
        list(tasks),
        plan.resources,
        cores=Cores(tuple(map(tuple, seen.core_nodes)), seen.core_limit),
        gpus=range(len(seen.gpus)) if dealt else None,
        own_gpus={task.id: task.gpus for task in tasks.values() if task.gpus is not None},
        aside=stand_aside(list(tasks), is_search=plan.kind == "tuner"),
    )
    peers = sum(task.serves and task.id.job == "worker" for task in plan.tasks)
    return {
        task.id: Dealt(_env(task, found[task.id], theirs, peers), found[task.id].cores)
        for task in tasks.values()
    }


def _env(task: TaskPlan, share: Share, theirs: Collection[str], peers: int) -> tuple[EnvVar, ...]:
    """Only what neither the spec nor the node says."""
    threads = share.threads or 1
    values = [
        *((name, value, EVEN) for name, value in thread_env(threads, serving_peers=peers).items()),
        *(
            (name, value, "resources.gpus")
            for name, value in gpu_env(share.gpus, shared=share.gpu_is_shared).items()
        ),
    ]
    known = {*theirs, *(var.name for var in task.command.env)}
    return tuple(EnvVar(*value) for value in values if value[0] not in known)
