"""The reports of agents and tasks: which event each one is, and how many a run takes.

`ReportFilter` leaves out what is invalid or too much, since anything in a task can send a report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tfcluster.agent import budgets
from tfcluster.agent import catalogue as msg
from tfcluster.agent.message_fields import Event, parse, replace
from tfcluster.errors import signal_name
from tfcluster.node_loss import NodeLoss
from tfcluster.plans.plan import TaskId
from tfcluster.rundir import chaos
from tfcluster.rundir import events as ev
from tfcluster.rundir.chaos import Fault
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.wire.messages import LinkBack, LinkCut

PREPARE = msg.PREPARE
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
            return ev.Usage(
                node=node,
                tasks={used.task: _numbers_of(used) for used in tasks},
                load=message.load,
                memory_stall=message.memory_stall,
                clock=message.clock,
            )
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
            name = "waiting for peers"
            return ev.TaskPhase(task=task, attempt=attempt, name=name, waits_for_peers=True)
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


class ReportFilter:
    """The limits on a run's notes and trials; `tell` gets a sentence when some are left out.

    Of each node one task may report GPUs that it does not use.
    """

    def __init__(
        self, state: RunSnapshot, faults: Sequence[Fault], tell: Callable[[str], None]
    ) -> None:
        self._state, self._faults, self._tell = state, faults, tell
        self._notes: Counter[tuple[str, int]] = Counter()
        self._trials: set[str] = set()
        self._has_warned = False
        self._with_unused_gpus: set[str] = set()
        """Nodes with GPUs that their tasks do not use."""

    def take(self, message: msg.TaskEvent) -> msg.TaskReport | None:
        """Return the report in a message, with its task and attempt; None if it is invalid or left
        out.

        Anything that runs in a task can send it. The chief may inject a fault into another task,
        which its report names.
        """
        task, attempt = message.task, message.attempt
        try:
            report = parse(message.event, msg.TaskReport)
        except ValueError:
            return None
        match report:
            case msg.ChaosInjected(fault=fault):
                is_kept = self._is_ordered(fault, task, attempt)
            case msg.Note():
                is_kept = self._has_room_for_note(task, attempt)
            case msg.UnusedGpus():
                is_kept = self._is_first_of_node(task)
            case msg.Trial(id=trial) | msg.TrialEnded(id=trial):
                is_kept = self._has_room_for_trial(trial)
            case _:
                is_kept = True
        if report is None or not is_kept:
            return None
        is_of_other = isinstance(report, msg.ChaosInjected) and report.task
        return replace(report, task=report.task if is_of_other else task, attempt=attempt)

    def _is_ordered(self, text: str, task: str, attempt: int) -> bool:
        """Return whether the task was to inject this fault, and has not reported it yet."""
        fault = chaos.injected(self._faults, text, by=task, attempt=attempt)
        return fault is not None and all(entry["fault"] != text for entry in self._state.chaos)

    def _has_room_for_note(self, task: str, attempt: int) -> bool:
        self._notes[task, attempt] += 1
        if self._notes[task, attempt] == budgets.NOTES + 1:
            self._tell(f"{task} has sent more than {budgets.NOTES} notes: the rest is left out")
        return self._notes[task, attempt] <= budgets.NOTES

    def _is_first_of_node(self, task: str) -> bool:
        """Return whether no task of this task's node has reported unused GPUs before."""
        node, before = self._state.task(task).node, len(self._with_unused_gpus)
        self._with_unused_gpus.add(node)
        return len(self._with_unused_gpus) > before

    def _has_room_for_trial(self, trial: str) -> bool:
        if trial in self._trials:
            return True
        if len(self._trials) < budgets.TRIALS:
            self._trials.add(trial)
            return True
        if not self._has_warned:
            self._has_warned = True
            limit = f"{budgets.TRIALS:,}"
            self._tell(f"the search has more than {limit} trials: its own folder lists the rest")
        return False
