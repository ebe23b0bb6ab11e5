"""The events of a run: one class per type, one line of ``events.jsonl`` per event.

The JSON form is ``{"seq": 1, "time": 1700000000.0, "type": "task_started", …}``: `seq` has no
gaps, `time` is seconds since 1970, fields that are None are left out. Only additions are ever made.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tfcluster.agent.catalogue import (
    ChaosInjected,
    LogLost,
    PortsHeld,
    Progress,
    StepEnds,
    TaskDevices,
    TaskError,
    TaskExited,
    TaskFrozen,
    TaskPhase,
    TaskReady,
    TaskStarted,
    TaskThawed,
    Trial,
)
from tfcluster.agent.message_fields import Event
from tfcluster.node_loss import LossNature

# What an agent or a task reports is declared once, in the catalogue of messages.
# fmt: off
__all__ = [
    "ChaosInjected", "Event", "LogLost", "PortsHeld", "Progress", "StepEnds",
    "TaskDevices", "TaskError", "TaskExited", "TaskFrozen", "TaskPhase", "TaskReady",
    "TaskStarted", "TaskThawed", "Trial",
]
# fmt: on


class RunStarted(Event):
    version: str
    run: str


class RunQueued(Event):
    """The run waits until its nodes are allocated."""

    reason: str
    """The reason in the words of the backend: ``Resources``, ``Priority`` …"""
    again: bool | None = None
    """True if the run had started before, and its job went back into the queue."""


class JobSubmitted(Event):
    """The run's coordinator will run in a job of a scheduler."""

    backend: str
    id: str
    """The scheduler's number of the job."""
    cluster: str = ""
    """The cluster that the scheduler belongs to; a home may be shared by several."""


class JobJoined(Event):
    """The run was started inside a job of the user's own, whose nodes it uses."""

    backend: str
    id: str
    restarts: int = 0
    """The number of times that the scheduler had started the job again by then."""


class RunContinued(Event):
    """The run goes on in the same folder: its job was queued again and has started again."""

    restarts: int
    """The number of times so far."""
    attempt: int
    """The next attempt of all tasks."""
    ran_s: float
    """The time for which the run ran before, without its time in queues."""


class Suspended(Event):
    """The run goes on after its scheduler had stopped all its processes, or their machines."""

    seconds: float


class NodesAllocated(Event):
    """The nodes are there: of a run that was queued, or with hosts that the plan did not know."""

    hosts: Mapping[str, str]
    """Node → host name, for those that the plan could not know."""
    addresses: Mapping[str, str]
    """Task → address; its port may still be 0."""
    allocation: str = ""
    """The owner of the nodes at a scheduler: ``job 17``."""


class Resumed(Event):
    """The run starts from a checkpoint of an earlier one (``up --resume``)."""

    run: str
    """The earlier run."""
    step: int | None
    """The checkpoint's step; None where it is not known."""
    checkpoint: str | None = None
    """The checkpoint's name (``ckpt-12``) where its step is not known."""


class NodeConnected(Event):
    node: str
    pid: int
    """Process id of the node's agent."""
    guard_pid: int
    identity: Mapping[str, Any] | None = None
    """The identity of agent and guard, by which `agent.fencing` proves that they have ended."""


class NodeLost(Event):
    node: str
    reason: str
    nature: str = LossNature.UNKNOWN
    """The kind of loss (`node_loss.LossNature`)."""


class NodeUnreachable(Event):
    """The connection to a node broke; its tasks run on until its lease ends."""

    node: str
    lease_s: float
    why: str | None = None
    """The reason where it is known, for example a paused container."""


class NodeReconnected(Event):
    """A node is back: an unreachable one with agent and tasks, or a lost one with a new agent."""

    node: str
    pid: int
    guard_pid: int
    identity: Mapping[str, Any] | None = None
    """The identity of a new agent, as in `NodeConnected`."""


class NodeBack(Event):
    """A lost node could start tasks again that the gang has left out."""

    node: str
    tasks: list[str]
    joins_in_s: float | None = None
    """The time after which they join at a checkpoint; None: only ``scale-to`` takes them in."""


class PrepareStarted(Event):
    node: str


class PrepareFinished(Event):
    node: str
    exit_code: int | None
    signal: int | None = None
    ended_by: str = "itself"
    duration_s: float


class ProfileStarted(Event):
    """Tasks trace steps with TensorFlow's profiler (``tfcluster profile``)."""

    id: str
    tasks: list[str]
    after: int | None = None
    """The traces begin after this step; None where tasks do not take their steps together."""
    steps: int


class ProfileFinished(Event):
    """The traces of a profile are in the run folder, or it is known why they are not."""

    id: str
    tasks: Mapping[str, Mapping[str, Any]]
    """Task → ``file``, its name in ``tensorboard/plugins/profile/ID``, ``bytes``, ``seconds``, and
    the steps ``first`` and ``last`` of one that takes steps; or the ``problem``."""


class TensorboardStarted(Event):
    """TensorBoard serves the run's curves on this machine (``up --tensorboard``)."""

    url: str


class CheckpointGathered(Event):
    path: str
    step: int | None
    """The step, if it is known: a number in a name usually counts saves or epochs."""
    save: int | None = None
    """The number of the save of a `tf.train.Checkpoint` where the step is not known."""
    kind: str


