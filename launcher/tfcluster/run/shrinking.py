"""A smaller gang, where one of its tasks will not come back (``supervision.min_workers``; pure).

Per-replica batch sizes stay as the script sets them; global batch and learning rate are the
script's own affair and not touched.
"""

from __future__ import annotations

from collections.abc import Iterable

from tfcluster.plan.plan import Plan, TaskId
from tfcluster.run.failure import Failure, Kind
from tfcluster.run.restart import GiveUp

TRAINERS = ("chief", "worker")


def chief_of(members: Iterable[TaskId]) -> TaskId:
    """Whose checkpoints count: the chief job's task, else the worker with the lowest index."""
    return min((task for task in members if task.job in TRAINERS), key=_rank)


def chief_among(plan: Plan, members: Iterable[TaskId]) -> TaskId:
    """As `chief_of`, where `members` may be a part of the cluster, without its chief."""
    return plan.chief if plan.joins or plan.elsewhere else chief_of(members)


def _rank(task: TaskId) -> tuple[bool, int]:
    return task.job != "chief", task.index


def without(
    plan: Plan, members: tuple[TaskId, ...], cause: Failure, why: GiveUp
) -> tuple[TaskId, ...] | None:
    """`members` without what is lost for good; None where the run cannot go on so.

    What cannot be restarted: all tasks of a lost node, one whose program cannot be executed, or
    one whose failures have used up the budget. An error of the script's own would come again on
    every other worker.
    """
    least = plan.supervision.min_workers
    if least is None or plan.kind != "training" or plan.strategy != "multi_worker_mirrored":
        return None
    if not why.exhausted and cause.kind is not Kind.START_FAILED:
        return None
    lost = {TaskId.parse(cause.task)}
    if cause.kind is Kind.NODE_LOST:
        lost = {task.id for task in plan.tasks if task.node == cause.node}
    left = tuple(task for task in members if task not in lost)
    trainers = [task for task in left if task.job in TRAINERS]
    return left if len(trainers) >= max(1, least) else None
