"""Judges what the tasks' exits mean for the run, and defines the orders to the coordinator (pure).

A run succeeds when the chief and the workers that train have ended with 0. Workers get
`finish_grace_s` after the chief: healthy ones may exit seconds after it, and those of an Estimator
with parameter servers start later and train longer. Tasks that only serve (ps, and workers inside
`Server.join`) never end by themselves and are stopped when no worker trains any more, the tf.data
service when nothing that could read from it runs any more; a part of a cluster that has only the
service (`tfcluster join`) serves until it is stopped, as one with only ps does. Exit codes
decide, never log lines: a healthy worker logs heartbeat errors once the chief has gone, and ends
with 0 (TensorFlow #58434); one that needed the chief ends with 1. A task that restarts alone and
has failed for good does not stop the others, but the run has failed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from tfcluster.errors import DeadlineError, TfclusterError
from tfcluster.plans.plan import TaskId
from tfcluster.rundir.events import Event, RunFinished, RunQueued
from tfcluster.rundir.states import Status
from tfcluster.supervision.member import Member


class Next(Enum):
    """The next step of the run."""

    GO_ON = "go on"
    FINISH = "the chief has succeeded: give the others finish_grace_s, then stop those that serve"
    DESERTED = "all tasks that the chief works with have ended: give it finish_grace_s"
    AWAIT_CAUSE = "the failures so far are consequences of one that has not arrived yet"
    FAIL = "a task failed by itself: stop the others"
    SUCCEED = "all tasks have ended and none failed"
    FAILED = "all tasks have ended and some failed"


def judge(tasks: Collection[Member], *, chief: Member | None, forms_gang: bool) -> Next:
    """Return the next step for `tasks`, of those with equal `standing` at least one.

    `forms_gang` is false where they form no cluster.
    """
    chief_done = chief is not None and chief.is_ok and forms_gang
    failures = [task for task in tasks if is_failure(task, chief_done=chief_done)]
    if not any(task.may_run for task in tasks):
        return Next.FAILED if failures else Next.SUCCEED
    if forms_gang and (together := [task for task in failures if not task.restarts_alone]):
        # A task that restarts alone stops no other, and may outlive all others for ever.
        cause_may_come = any(t.may_run and t.is_core and not t.restarts_alone for t in tasks)
        has_cause = any(not task.is_collateral for task in together)
        return Next.FAIL if has_cause or not cause_may_come else Next.AWAIT_CAUSE
    readers = [task for task in tasks if not task.id.serves_data]
    if chief_done or (readers and not any(task.may_run for task in readers)):
        return Next.FINISH
    return Next.DESERTED if forms_gang and _is_deserted(tasks, chief) else Next.GO_ON


def is_failure(task: Member, *, chief_done: bool) -> bool:
    """Return whether `task` failed.

    After the chief's success neither a failed server counts, nor the error of a task that asked the
    chief for work.
    """
    if task.may_run or task.is_ok or task.was_stopped:
        return False
    return not (chief_done and (task.serves or (task.is_collateral and task.restarts_alone)))


def _is_deserted(tasks: Collection[Member], chief: Member | None) -> bool:
    """Return whether all workers of a chief that hands out work (tuner, ps job) have ended."""
    if chief is not None and chief.works_on:
        return False
    workers = [task for task in tasks if task.restarts_alone and task.id.job == "worker"]
    if any(task.is_ok and not task.searches for task in workers):
        return False  # no server ends by itself: they trained, and so does the chief
    return bool(workers) and not any(task.may_run for task in workers)


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to end the run; `now` kills its tasks at once."""

    why: str
    exit_code: int
    now: bool = False
    is_announced: bool = False
    """True if a scheduler ends the run's job: it kills the tasks itself once its grace is over, so
    further requests change nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run, with the error to print where no task's own failure explains it."""

    status: Status
    exit_code: int
    error: TfclusterError | None = field(default=None, compare=False)  # errors are never equal
    reason: str = ""
    """The fault of a run that was stopped on request: it stalled."""
    comes_back: str = ""
    """The reason for which the run goes back into its scheduler's queue; empty if it is over."""
    limit: str = ""
    """The field of the spec whose time is over, if `comes_back` for that."""

    @classmethod
    def of(cls, error: TfclusterError) -> Outcome:
        """Return the outcome of a run that `error` has ended."""
        status = Status.TIMED_OUT if isinstance(error, DeadlineError) else Status.FAILED
        return cls(status, error.exit_code, error)

    def event(self) -> RunFinished | RunQueued:
        """Return the last event of the run, or of its present start."""
        if self.comes_back:
            return RunQueued(reason=self.comes_back, again=True)
        reason = self.error.message if self.error is not None else self.reason or None
        hint = (self.error.fix or None) if self.error is not None else None
        return RunFinished(status=self.status, exit_code=self.exit_code, reason=reason, hint=hint)


@dataclass(frozen=True, slots=True)
class Record:
    """An event to be written to ``events.jsonl``."""

    event: Event


@dataclass(frozen=True, slots=True)
class StopTasks:
    """An order to the agent of `node` to stop `tasks`: SIGTERM, `grace_s`, SIGKILL."""

    node: str
    tasks: tuple[str, ...]
    grace_s: float


@dataclass(frozen=True, slots=True)
class AskForStacks:
    """An order to have `tasks` write the stacks of their threads to their logs.

    Then call `Supervisor.stacks_taken` for each.
    """

    node: str
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartAlone:
    """An order to restart one task while the others go on."""

    task: TaskId
    attempt: int


@dataclass(frozen=True, slots=True)
class GatherCheckpoints:
    """An order to gather the last checkpoints, then call `Supervisor.all_checkpoints_gathered`."""


@dataclass(frozen=True, slots=True)
class DropNode:
    """An order to disconnect a node whose agent does not answer; a local agent kills its tasks."""

    node: str


@dataclass(frozen=True, slots=True)
class ProbeLinks:
    """An order to have the nodes dial each other, then call `Supervisor.links_probed`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ReadLogs:
    """An order to read when any task last wrote, and the last lines of `tasks`.

    Then call `Supervisor.logs_read`.
    """

    tasks: tuple[str, ...] = ()


Action = (
    Record
    | StopTasks
    | AskForStacks
    | StartAlone
    | GatherCheckpoints
    | DropNode
    | ProbeLinks
    | ReadLogs
)


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """The next attempt of the gang, once the present one has ended."""

    number: int
    members: tuple[TaskId, ...]
    """The tasks of the attempt, with an evaluator that still runs."""
    delay_s: float
    fresh_ports: bool = False
    reason: str = ""
    """The reason for it, as its event shows it."""
