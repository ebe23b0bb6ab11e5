"""Keeps account of a run's restarts: each unit's past, the verdict on its failure, its event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tfcluster.checkpoints.completeness import Newest
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.run import events as ev
from tfcluster.run import restart
from tfcluster.run.failure import Failure
from tfcluster.run.member import Member
from tfcluster.run.restart import GiveUp, Past, Restart


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
        verdict = restart.decide(
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
        return self._saves > self._saves_before.get(unit, 0) and not restart.is_free(failure)

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
            of=restart.attempts_in_all(verdict.past, self._policy),
            from_step=self.newest.step,
            from_checkpoint=self.newest.name if self.newest.step is None else None,
            delay_s=round(verdict.delay_s, 3),
            members=tuple(map(str, members)) if members is not None else None,
        )
