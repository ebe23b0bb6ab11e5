"""Translation of agents' messages into events: the one place that knows both vocabularies."""

from __future__ import annotations

from tfcluster.agent import budgets
from tfcluster.agent import catalogue as msg
from tfcluster.agent.message_fields import Event, replace
from tfcluster.agent.tasks.host_network_spawner import PREPARE as PREPARE
from tfcluster.node_loss import NodeLoss
from tfcluster.plans.plan import TaskId
from tfcluster.rundir import events as ev
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


def to_event(node: str, message: msg.Report) -> Event | None:
    """Return the event for a message of `node`'s agent, or None."""
    match message:
        case msg.TaskStarted(task=str(step)) if step == PREPARE:
            return ev.PrepareStarted(node=node)
        case msg.TaskExited(task=str(step)) if step == PREPARE:
            return ev.PrepareFinished(
                node=node,
                exit_code=message.exit_code,
                signal=message.signal,
                ended_by=message.ended_by,
                duration_s=message.duration_s,
            )
        case _ if step_of(message) is not None:
            return None
        case msg.TaskStarted() | msg.PortsHeld():
            return replace(message, node=node)
        case Event():
            return message
        case msg.Welcome(pid=pid, guard_pid=guard_pid, identity=identity):
            return ev.NodeConnected(node=node, pid=pid, guard_pid=guard_pid, identity=identity)
        case LinkCut(lease_s=lease_s, why=why):
            return ev.NodeUnreachable(node=node, lease_s=lease_s, why=why)
        case LinkBack(pid=pid, guard_pid=guard_pid):
            return ev.NodeReconnected(node=node, pid=pid, guard_pid=guard_pid)
        case msg.NodeUsage(tasks=tasks):
            return ev.Usage(node=node, tasks={used.task: _numbers_of(used) for used in tasks})
        case msg.PreloadFailed(error=error):
            subject = f"{node}: preloading failed, each task imports by itself"
            return ev.Hint(message=f"{subject}: {error}")
        case msg.Unkillable(task=task, pids=numbers):  # it ends only when the kernel releases it
            subject, pids = task or "a process of an earlier attempt", ", ".join(map(str, numbers))
            sleep = "in uninterruptible sleep (a dead file server, a device driver)"
            return ev.Warned(message=f"{subject} (pid {pids}) was killed but still lives, {sleep}")
        case msg.ReportsDropped(task=task, count=count):
            return ev.Warned(message=_describe_dropped(task, count))
    return None


def event_of_task(report: msg.TaskReport) -> Event | None:
    """Return the event for a report of a task, or None."""
    task, attempt = report.task, report.attempt
    match report:
        case msg.WaitingForPeers():
            return ev.TaskPhase(task=task, attempt=attempt, name=ev.WAITING_FOR_PEERS)
        case msg.Note(message=message):
            return ev.Warned(message=f"{task}: {message}")
        case msg.UnusedGpus(count=count):
            return ev.Warned(message=_describe_unused_gpus(task, count))
        case msg.TrialEnded(id=trial, message=why) if why:  # else the oracle's report says as much
            return ev.Trial(task=task, attempt=attempt, id=trial, message=why)
        case msg.Trial(tuner=str(tuner)):
            return replace(report, tuner=_task_of(tuner, reporter=task))
        case Event():
            return report
    return None


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