class Gathering(Event):
    """The run waits for files to be copied; repeated from time to time."""

    what: str
    """``checkpoints``, ``outputs``, ``TensorBoard files``, ``results``."""
    node: str | None = None
    """The other machine that the files come from."""
    bytes: int | None = None
    of: int | None = None


class Finishing(Event):
    """The chief has succeeded and other tasks still run; sent some seconds after its end."""

    tasks: list[str]
    left_s: float
    """The time they may still run before they are stopped."""


class Usage(Event):
    """The memory and processor time that the running tasks of a node use; every few seconds."""

    node: str
    tasks: Mapping[str, Mapping[str, float]]
    """Task → ``rss_bytes``, ``cores`` (such as 1.5), ``gpu`` (0 to 1), ``gpu_memory_bytes``,
    ``throttled`` (the part of the time in which a CPU quota has stopped it)."""
    load: float | None = None
    """The processes that run or want to, per core, on average over a minute."""
    memory_stall: float | None = None
    """The part of the last ten seconds in which some process waited for memory, 0 to 1."""
    clock: float | None = None
    """The clock of the first core as a part of its highest."""


class StepTimes(Event):
    """The seconds of each part of a task's latest steps; every few seconds."""

    task: str
    attempt: int
    step: int
    """The last one of `steps`."""
    steps: int
    seconds: float
    """The time of all these steps, without evaluations."""
    parts: Mapping[str, float]
    """Part → its seconds: ``input``, ``compute``, ``waiting`` (in a collective, for the slowest
    task), ``transfer`` (of collectives), ``callbacks``, ``other`` (Python outside of functions)."""


class StepVerdict(Event):
    """The part that makes the steps as long as they are, if it is clear; a later verdict
    replaces it."""

    attempt: int
    bound: str | None = None
    """``input``, ``network``, ``straggler``, ``python``, ``compute``; None: not clear any more."""
    causes: tuple[str, ...] = ()
    """The tasks that all others wait for; empty where all are alike."""
    share: float | None = None
    """The share of a step, 0 to 1, that the part takes."""
    message: str | None = None
    fix: str | None = None


class TaskStopping(Event):
    task: str
    attempt: int
    why: str


class Stalled(Event):
    """No task has taken a step for `silent_s`, much longer than usual; the logs have the stacks."""

    silent_s: float
    deadline_s: float | None = None
    """The spec's ``stall_deadline_s``, which leads to a restart; if None, training goes on."""
    what: str = ""
    """The tasks that are waited for, and where they are, in one line."""
    causes: tuple[str, ...] = ()
    """The tasks that the others wait for; empty where that is not known."""
    tasks: Mapping[str, str] = MappingProxyType({})
    """Task → where it is, in words; of a large gang those that are furthest behind."""


class StallEnded(Event):
    """A stalled run goes on: a task has reported work, or has ended."""

    silent_s: float
    """The time for which nothing was reported."""


class Restarting(Event):
    """Another attempt follows: of the whole gang, or of `task` alone."""

    reason: str
    attempt: int
    """The number of the attempt that is about to start."""
    of: int
    """The number of attempts there can be as things stand."""
    from_step: int | None = None
    """The checkpoint's step; None at the beginning, or where it is not known."""
    from_checkpoint: str | None = None
    """The checkpoint's name (``ckpt-12``) where its step is not known."""
    delay_s: float = 0.0
    task: str | None = None
    members: tuple[str, ...] | None = None
    """The gang, where it is smaller than in the spec."""
    counts: bool | None = None
    """False if it does not count against ``max_restarts``."""
    planned: bool | None = None
    """True if nothing failed: the gang grows because a node is back, or ``scale-to`` was used."""


class Diagnosis(Event):
    root_cause: Mapping[str, Any]
    """The fields task, node, attempt, kind, reason, and where they are known exit_code or signal,
    exception, file, line, hint, docs; has_only_a_code if the reason is the exit code alone."""
    collateral: tuple[str, ...] = ()
    attempt: int | None = None


class Warned(Event):
    """A warning to the user; the run goes on."""

    message: str
    closing: bool | None = None
    """True for a warning at the end of the run: the summary shows it, a live view need not."""


class Alert(Event):
    """A fact that makes a run's result doubtful although the run goes on, or succeeds.

    A later alert of the same kind replaces it.
    """

    kind: str
    """``diverged``: a loss or the weights are NaN or infinite; ``trains_alone``: each worker trains
    a model of its own; ``same_data``: workers read the same batches; ``sharded_twice``: TensorFlow
    shards what the script has sharded; ``states_differ``: workers have restored different
    checkpoints; ``no_step``: the datasets of all workers are empty."""
    message: str
    task: str | None = None
    attempt: int | None = None
    step: int | None = None


class Hint(Event):
    """Advice for the user while the run goes on; nothing is wrong."""

    message: str


class RunStopping(Event):
    """The run is being stopped early; `why` is shown to the user."""

    why: str
    grace_s: float = 0.0
    """The time the tasks get to save and exit before they are killed."""
    is_announced: bool | None = None
    """True if the scheduler ends the run's job, and kills tasks after a grace of its own."""


class RunFinished(Event):
    status: str
    exit_code: int
    reason: str | None = None
    """The reason where a task's own failure (`Diagnosis`) does not explain it, or not alone."""
    hint: str | None = None
    """The user's next step after `reason`."""
