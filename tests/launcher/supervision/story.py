"""Replay a supervisor: tests feed it inputs with their times and read its orders."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.launcher.conftest import plan_of
from tests.launcher.messages import task_report

from tfcluster.agent import catalogue as msg
from tfcluster.checkpoints.completeness import Newest
from tfcluster.plans.plan import Plan, Supervision
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.states import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.supervisor import Supervisor

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

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.plan, jitter=lambda: 0.0)
        self.supervisor.begin_run(self.now)
        self.begin(1)

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
                    case do.TakeStacks(tasks=tasks):
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
        self.supervisor.checkpoints_gathered(Newest(step, name), self.now)
        self._take()
        return self

    def stopped(self) -> list[str]:
        """Return the tasks that were ordered to stop, in order."""
        return [t for o in self.orders if isinstance(o, do.StopTasks) for t in o.tasks]

    def last(self, kind: type[Event]) -> Any:
        return next(event for event in reversed(self.events) if isinstance(event, kind))

    def cause(self) -> dict[str, Any]:
        return dict(self.last(ev.Diagnosis).root_cause)

    def outcome(self) -> tuple[Status, int]:
        found = self.supervisor.outcome
        assert found is not None
        return found.status, found.exit_code


def replay_of(*tasks: str, kind: str = "training", **supervision: Any) -> Replay:
    plan = plan_of(*tasks, kind=kind)  # type: ignore[arg-type]
    return Replay(replace(plan, supervision=Supervision(**supervision)))
