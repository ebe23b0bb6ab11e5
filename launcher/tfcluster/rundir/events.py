"""Everything that happens in a run, one frozen dataclass a kind, one line of ``events.jsonl`` each.

The JSON form is ``{"seq": 1, "time": 1700000000.0, "type": "task_started", …}``: `seq` counts
from 1 without gaps, `time` is seconds since 1970, and a field that is None is left out. Only
additions are ever made; readers ignore what they do not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from tfcluster.rundir.json_numbers import spell
from tfcluster.rundir.states import Status as Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base: `type` is the class name in snake case."""

    type: ClassVar[str] = "event"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # dataclass(slots=True) makes the class twice; both pass here with the same name.
        cls.type = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_json(self) -> dict[str, Any]:
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {"type": self.type} | {name: value for name, value in pairs if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    version: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """The run begins with what an earlier one had gathered (``up --resume``)."""

    run: str
    """The earlier one."""
    step: int | None
    """None where it is not known."""
    checkpoint: str | None = None
    """Then the name of the checkpoint: ``ckpt-12``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConnected(Event):
    node: str
    pid: int
    """Process id of the node's agent."""
    guard_pid: int
    identity: Mapping[str, Any] | None = None
    """Who agent and guard are, for whoever must prove their end (`agent.fencing`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(Event):
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUnreachable(Event):
    """The connection to a node broke; its tasks go on, for as long as its lease."""

    node: str
    lease_s: float
    why: str | None = None
    """Where that is known: a container that is paused, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReconnected(Event):
    """An unreachable node is back, with the same agent and tasks; or a lost one, with a new agent
    and no task of before."""

    node: str
    pid: int
    guard_pid: int
    identity: Mapping[str, Any] | None = None
    """Of a new agent, as in `NodeConnected`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortsHeld(Event):
    node: str
    ports: Mapping[str, int]
    """Task → port, held for the whole run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareStarted(Event):
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareFinished(Event):
    node: str
    exit_code: int | None
    signal: int | None = None
    ended_by: str = "itself"
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted(Event):
    task: str
    attempt: int
    node: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReady(Event):
    """The task has joined the cluster, or begun to train."""

    task: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    task: str
    attempt: int
    step: int
    epoch: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps_per_second: float | None = None
    """Since the progress before."""
    mean_steps_per_second: float | None = None
    """Since the attempt's first step, with all evaluations, saves and pauses between."""
    examples_per_second: float | None = None

    def to_json(self) -> dict[str, Any]:
        return Event.to_json(self) | {"metrics": spell(self.metrics)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Event):
    """A trial of a search, as the oracle in `task` or the tuner that ran it tells of it."""

    task: str
    attempt: int
    id: str
    status: str | None = None
    """KerasTuner's: RUNNING, COMPLETED, INVALID (to be tried again), FAILED."""
    tuner: str | None = None
    """The task that runs it."""
    score: float | None = None
    best_step: int | None = None
    """The epoch of the score, from 0."""
    objective: str | None = None
    direction: str | None = None
    """`min` or `max`."""
    values: Mapping[str, Any] | None = None
    """Its hyperparameters."""
    message: str | None = None
    """Why it failed: the end of a traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskError(Event):
    """An uncaught Python exception, as the task itself reported it."""

    task: str
    attempt: int
    exception: str
    message: str
    file: str | None = None
    line: int | None = None
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointGathered(Event):
    path: str
    step: int | None
    """None where it is not known: the number in a name counts saves or epochs, as a rule."""
    save: int | None = None
    """Then which save of a `tf.train.Checkpoint` it is."""
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering(Event):
    """The run waits for files to be copied; said from time to time."""

    what: str
    """``checkpoints``, ``outputs``, ``TensorBoard files``, ``results``."""
    node: str | None = None
    """Another machine that they come from."""
    bytes: int | None = None
    of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finishing(Event):
    """The chief has succeeded and others still run; said some seconds after the chief's end."""

    tasks: list[str]
    left_s: float
    """Then they are ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLost(Event):
    task: str
    attempt: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStopping(Event):
    task: str
    attempt: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExited(Event):
    task: str
    attempt: int
    exit_code: int | None
    """None where a signal ended it."""
    signal: int | None = None
    ended_by: str = "itself"
    """``itself`` or ``tfcluster``."""
    duration_s: float = 0.0
    peak_rss_bytes: int | None = None
    out_of_memory: str | None = None
    """How it is known that the kernel killed it for memory; None where it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFrozen(Event):
    """A signal has stopped the task's process (SIGSTOP, SIGTSTP); it neither runs nor ends."""

    task: str
    attempt: int
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskThawed(Event):
    """A stopped process goes on (SIGCONT)."""

    task: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled(Event):
    """Nothing has been heard of any task for so long; their stacks are in the logs."""

    silent_s: float
    deadline_s: float | None = None
    """The spec's ``stall_deadline_s``, which leads to a restart; None: training goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarting(Event):
    """Another attempt follows: of the whole gang, or of `task` alone."""

    reason: str
    attempt: int
    """The number of the attempt that is about to start."""
    of: int
    """How many attempts there can be as things stand."""
    from_step: int | None = None
    """None: from the beginning, or from a checkpoint whose step is not known."""
    from_checkpoint: str | None = None
    """Then its name: ``ckpt-12``."""
    delay_s: float = 0.0
    task: str | None = None
    members: tuple[str, ...] | None = None
    """The smaller gang, where some of the tasks are left out from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosInjected(Event):
    """A rehearsed fault was injected (``up --chaos``)."""

    fault: str
    """As the user wrote it: ``kill worker:1 at step 50``."""
    task: str | None = None
    attempt: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Event):
    root_cause: Mapping[str, Any]
    """task, node, attempt, kind, reason; where known exit_code or signal, exception, file, line,
    hint, docs."""
    collateral: tuple[str, ...] = ()
    attempt: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """Something the user should know that ends nothing."""

    message: str
    closing: bool | None = None
    """It came with the end of the run: the summary says it, a live view need not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopping(Event):
    """The run is being ended before its time; `why` is for people."""

    why: str
    grace_s: float = 0.0
    """How long the tasks may take to save and leave, before they are killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    status: str
    exit_code: int
    reason: str | None = None
    """Why it ended so, where that is not, or not only, a task's own failure (`Diagnosis`): what the
    command says last."""
    hint: str | None = None
    """What to do about it."""


def to_line(event: Event, *, seq: int, time: float) -> bytes:
    """One line of ``events.jsonl``, newline included."""
    record = {"seq": seq, "time": round(time, 6)} | event.to_json()
    return json.dumps(record, separators=(",", ":"), default=dict).encode() + b"\n"
