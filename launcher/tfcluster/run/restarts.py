"""Keeps account of a run's restarts: each unit's past, the verdict on its failure, its event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tfcluster.plan.plan import Supervision, TaskId
from tfcluster.run import events as ev
from tfcluster.run import restart
from tfcluster.run.failure import Failure
from tfcluster.run.restart import GiveUp, Past, Restart


class Restarts:
    """A unit is the gang (None), or a task that restarts alone; each has a budget of its own."""

    def __init__(self, policy: Supervision, jitter: Callable[[], float]) -> None:
        self._policy, self._jitter = policy, jitter
        self._past: dict[TaskId | None, Past] = defaultdict(Past)
        self._from_step: int | None = None
        self._advanced = False
        self.newest_step: int | None = None
        """Of what is at home: an attempt would start from it."""

    def begin(self) -> None:
        """An attempt of the gang begins, from what is at home."""
        self._from_step, self._advanced = self.newest_step, False

    def note_saved(self) -> None:
        """The chief of this attempt says that it saved."""
        self._advanced = True

    def note_gathered(self, step: int | None) -> None:
        """What this attempt saved is at home."""
        self._advanced = True
        self.newest_step = step if step is not None else self.newest_step

    def note_home(self, step: int | None) -> None:
        """All is at home that the attempt saved; `step` is the newest there."""
        self._advanced |= step is not None and step != self._from_step
        self.newest_step = step

    def decide(
        self, unit: TaskId | None, failure: Failure, *, progressed: bool
    ) -> Restart | GiveUp:
        """See `restart.decide`; a restart is entered in the books."""
        verdict = restart.decide(
            failure,
            self._past[unit],
            self._policy,
            advanced=self._advanced,
            progressed=progressed,
            jitter=self._jitter(),
        )
        if isinstance(verdict, Restart):
            self._past[unit] = verdict.past
        return verdict

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
            from_step=self.newest_step,
            delay_s=round(verdict.delay_s, 3),
            members=tuple(map(str, members)) if members is not None else None,
        )
