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

    def decide(
        self, unit: TaskId | None, failure: Failure, *, advanced: bool, progressed: bool
    ) -> Restart | GiveUp:
        """See `restart.decide`; a restart is entered in the books."""
        verdict = restart.decide(
            failure,
            self._past[unit],
            self._policy,
            advanced=advanced,
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
        from_step: int | None,
        members: tuple[TaskId, ...] | None = None,
    ) -> ev.Restarting:
        """`members` where the gang has become smaller."""
        return ev.Restarting(
            task=str(unit) if unit else None,
            reason=f"{failure.task}: {failure.reason}",
            attempt=attempt,
            of=restart.attempts_in_all(verdict.past, self._policy),
            from_step=from_step,
            delay_s=round(verdict.delay_s, 3),
            members=tuple(map(str, members)) if members is not None else None,
        )
