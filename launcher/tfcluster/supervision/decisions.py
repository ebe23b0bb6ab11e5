"""Judges what the tasks' exits mean for the run, and defines the orders to the coordinator (pure).

A run succeeds when the chief and the workers that train have ended with 0. Workers get
`finish_grace_s` after the chief: healthy ones may exit seconds after it, and those of an Estimator
with parameter servers start later and train longer. Tasks that only serve (ps, and workers inside
`Server.join`) never end by themselves and are stopped when no worker trains any more. Exit codes
decide, never log lines (TensorFlow #58434: heartbeat errors after a successful end). A task that
restarts alone and has failed for good does not stop the others, but the run has failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tfcluster.errors import TfclusterError
from tfcluster.plan.plan import TaskId
from tfcluster.rundir.events import Event, RunFinished
from tfcluster.rundir.states import Status


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How far one task is: `running` (or about to start again), or ended, `ok` or not."""

    id: TaskId
    running: bool
    ok: bool = False
    ended_by_us: bool = False
    serves: bool = False
    collateral: bool = False
    """It failed, and its words say that it only follows another task's end."""
    alone: bool = False
    """It can be restarted while the others go on, so its failure is its own affair."""
    searches: bool = False
    works_on: bool = False
    """As a chief it needs nobody else: its search is over, or it trains without its peers."""


class Next(Enum):
    """What the coordinator does now."""

    GO_ON = "go on"
    FINISH = "the chief has succeeded: give the others finish_grace_s, then end those that serve"
    DESERTED = "all that the chief works with have ended: give it finish_grace_s"
    AWAIT_CAUSE = "the failures so far follow another that has not arrived yet"
    FAIL = "a task failed by itself: end the others"
    SUCCEED = "all is over, and well"
    FAILED = "all is over, and something failed"


def judge(tasks: Sequence[TaskEnd], *, chief: TaskId, gang: bool) -> Next:
    """What follows from the tasks' ends; `gang` is false where tasks form no cluster."""
    chief_done = any(task.id == chief and task.ok for task in tasks) and gang
    failures = [task for task in tasks if is_failure(task, chief_done=chief_done)]
    if not any(task.running for task in tasks):
        return Next.FAILED if failures else Next.SUCCEED
    if gang and (together := [task for task in failures if not task.alone]):
        # Who restarts alone brings nobody down, and may outlive all the others for ever.
        may_come = any(task.running and not task.alone for task in tasks)
        settled = any(not task.collateral for task in together) or not may_come
        return Next.FAIL if settled else Next.AWAIT_CAUSE
    if chief_done:
        return Next.FINISH
    return Next.DESERTED if gang and _is_deserted(tasks, chief) else Next.GO_ON


def is_failure(task: TaskEnd, *, chief_done: bool) -> bool:
    """Not one: a late collateral error after the chief's success, or a server nobody needs."""
    if task.running or task.ok or task.ended_by_us:
        return False
    return not (chief_done and (task.collateral or task.serves))


def _is_deserted(tasks: Sequence[TaskEnd], chief: TaskId) -> bool:
    """Whether a chief that hands out work (tuner, parameter server) has nobody left to do it."""
    if any(task.id == chief and task.works_on for task in tasks):
        return False
    hands = [task for task in tasks if task.alone and task.id.job == "worker"]
    if any(task.ok and not task.searches for task in hands):
        return False  # no server ends by itself: they trained, and so does the chief
    return bool(hands) and not any(task.running for task in hands)


@dataclass(frozen=True, slots=True)
class Stop:
    """A wish to end the run; `now` kills at once."""

    why: str
    exit_code: int
    now: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, and the error to print where it is not the tasks' own affair."""

    status: Status
    exit_code: int
    error: TfclusterError | None = None

    def event(self) -> RunFinished:
        """The last event of the run."""
        reason = self.error.message if self.error is not None else None
        hint = (self.error.fix or None) if self.error is not None else None
        return RunFinished(status=self.status, exit_code=self.exit_code, reason=reason, hint=hint)


@dataclass(frozen=True, slots=True)
class Record:
    """Something that has happened, for the journal."""

    event: Event


@dataclass(frozen=True, slots=True)
class StopTasks:
    """Have the agent of `node` climb the stop ladder with `tasks`."""

    node: str
    tasks: tuple[str, ...]
    grace_s: float
    why: str


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Have every thread's stack of `tasks` written to their logs (SIGUSR1)."""

    node: str
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartAlone:
    """Start one task again while the others go on."""

    task: TaskId
    attempt: int


@dataclass(frozen=True, slots=True)
class GatherCheckpoints:
    """The gang has ended: gather what the chief saved last, then say so with `home`."""


@dataclass(frozen=True, slots=True)
class DropNode:
    """The node's agent does not answer: cut the connection, which ends a local one's tasks."""

    node: str


@dataclass(frozen=True, slots=True)
class AskLinks:
    """Every task blames another: have the nodes dial each other, then tell with `linked`."""

    attempt: int


Action = Record | StopTasks | DumpStacks | StartAlone | GatherCheckpoints | DropNode | AskLinks


@dataclass(frozen=True, slots=True)
class Again:
    """The gang has ended and is to be started again as attempt `number`."""

    number: int
    members: tuple[TaskId, ...]
    """Those to start: an evaluator that still runs is not among them."""
    delay_s: float
    fresh_ports: bool = False
