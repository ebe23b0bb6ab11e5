"""Restarts the gang or single tasks: counts the restarts, applies the policy, orders them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from tfcluster.checkpoints.completeness import Newest
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.supervision import restart_policy
from tfcluster.supervision.attempt_state import AttemptState, Stage
from tfcluster.supervision.decisions import NextAttempt, StartAlone
from tfcluster.supervision.failure import Failure, Kind
from tfcluster.supervision.member import Member
from tfcluster.supervision.restart_policy import GiveUp, Restart, RestartHistory


class Restarts:
    """The restarts of a run; each unit, the gang (None) or a task, has its own budget."""

    def __init__(self, plan: Plan, jitter: Callable[[], float]) -> None:
        self._policy, self._jitter = plan.supervision, jitter
        self._joins, self._by_hand = plan.joins, bool(plan.by_hand)
        self._is_search = plan.kind == "tuner"
        self._histories: dict[TaskId | None, RestartHistory] = defaultdict(RestartHistory)
        self._begun_from = Newest()
        self._advanced = False
        self._saves = 0
        self._saves_before: dict[TaskId | None, int] = {}
        """Unit → how many saves there had been when it was last restarted."""
        self._furthest: dict[TaskId | None, int] = {}
        """Unit → the highest step of any of its attempts."""
        self.newest = Newest()
        """The newest checkpoint in the run folder, from which the next attempt would start."""

    def begin(self) -> None:
        """Note that an attempt of the gang begins from the newest gathered checkpoint."""
        self._begun_from, self._advanced = self.newest, False

    def note_saved(self, step: int | None) -> None:
        """Note that the chief has saved; saving the step it began with is no progress."""
        if step is None or step != self._begun_from.step:
            self._advanced = True
            self._saves += 1

    def note_gathered(self, step: int | None, name: str | None) -> None:
        """Note that a checkpoint of this attempt is in the run folder."""
        self.note_saved(step)
        if step is not None or self.newest.step is None:
            self.newest = Newest(step, name)

    def note_all_gathered(self, newest: Newest) -> None:
        """Note that all checkpoints of the attempt are in the run folder, and the newest one."""
        self.newest, before = newest, self._begun_from
        if newest.step is None:
            self._advanced |= newest.name not in (None, before.name)
        else:
            self._advanced |= newest.step != before.step

    def decide(
        self, unit: TaskId | None, failure: Failure, *, step: int | None
    ) -> Restart | GiveUp:
        """Decide as `restart_policy.decide` does, and count a restart.

        `step` is how far the attempt came (`progress_of`); it is progress where no earlier attempt
        came as far.
        """
        if self._joins:
            return GiveUp("`join` restarts nothing: start it again on every machine")
        if self._by_hand:
            return GiveUp("tfcluster cannot restart the tasks that you started by hand")
        furthest = self._furthest.get(unit, -1)
        progressed = step is not None and (step > furthest or self._is_search)
        self._furthest[unit] = max(furthest, step if step is not None else -1)
        verdict = restart_policy.decide(
            failure,
            self._histories[unit],
            self._policy,
            advanced=self._has_advanced(unit, failure),
            progressed=progressed,
            jitter=self._jitter(),
        )
        if isinstance(verdict, Restart):
            self._histories[unit], self._saves_before[unit] = verdict.history, self._saves
        return verdict

    def progress_of(self, member: Member) -> int | None:
        """Return how far `member` came in its attempt: a step, or in a search a number of trials.

        An interrupted trial begins from its start, so its steps are lost.
        """
        if self._is_search:
            return member.trials_ended or None
        return member.evaluated_step if member.id.job == "evaluator" else member.step

    def _has_advanced(self, unit: TaskId | None, failure: Failure) -> bool:
        """Return whether a newer checkpoint was saved since the unit's last restart.

        A checkpoint of the chief counts for a task that restarts alone, too, except where the
        restart is free: otherwise the task could be restarted for ever without progress.
        """
        if unit is None:
            return self._advanced
        return self._saves > self._saves_before.get(unit, 0) and not restart_policy.is_free(failure)

    def uncounted_restart(self) -> Restart:
        """Return a restart that does not count: the start of a smaller gang."""
        return Restart(self._policy.backoff_s, self._histories[None])

    def event(
        self,
        unit: TaskId | None,
        failure: Failure,
        verdict: Restart,
        *,
        attempt: int,
        members: tuple[TaskId, ...] | None = None,
    ) -> ev.Restarting:
        """Return the event of a restart; `members` is set where the gang has become smaller."""
        return ev.Restarting(
            task=str(unit) if unit else None,
            reason=f"{failure.task}: {failure.reason}",
            attempt=attempt,
            of=restart_policy.attempts_in_all(verdict.history, self._policy),
            from_step=self.newest.step,
            from_checkpoint=self.newest.name if self.newest.step is None else None,
            delay_s=round(verdict.delay_s, 3),
            members=tuple(map(str, members)) if members is not None else None,
        )


NODE_GONE = GiveUp("its node is gone for good", exhausted=True)


class GangRestarts:
    """Restarts of the whole gang; `gone` maps the nodes that are gone for good to the reason."""

    def __init__(
        self, plan: Plan, attempt_state: AttemptState, restarts: Restarts, gone: Mapping[str, str]
    ) -> None:
        self._plan, self._attempt_state = plan, attempt_state
        self._restarts, self._gone = restarts, gone
        self.members: tuple[TaskId, ...] = tuple(task.id for task in plan.tasks)
        """The tasks of the present gang, or of the next one once it is decided."""

    def decide(self, now: float) -> None:
        """Restart the gang or give up, once all have ended and the checkpoints are gathered."""
        cause, gang = self._attempt_state.cause(), self._attempt_state.gang
        progress = [self._restarts.progress_of(member) for member in gang.core()]
        step = max((step for step in progress if step is not None), default=None)
        verdict = self._restarts.decide(None, cause, step=step)
        if isinstance(verdict, GiveUp):
            self._give_up(cause, verdict, now)
        elif (loss := self._loss()) is not None:
            self._give_up(loss, NODE_GONE, now)
        else:
            self._attempt_state.diagnose()
            self._start(cause, verdict)

    def decide_again(self, now: float) -> None:
        """Decide again after a node is gone: the next gang may have to do without it."""
        if (loss := self._loss()) is not None:
            self._give_up(loss, NODE_GONE, now)
        else:
            self._start(self._attempt_state.cause(), self._restarts.uncounted_restart())

    def _loss(self) -> Failure | None:
        """Return the failure of a task that must start with the gang but lost its node, or None."""
        for member in self._attempt_state.gang:
            if (
                member.id in self.members
                and not member.restarts_alone
                and member.node in self._gone
            ):
                return loss_of(member.node, str(member.id), self._gone[member.node])
        return None

    def _give_up(self, cause: Failure, why: GiveUp, now: float) -> None:
        """Start a smaller gang without the lost tasks if it is large enough, else fail."""
        members = restart_policy.without(self._plan, self.members, cause, why)
        if members is None:
            self._attempt_state.fail(cause, why, now)
        else:
            self._attempt_state.diagnose(why=why.why)
            self.members = members
            self._start(cause, self._restarts.uncounted_restart())

    def _start(self, cause: Failure, verdict: Restart) -> None:
        on_gone = {task.id for task in self._plan.tasks if task.node in self._gone}
        self.members = members = tuple(task for task in self.members if task not in on_gone)
        number = self._attempt_state.gang.attempt + 1
        self._attempt_state.next_attempt = NextAttempt(
            number, members, verdict.delay_s, verdict.fresh_ports
        )
        fewer = members if len(members) < len(self._plan.tasks) else None
        self._attempt_state.orders.record(
            self._restarts.event(None, cause, verdict, attempt=number, members=fewer)
        )


def loss_of(node: str, task: str, reason: str) -> Failure:
    return Failure(task, None, None, node=node, observed=Kind.NODE_LOST, description=reason)


class TaskRestarts:
    """Restarts of single tasks: evaluators, tuners, parameter-server workers, `plain` tasks."""

    def __init__(self, attempt_state: AttemptState, restarts: Restarts) -> None:
        self._attempt_state, self._restarts = attempt_state, restarts
        self._gang, self._timers = attempt_state.gang, attempt_state.timers
        self._orders = attempt_state.orders
        self.gone: dict[str, str] = {}
        """Nodes that are gone for good → why."""

    def revive(self, member: Member, now: float, *, is_finishing: bool) -> None:
        """Schedule a restart of `member` if it has failed and is still needed.

        An evaluator is needed as long as the run goes on: one that fails while the gang is being
        stopped starts again together with it.
        """
        failure = member.failure
        if failure is None or member.is_restart_due or not self._is_needed(member, is_finishing):
            return
        unit = member.id
        verdict: GiveUp | Restart = NODE_GONE
        if member.node not in self.gone:
            step = self._restarts.progress_of(member)
            verdict = self._restarts.decide(unit, failure, step=step)
        if isinstance(verdict, GiveUp):
            self._orders.record(ev.Warned(message=f"{unit} is not restarted: {verdict.why}"))
            return
        member.is_restart_due = True
        if self._attempt_state.is_training:
            self._timers.set(f"restart {unit}", now + verdict.delay_s)
        event = self._restarts.event(unit, failure, verdict, attempt=member.attempt + 1)
        self._orders.record(event)

    def _is_needed(self, member: Member, is_finishing: bool) -> bool:
        if not member.restarts_alone or not member.is_over:
            return False
        if member.id.job != "evaluator":
            return self._attempt_state.is_training and not is_finishing
        starts_with_gang = member.is_lost and not self._attempt_state.is_training
        return self._attempt_state.stage is not Stage.ENDING_RUN and not starts_with_gang

    def due(self, member: Member) -> None:
        """Restart `member` now that its delay is over."""
        if member.node in self.gone:
            member.is_restart_due = False
        else:
            renewed = self._gang.renew(member)
            self._orders.add(StartAlone(renewed.id, renewed.attempt))
