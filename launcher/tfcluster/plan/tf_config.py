"""TF_CONFIG word for word as TensorFlow reads it, so that no task has to guess its place.

Rules from tensorflow/python/distribute/multi_worker_util.py and, for the evaluator, from
measurement: listed in nobody's TF_CONFIG it dies with ``KeyError: 'evaluator'``, listed in
everybody's a parameter-server chief waits for it for ever; so only its own names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfcluster.plan.plan import JOB_NAMES, TaskId

if TYPE_CHECKING:
    from tfcluster.plan.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the TF_CONFIGs of one attempt share: made once, not for each of a thousand tasks."""

    addresses: Mapping[str, Sequence[str]]
    """Job → its tasks' addresses, of all whom others name."""
    index: Mapping[TaskId, int]
    """Place in that list."""
    members: frozenset[TaskId]


def cluster_of(attempt: Attempt) -> Cluster:
    """Raises KeyError for a member without a port."""
    named = [t for t in sorted_members(attempt) if attempt.plan.task(t).in_cluster]
    index: dict[TaskId, int] = {}
    addresses: dict[str, list[str]] = {}
    for task in named:
        of_job = addresses.setdefault(task.job, [])
        index[task] = len(of_job)
        of_job.append(attempt.address(task))
    return Cluster(addresses, index, frozenset(attempt.members))


def build(attempt: Attempt, task: TaskId) -> dict[str, Any]:
    """The TF_CONFIG of `task` in this attempt, with dense indexes over its members.

    Raises KeyError when `task` is no member of the attempt.
    """
    common = attempt.cluster
    if task not in common.members:
        raise KeyError(str(task))
    cluster = dict(common.addresses)
    if task not in common.index:  # an evaluator, in nobody's but its own
        cluster[task.job] = [attempt.address(task)]
    return {"cluster": cluster, "task": {"type": task.job, "index": common.index.get(task, 0)}}


def one_line(attempt: Attempt, task: TaskId) -> str:
    """The variable's value: one line of JSON, the form all examples on the web have."""
    return json.dumps(build(attempt, task))


def sorted_members(attempt: Attempt) -> list[TaskId]:
    """With those elsewhere, in TensorFlow's order of jobs, each job's tasks by index."""
    rank: dict[str, int] = {job: place for place, job in enumerate(JOB_NAMES)}
    together = (*attempt.members, *(task.id for task in attempt.plan.elsewhere))
    return sorted(together, key=lambda t: (rank[t.job], t.index))
