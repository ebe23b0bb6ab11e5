"""Translation of agents' messages into events: the one place that knows both vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfcluster.agent import budgets
from tfcluster.agent import catalogue as msg
from tfcluster.agent.message_fields import Message
from tfcluster.agent.tasks.host_network_spawner import PREPARE as PREPARE
from tfcluster.node_loss import NodeLoss
from tfcluster.plans.plan import TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.supervision.failure import signal_name
from tfcluster.wire.messages import LinkBack, LinkCut

PREFLIGHT = "preflight"
"""The name of the probe before the start."""
LINKS = "links"
"""The name of the check of the links between the nodes, after a failure."""
STEPS = frozenset({PREPARE, PREFLIGHT, LINKS})
"""Names that are not tasks of the cluster."""
END_REPLIES = (msg.TaskExited, msg.StartFailed)
"""The last messages about a step."""


_EVENTS: Mapping[type[Message], type[Event]] = {
    msg.Welcome: ev.NodeConnected,
    LinkCut: ev.NodeUnreachable,
    LinkBack: ev.NodeReconnected,
    msg.PortsHeld: ev.PortsHeld,
    msg.TaskStarted: ev.TaskStarted,
    msg.TaskExited: ev.TaskExited,
    msg.TaskStopped: ev.TaskFrozen,
    msg.TaskContinued: ev.TaskThawed,
    msg.LogLost: ev.LogLost,
    msg.Ready: ev.TaskReady,
    msg.Phase: ev.TaskPhase,
    msg.Devices: ev.TaskDevices,
    msg.Progress: ev.Progress,
    msg.StepTimes: ev.StepTimes,
    msg.Error: ev.TaskError,
    # The chief also reports the step at which a fault is injected into another task.
    msg.Chaos: ev.ChaosInjected,
}
"""Message → the event with the same fields, and maybe fewer."""
_PREPARE_EVENTS: Mapping[type[Message], type[Event]] = {
    msg.TaskStarted: ev.PrepareStarted,
    msg.TaskExited: ev.PrepareFinished,
}


def to_event(node: str, message: msg.Report) -> Event | None:
    """Return the event for a message of `node`'s agent, or None."""
    if (step := step_of(message)) is not None:
        kind = _PREPARE_EVENTS.get(type(message)) if step == PREPARE else None
        return _with_same_fields(kind, {**vars(message), "node": node})
    match message:
        case msg.Usage(tasks=tasks):
            return ev.Usage(node=node, tasks={used.task: _numbers_of(used) for used in tasks})
        case msg.PreloadFailed(error=error):
            what = f"{node}: preloading failed, each task imports by itself"
            return ev.Hint(message=f"{what}: {error}")
        case msg.Unkillable(task=task, pids=numbers):  # it ends only when the kernel releases it
            what, pids = task or "a process of an earlier attempt", ", ".join(map(str, numbers))
            sleep = "in uninterruptible sleep (a dead file server, a device driver)"
            return ev.Warned(message=f"{what} (pid {pids}) was killed but still lives, {sleep}")
        case msg.ReportsDropped(task=task, count=count):
            return ev.Warned(message=_describe_dropped(task, count))
    return _with_same_fields(_EVENTS.get(type(message)), {**vars(message), "node": node})


def event_of_task(task: str, attempt: int, report: msg.TaskReport) -> Event | None:
    """Return the event for a report of a task, or None."""
    named: dict[str, Any] = {"task": task, "attempt": attempt}
    match report:
        case msg.WaitingForPeers():
            return ev.TaskPhase(task=task, attempt=attempt, name=ev.WAITING_FOR_PEERS)
        case msg.Note(message=message):
            return ev.Warned(message=f"{task}: {message}")
        case msg.UnusedGpus(count=count):
            return ev.Warned(message=_describe_unused_gpus(task, count))
        case msg.TrialEnded(message=why) if why:  # else the oracle's report says as much
            return _with_same_fields(ev.Trial, {**named, **vars(report)})
        case msg.Trial(tuner=tuner):
            tuner = tuner and _task_of(tuner, reporter=task)
            return _with_same_fields(ev.Trial, {**named, **vars(report), "tuner": tuner})
    return _with_same_fields(_EVENTS.get(type(report)), {**named, **vars(report)})


def step_of(message: msg.Report) -> str | None:
    """Return the step of `STEPS` that the message is about; None for all others."""
    task = getattr(message, "task", None)
    return task if task in STEPS else None


def loss_of_node(message: msg.Report) -> NodeLoss | None:
    """Return why this message means that the node is lost; None if it does not."""
    match message:
        case msg.GuardLost():
            return NodeLoss("the guard beside its agent was killed")
        case msg.AgentEnding(signal=signal):
            return NodeLoss(f"its agent was ended by {signal_name(signal)}")
        case msg.Refused(reason=reason):
            return NodeLoss(f"its agent could not carry out an order ({reason})")
    return None


def _with_same_fields(kind: type[Event] | None, facts: Mapping[str, Any]) -> Event | None:
    if kind is None:
        return None
    return kind(**{name: facts[name] for name in kind.fields if name in facts})


def _numbers_of(used: msg.TaskUsage) -> dict[str, float]:
    return {name: n for name, n in vars(used).items() if name != "task" and n is not None}


def _task_of(tuner: str, *, reporter: str) -> str:
    """Return the task of a tuner such as ``worker-1``; one that searches alone is `reporter`."""
    try:
        return str(TaskId.parse(tuner))
    except ValueError:
        return reporter


def _describe_unused_gpus(task: str, count: int) -> str:
    gpus = "a GPU" if count == 1 else f"{count} GPUs"
    return (
        f"{task} computes on the CPU, but nvidia-smi lists {gpus} on its machine: `tfcluster doctor"
        " --deep SPEC` says why TensorFlow uses none; --set resources.gpus=0 if that is intended"
    )


def _describe_dropped(task: str, count: int) -> str:
    """Return the warning about dropped reports, for the first one and at the task's end."""
    if count != 1:
        return f"{count:,} reports of {task} were dropped"
    per_s, size = budgets.REPORTS_PER_S, budgets.REPORT_BYTES_PER_S / 1000
    limit = f"{per_s:.0f} times or {size:.0f} kB a second"
    return (
        f"{task} reports more than {limit}, or faster than reports can be passed on: the excess"
        " is dropped"
    )
