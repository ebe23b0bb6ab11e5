"""Replay a supervisor: tests feed it inputs with their times and read its orders."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tests.launcher.conftest import plan_of, spread
from tests.launcher.messages import task_report

from tfcluster.agent import catalogue as msg
from tfcluster.checkpoints.recognition import Newest
from tfcluster.node_loss import NodeLoss
from tfcluster.plans.plan import Plan, Supervision, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.states import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.decisions import StopRequest
from tfcluster.supervision.supervisor import Supervisor

AnyEvent = TypeVar("AnyEvent", bound=Event)
EXECUTE = "/site-packages/tensorflow/python/eager/execute.py"


def stack(*places: str) -> list[msg.Thread]:
    """Return the stacks of a task with one thread; a place is ``FILE:LINE CODE``."""
    return [msg.Thread(frames=[frame(place) for place in places])]


def frame(place: str) -> msg.Frame:
    where, _, code = place.partition(" ")
    file, _, line = where.rpartition(":")
    return msg.Frame(file=file, line=int(line), function="", code=code)


IN_FIT = stack(f"{EXECUTE}:53", "/home/me/train.py:20 model.fit(data)")
"""The stacks of a task that is inside of a step of Keras's `fit`."""

COLLATERAL = "UnavailableError: Collective ops is aborted by: Socket closed"


