"""Decides whether a failure leads to a restart, after which delay, and if not, why (pure).

By default, failures that a restart can fix are restarted: a lost node, a signal, a lack of memory.
Preemption and a taken port do not count against the budget, but three in a row without progress
end the run: TensorFlow's PreemptionCheckpointHandler exits with 42 after saving (143 on GCE;
tensorflow/python/distribute/failure_handling/failure_handling.py). An exception would occur again
unless something has changed, so a restart needs ``restart_on_error`` or a checkpoint newer than
the attempt, and the same exception never gets a third try from the same checkpoint. Failures that
no restart can fix are permanent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from tfcluster.plan.plan import Plan, Supervision, TaskId
from tfcluster.supervision.failure import Failure, Kind

LONGEST_BACKOFF_S: Final = 60.0
FREE_IN_A_ROW: Final = 3
"""Restarts that do not count, in a row and without progress, before the run is given up."""
_JITTER: Final = 0.25
"""A pause is up to so much longer: many runs that lost one machine do not come back at once."""
_FREE: Final = {Kind.PREEMPTED: "preempted", Kind.PORT_TAKEN: "robbed of a port"}
_OWN_FAULT: Final = frozenset({Kind.EXCEPTION, Kind.EXIT_CODE})
_NEVER: Final = frozenset({Kind.PERMANENT, Kind.START_FAILED})


@dataclass(frozen=True, slots=True)
class Past:
    """What a unit (the gang, or a task that restarts alone) has behind it."""

    spent: int = 0
    """Restarts that counted."""
    free: int = 0
    """Restarts that did not."""
    in_vain: int = 0
    """Restarts in a row since the last sign of progress: the pause doubles with each."""
    free_in_vain: int = 0
    signature: tuple[str, str | None, int | None] | None = None
    """The last failure's exception, file and line, if no newer checkpoint has come since."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start again `delay_s` seconds from now; `past` is what the unit has behind it then."""

    delay_s: float
    past: Past
    fresh_ports: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not start again; `why` is for people."""

    why: str
    exhausted: bool = False
    """Another start might have helped, but the budget is used up."""


def decide(
    failure: Failure,
    past: Past,
    policy: Supervision,
    *,
    advanced: bool,
    progressed: bool,
    jitter: float = 0.0,
) -> Restart | GiveUp:
    """What follows from `failure`, the root cause.

    `advanced`: a checkpoint newer than the attempt's start is at home. `progressed`: the attempt
    has reported steps. `jitter`: a random number in [0, 1).
    """
    if advanced:
        past = replace(past, in_vain=0, signature=None)
    if advanced or progressed:
        past = replace(past, free_in_vain=0)
    if (refusal := _refusal(failure, past, policy, advanced=advanced)) is not None:
        return refusal
    free = failure.kind in _FREE
    delay_s = min(LONGEST_BACKOFF_S, policy.backoff_s * 2**past.in_vain) * (1 + _JITTER * jitter)
    after = Past(
        spent=past.spent + (not free),
        free=past.free + free,
        in_vain=past.in_vain + 1,
        free_in_vain=past.free_in_vain + free,
        signature=failure.signature,
    )
    stolen = failure.kind is Kind.PORT_TAKEN
    return Restart(0.0 if stolen else delay_s, after, fresh_ports=stolen)


def _refusal(failure: Failure, past: Past, policy: Supervision, *, advanced: bool) -> GiveUp | None:
    kind = failure.kind
    if kind in _NEVER:
        return GiveUp("a new start would fail alike")
    if kind in _FREE:
        if past.free_in_vain >= FREE_IN_A_ROW:
            return GiveUp(f"{_FREE[kind]} {FREE_IN_A_ROW} times in a row without progress")
        return None
    if kind in _OWN_FAULT:
        if failure.signature is not None and failure.signature == past.signature:
            return GiveUp("the same exception came twice without a newer checkpoint between")
        if not (advanced or policy.restart_on_error):
            return GiveUp(_why_not_on_error(policy))
    if past.spent >= policy.max_restarts:
        return GiveUp(_used_up(policy.max_restarts), exhausted=True)
    return None


def _why_not_on_error(policy: Supervision) -> str:
    if policy.max_restarts == 0:
        return "restarts are off: supervision.max_restarts is 0"
    return (
        "it would come again: the job saved nothing since its start, and"
        " supervision.restart_on_error is off"
    )


def _used_up(most: int) -> str:
    if most == 0:
        return "restarts are off: supervision.max_restarts is 0"
    return f"supervision.max_restarts = {most} is used up"


def is_free(failure: Failure) -> bool:
    """Whether a restart because of it does not count."""
    return failure.kind in _FREE


def attempts_in_all(past: Past, policy: Supervision) -> int:
    """How many attempts there can be, as far as anyone knows: the "4" of "attempt 2 of 4"."""
    return 1 + policy.max_restarts + past.free


def restarts_alone(plan: Plan, task: TaskId) -> bool:
    """Whether `task` can come back while the others go on.

    Not under MultiWorkerMirroredStrategy: a worker that comes back alone is refused ("unexpectedly
    tried to connect with a different incarnation", coordination_service.cc). The workers of a
    ClusterCoordinator, evaluators and tuners can; what loses its coordinator or a ps cannot.
    """
    if plan.kind == "plain" or task.job == "evaluator":
        return True
    if task.job != "worker" or task == plan.chief:
        return False
    return plan.kind == "tuner" or plan.task(task).serves


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
