"""What the supervisor wants done: values that the coordinator carries out."""

from __future__ import annotations

from dataclasses import dataclass

from tfcluster.plan.plan import TaskId
from tfcluster.run.events import Event


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
class BringHome:
    """The gang has ended: gather what the chief saved last, then say so with `home`."""


@dataclass(frozen=True, slots=True)
class DropNode:
    """The node's agent does not answer: cut the connection, which ends a local one's tasks."""

    node: str


@dataclass(frozen=True, slots=True)
class AskLinks:
    """Every task blames another: have the nodes dial each other, then tell with `linked`."""

    attempt: int


Action = Record | StopTasks | DumpStacks | StartAlone | BringHome | DropNode | AskLinks


@dataclass(frozen=True, slots=True)
class Again:
    """The gang has ended and is to be started again as attempt `number`."""

    number: int
    members: tuple[TaskId, ...]
    """Those to start: an evaluator that still runs is not among them."""
    delay_s: float
    fresh_ports: bool = False