@dataclass
class Replay:
    """A supervisor, the current time, and the events and orders so far."""

    plan: Plan
    now: float = 100.0
    heard_at: float = 0.0
    events: list[Event] = field(default_factory=list)
    orders: list[do.Action] = field(default_factory=list)
    stacks: dict[str, list[msg.Thread] | None] = field(default_factory=dict)
    """Task → its answer to an order to take its stacks, if not `IN_FIT`; None: there is none."""
    load: float = 0.0
    """The load per core of each node."""
    starts: bool = True
    """False if no agent has been ordered to start a task, although the attempt has begun."""

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.plan, jitter=lambda: 0.0)
        self.supervisor.begin_run(self.now)
        if self.starts:
            self.begin(1)
        else:
            self.supervisor.begin(1, tuple(task.id for task in self.plan.tasks))

    def begin(self, number: int, *, within_s: float = 0.0) -> Replay:
        """Begin the attempt, and report the start of all its tasks."""
        next_attempt = self.supervisor.next_attempt
        members = (
            next_attempt.members if next_attempt else tuple(task.id for task in self.plan.tasks)
        )
        for task in self.supervisor.begin(number, members):
            self.supervisor.started(str(task), number, self.now + within_s)
        self._take()
        return self

    def _take(self) -> None:
        while orders := self.supervisor.take_orders():
            for action in orders:
                match action:
                    case do.Record(event):
                        self.events.append(event)
                    case do.ReadLogs(tasks):
                        lines = {task: f"last of {task}" for task in tasks}
                        self.supervisor.logs_read(self.heard_at, lines, self.now)
                    case do.AskForStacks(tasks=tasks):
                        self.orders.append(action)
                        self._answer(tasks)
                    case _:
                        self.orders.append(action)

    def _answer(self, tasks: Sequence[str]) -> None:
        for task in tasks:
            attempt = self.supervisor.gang[task].attempt
            if (threads := self.stacks.get(task, IN_FIT)) is not None:
                report = msg.Stacks(task=task, attempt=attempt, threads=threads, load=self.load)
                self.supervisor.stacks_taken(task, attempt, report, self.now)

    def after(self, seconds: float) -> Replay:
        """Let time pass, and act on each timer when it is due."""
        until = self.now + seconds
        while (due := self.supervisor.wake_at) is not None and due <= until:
            self.now = max(self.now, due)
            self.supervisor.tick(self.now)
            self._take()
        self.now = until
        return self

    def exits(
        self,
        task: str,
        code: int | None = 0,
        *,
        killed: int | None = None,
        by: str = "itself",
        last: str = "",
        error: dict[str, Any] | None = None,
        oom: str | None = None,
    ) -> Replay:
        attempt = next(m.attempt for m in self.supervisor.gang if str(m.id) == task)
        event = ev.TaskExited(
            task=task,
            attempt=attempt,
            exit_code=None if killed else code,
            signal=killed,
            ended_by=by,
            out_of_memory=oom,
        )
        self.supervisor.exited(event, self.now, error=error, last_lines=last)
        self._take()
        return self

    def ended(self, *tasks: str) -> Replay:
        """Report that `tasks` ended by tfcluster's SIGTERM."""
        for task in tasks:
            self.exits(task, killed=signal.SIGTERM, by="tfcluster")
        return self

    def loses(self, node: str, reason: str = "no route") -> Replay:
        """Lose the agent of the node."""
        self.supervisor.node_lost(node, NodeLoss(reason), self.now)
        self._take()
        return self

    def gone(self, node: str, reason: str = "no route to host") -> Replay:
        """Give up the node, which is lost."""
        self.supervisor.node_gone(node, NodeLoss(reason), self.now)
        self._take()
        return self

    def leaves(self, node: str, loss: NodeLoss | None = None) -> Replay:
        """Announce that the node will be taken away."""
        loss = loss or NodeLoss(f"{node} got SIGTERM: it is taken away")
        self.supervisor.node_leaving(node, loss, self.now)
        self._take()
        return self

    def stop(self, times: int = 1) -> Replay:
        """Press Ctrl-C."""
        for _ in range(times):
            self.supervisor.stop(StopRequest("Ctrl-C", 130), self.now)
        self._take()
        return self

    def order(self, *tasks: str) -> Replay:
        """Order the tasks, or all, to start in attempt 1; their agents do not answer."""
        named = [TaskId.parse(task) for task in tasks] or [task.id for task in self.plan.tasks]
        self.supervisor.order(named, 1, self.now)
        return self

    def started(self, task: str, attempt: int = 1) -> Replay:
        self.supervisor.started(task, attempt, self.now)
        self._take()
        return self

    def froze(self, task: str) -> Replay:
        """Report that SIGSTOP has stopped the task of the first attempt."""
        self.supervisor.froze(task, 1, signal.SIGSTOP, self.now)
        return self

    def joined(self, *tasks: str) -> Replay:
        """Report that the tasks, or both workers, have waited for their peers and met them."""
        for task in tasks or ("worker:0", "worker:1"):
            self.says(task, "waiting_for_peers").says(task, "task_ready")
        return self

    def says(self, task: str, kind: str, **facts: Any) -> Replay:
        attempt = next(m.attempt for m in self.supervisor.gang if str(m.id) == task)
        facts |= {"task": task, "attempt": attempt}
        self.supervisor.reported(task_report(kind, **facts), self.now)
        self._take()
        return self

    def gather(self, step: int | None = None, *, name: str | None = None) -> Replay:
        """Report that the chief's checkpoints are gathered, and clear the earlier orders."""
        assert do.GatherCheckpoints() in self.orders
        self.orders.clear()
        self.supervisor.all_checkpoints_gathered(Newest(step, name), self.now)
        self._take()
        return self

    def stopped(self) -> list[str]:
        """Return the tasks that were ordered to stop, in order."""
        return [t for o in self.orders if isinstance(o, do.StopTasks) for t in o.tasks]

    def next(self) -> do.NextAttempt:
        """Return the next attempt, which must have been decided."""
        found = self.supervisor.next_attempt
        assert found is not None
        return found

    def members(self) -> list[str]:
        """Return the tasks of the next attempt; none if there is none."""
        found = self.supervisor.next_attempt
        return [] if found is None else [str(task) for task in found.members]

    def all(self, kind: type[AnyEvent]) -> list[AnyEvent]:
        return [event for event in self.events if isinstance(event, kind)]

    def messages(self, kind: type[ev.Warned | ev.Alert | ev.Hint]) -> list[str]:
        return [event.message for event in self.events if isinstance(event, kind)]

    def last(self, kind: type[Event]) -> Any:
        return next(event for event in reversed(self.events) if isinstance(event, kind))

    def cause(self) -> dict[str, Any]:
        return dict(self.last(ev.Diagnosis).root_cause)

    def end(self) -> do.Outcome:
        """Return how the run has ended."""
        found = self.supervisor.outcome
        assert found is not None
        return found

    def outcome(self) -> tuple[Status, int]:
        return self.end().status, self.end().exit_code

    def error(self) -> str:
        """Return the error that has ended the run, with its fix."""
        error = self.end().error
        assert error is not None
        return str(error)


def replay_of(*tasks: str, kind: str = "training", **supervision: Any) -> Replay:
    plan = plan_of(*tasks, kind=kind)  # type: ignore[arg-type]
    return Replay(replace(plan, supervision=Supervision(**supervision)))


def spread_gang(*tasks: str, **supervision: Any) -> Replay:
    """Return a gang in which each task has a node of its own, named after it."""
    plan = spread(plan_of(*(tasks or ("worker:0", "worker:1"))))
    return Replay(replace(plan, supervision=Supervision(**supervision)))
