"""The state of an attempt: its gang, stage, timers and orders, and how it or the run ends (pure).

`AttemptState` is the only place that changes the stage, stops tasks or sets the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from tfcluster.plan.plan import Plan
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.states import Status
from tfcluster.supervision import verdicts
from tfcluster.supervision.decisions import (
    Action,
    Again,
    DumpStacks,
    GatherCheckpoints,
    Next,
    Outcome,
    Record,
    StopTasks,
)
from tfcluster.supervision.failure import Failure
from tfcluster.supervision.gang import Gang, by_node, longest_grace_s, stops
from tfcluster.supervision.member import Member
from tfcluster.supervision.restart_policy import GiveUp


class Timers:
    """Each name stands for one moment at most; times are seconds of any one clock."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def set(self, name: str, at: float) -> None:
        """Move `name` to `at`, wherever it was before."""
        self._at[name] = at

    def set_once(self, name: str, at: float) -> None:
        """Leave `name` where it is if it is already set."""
        self._at.setdefault(name, at)

    def put(self, name: str, at: float | None) -> None:
        """Move `name` to `at`, or clear it."""
        if at is None:
            self.clear(name)
        else:
            self.set(name, at)

    def clear(self, *names: str) -> None:
        for name in names:
            self._at.pop(name, None)

    def clear_all(self, *, but: tuple[str, ...] = ()) -> None:
        self._at = {name: at for name, at in self._at.items() if name in but}

    def __contains__(self, name: str) -> bool:
        return name in self._at

    @property
    def next(self) -> float | None:
        """The earliest moment; None when nothing is set."""
        return min(self._at.values(), default=None)

    def take_due(self, now: float) -> list[str]:
        """The names whose moment has come, earliest first; they are no longer set."""
        due = sorted((at, name) for name, at in self._at.items() if at <= now)
        for _, name in due:
            del self._at[name]
        return [name for _, name in due]


AGENT_SLACK_S: Final = 15.0
"""An agent that has not reported the end of its tasks so long after the grace is itself lost."""


class Orders:
    """`most_s`: the spec's ``grace_s``, the longest any task gets between SIGTERM and SIGKILL."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._actions: list[Action] = []

    def take(self) -> list[Action]:
        """What has come together; it is gone here then."""
        actions, self._actions = self._actions, []
        return actions

    def add(self, action: Action) -> None:
        self._actions.append(action)

    def record(self, event: Event) -> None:
        self.add(Record(event))

    def stop(self, members: Sequence[Member], why: str, now: float, grace_s: float | None) -> None:
        """End `members`; without `grace_s` each gets as long as it can use."""
        for order in stops(members, grace_s, most_s=self._most_s):
            self.add(StopTasks(order.node, tuple(order.tasks), order.grace_s, why))
        for member in members:
            grace = member.stop_grace_s(self._most_s) if grace_s is None else grace_s
            answer_by = now + grace + AGENT_SLACK_S
            if member.is_stopping and member.answer_by is not None:
                answer_by = min(answer_by, member.answer_by)  # asking again gives no more time
            member.is_stopping, member.answer_by = True, answer_by
            self.record(ev.TaskStopping(task=str(member.id), attempt=member.attempt, why=why))

    def longest_grace_s(self, members: Sequence[Member], grace_s: float | None) -> float:
        """How long `stop` would give one of `members` at most, seconds."""
        return longest_grace_s(stops(members, grace_s, most_s=self._most_s))

    def dump_stacks(self, members: Sequence[Member]) -> None:
        """Of those that have our boot: to others SIGUSR1 would be death."""
        for node, tasks in by_node(members, lambda member: member.is_hooked).items():
            self.add(DumpStacks(node, tuple(tasks)))


FAILURE_GRACE_S: Final = 1.0
"""Survivors of a failure cannot save; they get this long after SIGTERM."""


class Stage(Enum):
    """How far the present attempt is."""

    STARTING = "its tasks are not told to start yet"
    TRAINING = "its tasks run"
    ENDING_GANG = "a task failed, the others are being ended"
    HOMING = "all have ended, what the chief saved last is brought home"
    ENDING_RUN = "everything is being ended, how is settled"


class AttemptState:
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
        now = self.gang.member_counts.standings()
        if self.stage is ending_gang and not any(one.is_core and one.lives for one in now):
            self.stage = Stage.HOMING
            self.orders.add(GatherCheckpoints())
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
        for member in self.gang.member_counts.members(
            lambda one: one.is_core and (one.is_due_again or one.is_to_start)
        ):
            member.is_due_again, member.is_called_off = False, True
            self.timers.clear(f"again {member.id}")

    def watch_agents(self) -> None:
        """Have every start and end that was ordered told of in time."""
        told = (standing.answer_by for standing in self.gang.member_counts.standings())
        due = [moment for moment in told if moment is not None]
        self.timers.put("agents", min(due, default=None))

    def fail(self, cause: Failure, why: GiveUp, now: float) -> None:
        """The run has failed for good, because of `cause`."""
        self.diagnose(why=why.why)
        self.ending = verdicts.outcome_of(cause, why, self._joined)
        self.stage = Stage.ENDING_RUN
        self.again = None
        self.timers.clear_all()
        self.stop(self.gang.running(), "another task failed", now)

    def fail_unbegun(self, cause: Failure) -> None:
        """As `fail`, but no task has run that could be diagnosed or stopped."""
        self.ending = verdicts.outcome_of(cause, GiveUp("the run had not begun"))
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
            self.outcome = verdicts.outcome_of(self.cause(), why, self._joined)

    def _failures(self) -> list[Failure]:
        return self.gang.failures or self.gang.lone_failures

    def cause(self) -> Failure:
        cause = verdicts.root_cause(self._failures())
        assert cause is not None
        return cause

    def diagnose(self, why: str | None = None) -> None:
        facts = verdicts.to_json(self._failures(), self._elsewhere, is_by_hand=self._is_by_hand)
        if facts is not None:
            if why is not None:
                facts["root_cause"]["not_restarted"] = why
            self.orders.record(ev.Diagnosis(**facts))
