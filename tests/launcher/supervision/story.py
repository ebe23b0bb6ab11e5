"""A supervisor told step by step what happens, and what it has wanted so far."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import Any

from tests.launcher.conftest import plan_of

from tfcluster.plan.plan import Plan, Supervision
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event, Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.supervisor import Supervisor

COLLATERAL = "UnavailableError: Collective ops is aborted by: Socket closed"


@dataclass
class Story:
    """A supervisor, its time, and what it has wanted so far."""

    plan: Plan
    now: float = 100.0
    heard_at: float = 0.0
    events: list[Event] = field(default_factory=list)
    orders: list[do.Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.supervisor = self.make_supervisor()
        self.supervisor.begin_run(self.now)
        self.begin(1)

    def make_supervisor(self) -> Supervisor:
        return Supervisor(
            self.plan,
            last_output=lambda: self.heard_at,
            last_line=lambda member: f"last of {member.id}",
            jitter=lambda: 0.0,
        )

    def begin(self, number: int, *, within_s: float = 0.0) -> Story:
        """All tasks of the attempt are told to start, and do."""
        next_attempt = self.supervisor.next_attempt
        members = (
            next_attempt.members if next_attempt else tuple(task.id for task in self.plan.tasks)
        )
        for task in self.supervisor.begin(number, members):
            self.supervisor.started(str(task), number, self.now + within_s)
        self._take()
        return self

    def _take(self) -> None:
        for action in self.supervisor.orders.take():
            if isinstance(action, do.Record):
                self.events.append(action.event)
            else:
                self.orders.append(action)

    def after(self, seconds: float) -> Story:
        """Let time pass, doing what is due when it is due."""
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
    ) -> Story:
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

    def ended(self, *tasks: str) -> Story:
        """They obey our SIGTERM."""
        for task in tasks:
            self.exits(task, killed=signal.SIGTERM, by="tfcluster")
        return self

    def says(self, task: str, kind: str, **facts: Any) -> Story:
        attempt = next(m.attempt for m in self.supervisor.gang if str(m.id) == task)
        self.supervisor.reported(task, attempt, {"type": kind, **facts}, self.now)
        self._take()
        return self

    def home(self, step: int | None = None, *, name: str | None = None) -> Story:
        """What the chief saved is home, and all that was ordered is done."""
        assert do.GatherCheckpoints() in self.orders
        self.orders.clear()
        self.supervisor.checkpoints_gathered(step, self.now, name=name)
        self._take()
        return self

    def stopped(self) -> list[str]:
        """The tasks that were told to end, in order."""
        return [t for o in self.orders if isinstance(o, do.StopTasks) for t in o.tasks]

    def last(self, kind: type[Event]) -> Any:
        return next(event for event in reversed(self.events) if isinstance(event, kind))

    def cause(self) -> dict[str, Any]:
        return dict(self.last(ev.Diagnosis).root_cause)

    def outcome(self) -> tuple[Status, int]:
        found = self.supervisor.outcome
        assert found is not None
        return found.status, found.exit_code


def story(*tasks: str, kind: str = "training", **supervision: Any) -> Story:
    plan = plan_of(*tasks, kind=kind)  # type: ignore[arg-type]
    return Story(replace(plan, supervision=Supervision(**supervision)))
