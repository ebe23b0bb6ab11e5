"""Restarts the gang or single tasks: counts each one's restarts, applies the policy, orders them.

`Restarts` keeps the counts, `GangRestarts` restarts the gang, `LoneRestarts` the tasks that
restart alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from tfcluster.checkpoints.completeness import Newest
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.supervision import restart_policy
from tfcluster.supervision.attempt_state import AttemptState, Stage
from tfcluster.supervision.decisions import Again, StartAlone
from tfcluster.supervision.failure import Failure, Kind
from tfcluster.supervision.member import Member
from tfcluster.supervision.restart_policy import GiveUp, Past, Restart


class Restarts:
    """A unit is the gang (None), or a task that restarts alone; each has a budget of its own."""

    def __init__(self, plan: Plan, jitter: Callable[[], float]) -> None:
        self._policy, self._jitter = plan.supervision, jitter
        self._joins, self._by_hand = plan.joins, bool(plan.by_hand)
        self._is_search = plan.kind == "tuner"
        self._past: dict[TaskId | None, Past] = defaultdict(Past)
        self._begun_from = Newest()
        self._advanced = False
        self._saves = 0
        self._saves_before: dict[TaskId | None, int] = {}
        """How many there had been when a unit was started again."""
        self._furthest: dict[TaskId | None, int] = {}
        """The highest step of any attempt of a unit."""
        self.newest = Newest()
        """Of the run folder: an attempt would start from it."""

    def begin(self) -> None:
        """An attempt of the gang begins, from what was gathered."""
        self._begun_from, self._advanced = self.newest, False

    def note_saved(self, step: int | None) -> None:
        """The chief of this attempt says that it saved: the step it began with is no news."""
        if step is None or step != self._begun_from.step:
            self._advanced = True
            self._saves += 1

    def note_gathered(self, step: int | None, name: str | None) -> None:
        """What this attempt saved is in the run folder."""
        self.note_saved(step)
        if step is not None or self.newest.step is None:
            self.newest = Newest(step, name)

    def note_home(self, step: int | None, name: str | None) -> None:
        """All that the attempt saved is in the run folder; the newest there has this step and
        name."""
        self.newest, before = Newest(step, name), self._begun_from
        self._advanced |= name not in (None, before.name) if step is None else step != before.step

    def decide(
        self, unit: TaskId | None, failure: Failure, *, step: int | None
    ) -> Restart | GiveUp:
        """See `restart.decide`; a restart is entered in the books.

        `step` is as far as the attempt came (`progress_of`): progress is what no other has.
        """
        if self._joins:
            return GiveUp("`join` starts nothing again: that is for whoever started it everywhere")
        if self._by_hand:
            return GiveUp("a task that was started by hand is not started again from here")
        furthest = self._furthest.get(unit, -1)
        progressed = step is not None and (step > furthest or self._is_search)
        self._furthest[unit] = max(furthest, step if step is not None else -1)
        verdict = restart_policy.decide(
            failure,
            self._past[unit],
            self._policy,
            advanced=self._has_advanced(unit, failure),
            progressed=progressed,
            jitter=self._jitter(),
        )
        if isinstance(verdict, Restart):
            self._past[unit], self._saves_before[unit] = verdict.past, self._saves
        return verdict

    def progress_of(self, member: Member) -> int | None:
        """How far `member` came in its attempt.

        In a search that is the trials it has ended: one that is cut short begins from the start,
        so its steps are lost.
        """
        if self._is_search:
            return member.trials_ended or None
        return member.evaluated_step if member.id.job == "evaluator" else member.step

    def _has_advanced(self, unit: TaskId | None, failure: Failure) -> bool:
        """What the chief has saved since is news for a task that restarts alone, too, but no
        progress of its own: without any it is not started without counting for ever."""
        if unit is None:
            return self._advanced
        return self._saves > self._saves_before.get(unit, 0) and not restart_policy.is_free(failure)

    def without_counting(self) -> Restart:
        """A smaller gang starts: that is no restart of the one before."""
        return Restart(self._policy.backoff_s, self._past[None])

    def event(
        self,
        unit: TaskId | None,
        failure: Failure,
        verdict: Restart,
        *,
        attempt: int,
        members: tuple[TaskId, ...] | None = None,
    ) -> ev.Restarting:
        """`members` where the gang has become smaller."""
        return ev.Restarting(
            task=str(unit) if unit else None,
            reason=f"{failure.task}: {failure.reason}",
            attempt=attempt,
            of=restart_policy.attempts_in_all(verdict.past, self._policy),
            from_step=self.newest.step,
            from_checkpoint=self.newest.name if self.newest.step is None else None,
            delay_s=round(verdict.delay_s, 3),
            members=tuple(map(str, members)) if members is not None else None,
        )


NOT_BACK = GiveUp("its node does not come back", exhausted=True)


class GangRestarts:
    """The gang as a whole; `gone` are the nodes that do not come back, and why."""

    def __init__(
        self, plan: Plan, attempt_state: AttemptState, restarts: Restarts, gone: Mapping[str, str]
    ) -> None:
        self._plan, self._attempt_state, self._restarts, self._gone = (
            plan,
            attempt_state,
            restarts,
            gone,
        )
        self.members: tuple[TaskId, ...] = tuple(task.id for task in plan.tasks)
        """Of the present gang, or of the next one where that is settled."""

    def decide(self, now: float) -> None:
        """All have ended, and what was saved is at home."""
        cause, gang = self._attempt_state.cause(), self._attempt_state.gang
        far = [self._restarts.progress_of(member) for member in gang.core()]
        step = max((one for one in far if one is not None), default=None)
        verdict = self._restarts.decide(None, cause, step=step)
        if isinstance(verdict, GiveUp):
            self._give_up(cause, verdict, now)
        elif (loss := self._loss()) is not None:
            self._give_up(loss, NOT_BACK, now)
        else:
            self._attempt_state.diagnose()
            self._start(cause, verdict)

    def decide_again(self, now: float) -> None:
        """A node is gone: those may have to do without it that were about to start."""
        if (loss := self._loss()) is not None:
            self._give_up(loss, NOT_BACK, now)
        else:
            self._start(self._attempt_state.cause(), self._restarts.without_counting())

    def _loss(self) -> Failure | None:
        """Of one that must start with the gang, and cannot, because its node is gone."""
        for member in self._attempt_state.gang:
            if member.id in self.members and not member.alone and member.node in self._gone:
                reason = self._gone[member.node]
                return loss_of(member.node, str(member.id), reason)
        return None

    def _give_up(self, cause: Failure, why: GiveUp, now: float) -> None:
        """Without the task that cannot be restarted, where the rest is enough; else it is over."""
        members = restart_policy.without(self._plan, self.members, cause, why)
        if members is None:
            self._attempt_state.fail(cause, why, now)
        else:
            self._attempt_state.diagnose(why=why.why)
            self.members = members
            self._start(cause, self._restarts.without_counting())

    def _start(self, cause: Failure, verdict: Restart) -> None:
        on_gone = {task.id for task in self._plan.tasks if task.node in self._gone}
        self.members = members = tuple(task for task in self.members if task not in on_gone)
        number = self._attempt_state.gang.attempt + 1
        again = Again(number, members, verdict.delay_s, fresh_ports=verdict.fresh_ports)
        self._attempt_state.again = again
        fewer = members if len(members) < len(self._plan.tasks) else None
        self._attempt_state.orders.record(
            self._restarts.event(None, cause, verdict, attempt=number, members=fewer)
        )


def loss_of(node: str, task: str, reason: str) -> Failure:
    return Failure(task, None, None, node=node, observed=Kind.NODE_LOST, words=reason)


class LoneRestarts:
    """Evaluators, tuners, workers of a parameter server, tasks of a `plain` job."""

    def __init__(self, attempt_state: AttemptState, restarts: Restarts) -> None:
        self._attempt_state, self._restarts = attempt_state, restarts
        self._gang, self._orders, self._timers = (
            attempt_state.gang,
            attempt_state.orders,
            attempt_state.timers,
        )
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
        if self._attempt_state.is_training:
            self._timers.set(f"again {unit}", now + verdict.delay_s)
        attempt = member.attempt + 1
        self._orders.record(self._restarts.event(unit, failure, verdict, attempt=attempt))

    def _is_wanted(self, member: Member, is_finishing: bool) -> bool:
        if not member.alone or not member.is_over:
            return False
        if member.id.job != "evaluator":
            return self._attempt_state.is_training and not is_finishing
        starts_with_gang = member.is_lost and not self._attempt_state.is_training
        return self._attempt_state.stage is not Stage.ENDING_RUN and not starts_with_gang

    def due(self, member: Member) -> None:
        """The pause is over."""
        if member.node in self.gone:
            member.is_due_again = False
        else:
            again = self._gang.renew(member)
            self._orders.add(StartAlone(again.id, again.attempt))
