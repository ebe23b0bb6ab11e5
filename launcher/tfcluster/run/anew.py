"""Decides, once a gang has ended, whether it starts anew, and with whom (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from tfcluster.plan.plan import Plan, TaskId
from tfcluster.run import shrinking
from tfcluster.run.actions import Again
from tfcluster.run.course import Course
from tfcluster.run.failure import Failure, Kind
from tfcluster.run.restart import GiveUp, Restart
from tfcluster.run.restarts import Restarts

NOT_BACK = GiveUp("its node does not come back", exhausted=True)


class Anew:
    """The gang as a whole; `gone` are the nodes that do not come back, and why."""

    def __init__(
        self, plan: Plan, course: Course, restarts: Restarts, gone: Mapping[str, str]
    ) -> None:
        self._plan, self._course, self._restarts, self._gone = plan, course, restarts, gone
        self.members: tuple[TaskId, ...] = tuple(task.id for task in plan.tasks)
        """Of the present gang, or of the next one where that is settled."""

    def decide(self, now: float) -> None:
        """All have ended, and what was saved is at home."""
        cause, gang = self._course.cause(), self._course.gang
        far = [self._restarts.progress_of(member) for member in gang.core()]
        step = max((one for one in far if one is not None), default=None)
        verdict = self._restarts.decide(None, cause, step=step)
        if isinstance(verdict, GiveUp):
            self._give_up(cause, verdict, now)
        elif (loss := self._loss()) is not None:
            self._give_up(loss, NOT_BACK, now)
        else:
            self._course.diagnose()
            self._start(cause, verdict)

    def decide_again(self, now: float) -> None:
        """A node is gone: those may have to do without it that were about to start."""
        if (loss := self._loss()) is not None:
            self._give_up(loss, NOT_BACK, now)
        else:
            self._start(self._course.cause(), self._restarts.without_counting())

    def _loss(self) -> Failure | None:
        """Of one that must start with the gang, and cannot, because its node is gone."""
        for member in self._course.gang:
            if member.id in self.members and not member.alone and member.node in self._gone:
                reason = self._gone[member.node]
                return loss_of(member.node, str(member.id), reason)
        return None

    def _give_up(self, cause: Failure, why: GiveUp, now: float) -> None:
        """Without the task that cannot be restarted, where the rest is enough; else it is over."""
        members = shrinking.without(self._plan, self.members, cause, why)
        if members is None:
            self._course.fail(cause, why, now)
        else:
            self._course.diagnose(why=why.why)
            self.members = members
            self._start(cause, self._restarts.without_counting())

    def _start(self, cause: Failure, verdict: Restart) -> None:
        on_gone = {task.id for task in self._plan.tasks if task.node in self._gone}
        self.members = members = tuple(task for task in self.members if task not in on_gone)
        number = self._course.gang.attempt + 1
        again = Again(number, members, verdict.delay_s, fresh_ports=verdict.fresh_ports)
        self._course.again = again
        fewer = members if len(members) < len(self._plan.tasks) else None
        self._course.orders.record(
            self._restarts.event(None, cause, verdict, attempt=number, members=fewer)
        )


def loss_of(node: str, task: str, reason: str) -> Failure:
    return Failure(task, None, None, node=node, observed=Kind.NODE_LOST, words=reason)
