"""How far a run is, and the only ways in which it ends: an attempt, or the whole (pure)."""

from __future__ import annotations

from enum import Enum
from typing import Final

from tfcluster.plan.plan import Plan
from tfcluster.run import diagnosis, findings
from tfcluster.run import events as ev
from tfcluster.run.actions import Again, BringHome
from tfcluster.run.ending import Next, Outcome
from tfcluster.run.failure import Failure
from tfcluster.run.gang import Gang
from tfcluster.run.member import Member
from tfcluster.run.orders import Orders
from tfcluster.run.restart import GiveUp
from tfcluster.run.status import Status
from tfcluster.run.timers import Timers

FAILURE_GRACE_S: Final = 1.0
"""Survivors of a failure cannot save; they get this long after SIGTERM."""


class Stage(Enum):
    """How far the present attempt is."""

    STARTING = "its tasks are not told to start yet"
    TRAINING = "its tasks run"
    ENDING_GANG = "a task failed, the others are being ended"
    HOMING = "all have ended, what the chief saved last is brought home"
    ENDING_RUN = "everything is being ended, how is settled"


class Course:
    """The gang and the stage of its attempt; `outcome` is set when the run is over."""

    def __init__(self, plan: Plan) -> None:
        self.gang, self._elsewhere = Gang(plan), plan.elsewhere
        self._joined = plan.elsewhere if plan.joins else ()
        self._is_by_hand = bool(plan.by_hand)
        self.orders = Orders(plan.supervision.grace_s)
        self.timers = Timers()
        self.stage = Stage.STARTING
        self.again: Again | None = None
        """Set when the gang is to be started again."""
        self.outcome: Outcome | None = None
        self.ending: Outcome | None = None
        """How the run will have ended, where that is settled before its tasks have."""

    @property
    def is_training(self) -> bool:
        return self.stage is Stage.TRAINING

    @property
    def is_ending(self) -> bool:
        """Whether tasks are being ended."""
        return self.stage in (Stage.ENDING_GANG, Stage.HOMING, Stage.ENDING_RUN)

    def is_ending_it(self, member: Member) -> bool:
        """Whether `member`, if it starts now, is to be ended too; an evaluator follows on."""
        is_core = member.id.job != "evaluator"
        return self.stage is Stage.ENDING_RUN or (self.is_ending and is_core)

    def begin(self) -> None:
        """An attempt's tasks are told to start."""
        self.stage, self.again, self.ending = Stage.TRAINING, None, None
        self.timers.clear_all(but=("run", *self._evaluators_timers()))

    def go_on(self, verdict: Next) -> None:
        """Enter the next stage where all that the present one waits for has ended."""
        ending_gang, ending_run = Stage.ENDING_GANG, Stage.ENDING_RUN
        now = self.gang.tally.standings()
        if self.stage is ending_gang and not any(one.is_core and one.lives for one in now):
            self.stage = Stage.HOMING
            self.orders.add(BringHome())
        if self.stage is ending_run and not any(one.is_running for one in now):
            self.conclude(verdict)

    def end_gang(self, why: str, now: float) -> None:
        """End all but the evaluators, which follow the checkpoints whoever makes them."""
        if not self.is_ending:
            self.stage = Stage.ENDING_GANG
            self.timers.clear_all(but=("run", "stacks", *self._evaluators_timers()))
            running = [m for m in self.gang.core() if m.is_running and not m.is_stopping]
            self.stop(running, why, now)

    def _evaluators_timers(self) -> tuple[str, ...]:
        """Of those that go on whatever becomes of the gang; who is due again starts with it."""
        return tuple(f"frozen {m.id}" for m in self.gang if m.id.job == "evaluator")

    def call_off_restarts(self) -> None:
        """The work is done: who was about to start again is not needed, and no failure."""
        for member in self.gang.tally.members(
            lambda one: one.is_core and (one.is_due_again or one.is_to_start)
        ):
            member.is_due_again, member.is_called_off = False, True
            self.timers.clear(f"again {member.id}")

    def watch_agents(self) -> None:
        """Have every start and end that was ordered told of in time."""
        told = (standing.answer_by for standing in self.gang.tally.standings())
        due = [moment for moment in told if moment is not None]
        self.timers.put("agents", min(due, default=None))

    def fail(self, cause: Failure, why: GiveUp, now: float) -> None:
        """The run has failed for good, because of `cause`."""
        self.diagnose(why=why.why)
        self.ending = findings.outcome_of(cause, why, self._joined)
        self.stage = Stage.ENDING_RUN
        self.again = None
        self.timers.clear_all()
        self.stop(self.gang.running(), "another task failed", now)

    def fail_unbegun(self, cause: Failure) -> None:
        """As `fail`, but no task has run that could be diagnosed or stopped."""
        self.ending = findings.outcome_of(cause, GiveUp("the run had not begun"))
        self.stage = Stage.ENDING_RUN

    def end_run(
        self, why: str, outcome: Outcome, now: float, *, grace_s: float | None = FAILURE_GRACE_S
    ) -> None:
        """End everything before its time; `outcome` is how the run will have ended."""
        if self.outcome is not None:
            return
        if self.gang.failures and outcome.status is not Status.INTERRUPTED:
            self.diagnose()
        self.ending, self.stage, self.again = outcome, Stage.ENDING_RUN, None
        self.timers.clear_all()
        running = self.gang.running()
        longest = self.orders.longest_grace_s(running, grace_s)
        self.orders.record(ev.RunStopping(why=why, grace_s=longest))
        self.stop(running, why, now, grace_s=grace_s)

    def end_rest(self, why: str, now: float) -> None:
        """The chief has succeeded: end what still runs; the exits decide how the run ends."""
        self.stage = Stage.ENDING_RUN
        self.stop(self.gang.running(), why, now)

    def stop(
        self,
        members: list[Member],
        why: str,
        now: float,
        *,
        grace_s: float | None = FAILURE_GRACE_S,
    ) -> None:
        """Without `grace_s` each gets as long as it can use."""
        self.orders.stop(members, why, now, grace_s)

    def conclude(self, verdict: Next) -> None:
        if self.ending is not None:
            self.outcome = self.ending
        elif verdict in (Next.SUCCEED, Next.FINISH):
            self.outcome = Outcome(Status.SUCCEEDED, 0)
        else:
            self.diagnose()
            why = GiveUp("it is not started again")
            self.outcome = findings.outcome_of(self.cause(), why, self._joined)

    def _failures(self) -> list[Failure]:
        return self.gang.failures or self.gang.lone_failures

    def cause(self) -> Failure:
        cause = diagnosis.root_cause(self._failures())
        assert cause is not None
        return cause

    def diagnose(self, why: str | None = None) -> None:
        facts = diagnosis.to_json(self._failures(), self._elsewhere, is_by_hand=self._is_by_hand)
        if facts is not None:
            if why is not None:
                facts["root_cause"]["not_restarted"] = why
            self.orders.record(ev.Diagnosis(**facts))
