"""Decides which tasks the next gang has: those of the plan, but for the ones left out (pure).

A gang shrinks when tasks are lost for good, and on request (`tfcluster scale-to`). It grows when
lost nodes are back, and on request. Under MultiWorkerMirroredStrategy both need a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tfcluster.errors import UsageError, join_first
from tfcluster.plans.plan import Plan, TaskId

_START_AGAIN: Final = (
    "stop it, write another number of workers into its spec, and continue:"
    " `tfcluster up SPEC --resume RUN`"
)


class Absence(Enum):
    """The reason why a task is left out of the gang.

    A lost node that is back brings its tasks back. Failures never end: they would occur again.
    """

    NODE = "its node is lost"
    FAILED = "it cannot be restarted any more"
    REQUEST = "`tfcluster scale-to` left it out"


def can_resize(plan: Plan) -> bool:
    """Return whether a gang of `plan` can have fewer workers, and more again."""
    return plan.is_synchronous and not (plan.joins or plan.by_hand)


def count_of(workers: int) -> str:
    """Return ``1 worker``, ``3 workers``."""
    return f"{workers} worker{'s' * (workers != 1)}"


@dataclass(slots=True)
class Membership:
    """The tasks of the next gang, and the reason for each task that is left out."""

    plan: Plan
    absent: dict[TaskId, Absence] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    """The nodes without an agent that could start tasks."""
    requested: int | None = None
    """The number of workers that was requested last: lost nodes that are back add no more."""
    changed_at: float | None = None
    """The time at which the number of workers changed last."""

    @property
    def members(self) -> tuple[TaskId, ...]:
        """The tasks of the next gang, in the plan's order."""
        return tuple(task.id for task in self.plan.tasks if task.id not in self.absent)

    @property
    def workers(self) -> list[TaskId]:
        """The members that train: chief and workers."""
        return [task for task in self.members if task.trains]

    def uses(self, node: str) -> bool:
        """Return whether any task of the next gang is on `node`."""
        return any(t.node == node and t.id not in self.absent for t in self.plan.tasks)

    def leave_out(self, tasks: Iterable[TaskId], absence: Absence, now: float) -> None:
        """Leave `tasks` out of the next gang."""
        for task in tasks:
            self.absent[task] = absence
            if task.trains:
                self.changed_at = now

    # -- nodes that are back ----------------------------------------------------------------

    def left_out_on(self, node: str) -> list[TaskId]:
        """Return the tasks that `node` can take back by itself."""
        return [task for task in self._absent_by_node() if self.plan.task(task).node == node]

    def grows_at(self, node: str) -> float | None:
        """Return when tasks of `node` may be taken back at the earliest; None: not by itself."""
        returning = set(self._returning())
        if self.plan.supervision.grow == "off" or not returning & set(self.left_out_on(node)):
            return None
        return (self.changed_at or 0.0) + self.plan.supervision.grow_every_s

    def due_to_join(self, now: float) -> tuple[TaskId, ...]:
        """Return the tasks whose nodes are back, if the gang may grow by itself at this time."""
        since = now - (self.changed_at or 0.0)
        if self.plan.supervision.grow == "off" or since < self.plan.supervision.grow_every_s:
            return ()
        return self._returning()

    def take_back(self, tasks: Iterable[TaskId], now: float) -> None:
        """Make `tasks` members again."""
        for task in tasks:
            del self.absent[task]
            if task.trains:
                self.changed_at = now

    def _returning(self) -> tuple[TaskId, ...]:
        """Return the tasks whose nodes are back, the workers among them up to `requested`."""
        startable = [task for task in self._absent_by_node() if self._is_startable(task)]
        most = len(self.plan.tasks) if self.requested is None else self.requested
        workers = [task for task in startable if task.trains]
        excess = set(workers[max(0, most - len(self.workers)) :])
        return tuple(task for task in startable if task not in excess)

    def _absent_by_node(self) -> list[TaskId]:
        return self._absent_for(lambda absence: absence is Absence.NODE)

    def _absent_for(self, fits: Callable[[Absence], bool]) -> list[TaskId]:
        """Return the tasks that are left out for reasons that fit, in the plan's order."""
        planned = (task.id for task in self.plan.tasks)
        return [task for task in planned if task in self.absent and fits(self.absent[task])]

    def _is_startable(self, task: TaskId) -> bool:
        return self.plan.task(task).node not in self.lost

    # -- requests ---------------------------------------------------------------------------

    def check_plan(self, workers: int) -> None:
        """Raise UsageError if the plan does not allow this number of workers."""
        plan = self.plan
        if plan.joins or plan.by_hand:
            how = "by `tfcluster join`" if plan.joins else "by hand"
            raise UsageError(
                f"some of its tasks were started {how}, and tfcluster cannot restart them",
                fix="stop it everywhere, and start it with another number of workers",
            )
        if not can_resize(plan):
            kind = f"strategy {plan.strategy}" if plan.kind == "training" else f"kind {plan.kind}"
            raise UsageError(
                f"only training in step can be scaled; this job has {kind}",
                fix=_START_AGAIN,
            )
        least = plan.supervision.min_workers or 1
        most = sum(task.id.trains for task in plan.tasks)
        if not least <= workers <= most:
            limit = f" and supervision.min_workers {least}" if least > 1 else ""
            raise UsageError(
                f"it cannot have {count_of(workers)}: its spec has {count_of(most)}{limit}",
                fix=f"write a number from {least} to {most}; for more, {_START_AGAIN}",
            )

    def check_nodes(self, workers: int) -> None:
        """Raise UsageError if too few of the workers that are left out could start now."""
        ready = len(self.workers) + len(self._additional())
        if workers <= ready:
            return
        missing = self._absent_for(lambda _: True)
        reasons = [
            f"{task}: {self.absent[task].value if self._is_startable(task) else Absence.NODE.value}"
            for task in missing
            if task not in self._additional() and task.trains
        ]
        raise UsageError(
            f"it cannot have {count_of(workers)} now, only {ready}: {join_first(reasons)}",
            fix="wait for the nodes: tfcluster tries to reach those that are lost",
        )

    def _additional(self) -> list[TaskId]:
        """Return the workers that a request can take in, those with the lowest numbers first."""
        candidates = self._absent_for(lambda absence: absence is not Absence.FAILED)
        return [t for t in candidates if t.trains and self._is_startable(t)]

    def describe_request(self, workers: int) -> str:
        """Return a sentence about what `resize` will do."""
        leaving, joining = self._difference(workers)
        if not (leaving or joining):
            return f"it has {count_of(workers)} already"
        change = f"{join_first(leaving)} out" if leaving else f"{join_first(joining)} in"
        return f"restarting with {count_of(workers)} from the newest checkpoint, {change}"

    def _difference(self, workers: int) -> tuple[list[TaskId], list[TaskId]]:
        """Return the tasks to leave out and to take in for this number of workers."""
        present = self.workers
        ordered = sorted(present, key=lambda task: (task.job == "worker", task.index))
        return ordered[workers:], self._additional()[: max(0, workers - len(present))]

    def resize(self, workers: int, now: float) -> bool:
        """Make the next gang have this number of workers; return whether that changes it."""
        self.requested = workers
        leaving, joining = self._difference(workers)
        self.leave_out(leaving, Absence.REQUEST, now)
        self.take_back(joining, now)
        return bool(leaving or joining)
