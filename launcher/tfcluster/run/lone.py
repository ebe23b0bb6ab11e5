"""Starts again, each by itself, the tasks that can come back while the others go on (pure)."""

from __future__ import annotations

from tfcluster.run import events as ev
from tfcluster.run.actions import StartAlone
from tfcluster.run.course import Course, Stage
from tfcluster.run.member import Member
from tfcluster.run.restart import GiveUp, Restart
from tfcluster.run.restarts import Restarts


class Lone:
    """Evaluators, tuners, workers of a parameter server, tasks of a `plain` job."""

    def __init__(self, course: Course, restarts: Restarts) -> None:
        self._course, self._restarts = course, restarts
        self._gang, self._orders, self._timers = course.gang, course.orders, course.timers
        self.gone: dict[str, str] = {}
        """Nodes that do not come back, and why."""

    def revive(self, member: Member, now: float, *, is_finishing: bool) -> None:
        """Where `member` has failed and is still wanted, have it started again.

        An evaluator is wanted as long as anything goes on: one that fails while the gang is
        being ended starts with it again.
        """
        failure = member.failure
        if failure is None or member.is_due_again or not self._is_wanted(member, is_finishing):
            return
        unit = member.id
        if member.node in self.gone:
            verdict: GiveUp | Restart = GiveUp("its node does not come back")
        else:
            step = self._restarts.progress_of(member)
            verdict = self._restarts.decide(unit, failure, step=step)
        if isinstance(verdict, GiveUp):
            self._orders.record(ev.Warned(message=f"{unit} is not started again: {verdict.why}"))
            return
        member.is_due_again = True
        if self._course.is_training:
            self._timers.set(f"again {unit}", now + verdict.delay_s)
        attempt = member.attempt + 1
        self._orders.record(self._restarts.event(unit, failure, verdict, attempt=attempt))

    def _is_wanted(self, member: Member, is_finishing: bool) -> bool:
        if not member.alone or not member.is_over:
            return False
        if member.id.job != "evaluator":
            return self._course.is_training and not is_finishing
        starts_with_gang = member.is_lost and not self._course.is_training
        return self._course.stage is not Stage.ENDING_RUN and not starts_with_gang

    def due(self, member: Member) -> None:
        """The pause is over."""
        if member.node in self.gone:
            member.is_due_again = False
        else:
            again = self._gang.renew(member)
            self._orders.add(StartAlone(again.id, again.attempt))
