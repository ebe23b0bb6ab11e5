"""TF_CONFIG word for word as TensorFlow reads it, so that no task has to guess its place.

Rules from tensorflow/python/distribute/multi_worker_util.py and, for the evaluator, from
measurement: listed in nobody's TF_CONFIG it dies with ``KeyError: 'evaluator'``, listed in
everybody's a parameter-server chief waits for it for ever; so only its own names it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tfcluster.plan.plan import JOB_NAMES, TaskId

if TYPE_CHECKING:
    from tfcluster.plan.attempt import Attempt


def build(attempt: Attempt, task: TaskId) -> dict[str, Any]:
    """The TF_CONFIG of `task` in this attempt, with dense indexes over its members.

    Raises KeyError when `task` is no member of the attempt.
    """
    if task not in attempt.members:
        raise KeyError(str(task))
    seen = [t for t in sorted_members(attempt) if t == task or attempt.plan.task(t).in_cluster]
    cluster: dict[str, list[str]] = {}
    for job in JOB_NAMES:
        if addresses := [attempt.address(t) for t in seen if t.job == job]:
            cluster[job] = addresses
    index = [t for t in seen if t.job == task.job].index(task)
    return {"cluster": cluster, "task": {"type": task.job, "index": index}}


def one_line(attempt: Attempt, task: TaskId) -> str:
    """The variable's value: one line of JSON, the form all examples on the web have."""
    return json.dumps(build(attempt, task))


def sorted_members(attempt: Attempt) -> list[TaskId]:
    """With those elsewhere, in TensorFlow's order of jobs, each job's tasks by index."""
    rank: dict[str, int] = {job: place for place, job in enumerate(JOB_NAMES)}
    together = (*attempt.members, *(task.id for task in attempt.plan.elsewhere))
    return sorted(together, key=lambda t: (rank[t.job], t.index))
