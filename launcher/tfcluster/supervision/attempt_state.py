"""The state of an attempt: its gang, stage, timers and orders, and how it or the run ends (pure).

`AttemptState` is the only place that changes the stage or sets the outcome.
"""

from __future__ import annotations

from collections import defaultdict
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
    DumpStacks,
    GatherCheckpoints,
    Next,
    NextAttempt,
    Outcome,
    Record,
    StopTasks,
)
from tfcluster.supervision.failure import Failure
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.member import Member
from tfcluster.supervision.restart_policy import GiveUp


class Timers:
    """Named timers, at most one moment each; times are seconds of one clock."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def set(self, name: str, at: float) -> None:
        """Set `name` to `at`, replacing an earlier moment."""
        self._at[name] = at

    def set_once(self, name: str, at: float) -> None:
        """Set `name` to `at` unless it is already set."""
        self._at.setdefault(name, at)

    def put(self, name: str, at: float | None) -> None:
        """Set `name` to `at`, or clear it if `at` is None."""
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
        """The earliest moment, or None when no timer is set."""
        return min(self._at.values(), default=None)

    def take_due(self, now: float) -> list[str]:
        """Clear and return the timers that are due, earliest first."""
        due = sorted((at, name) for name, at in self._at.items() if at <= now)
        for _, name in due:
            del self._at[name]
        return [name for _, name in due]


AGENT_SLACK_S: Final = 15.0
"""The time after the grace in which an agent must report the end of its tasks; then it is lost."""
FAILURE_GRACE_S: Final = 1.0
"""The time that survivors of a failure, which cannot save, get after SIGTERM."""


class Orders:
    """The orders for the coordinator, collected until it takes them."""

    def __init__(self, most_s: float) -> None:
        """Take the spec's ``grace_s``, the longest any task gets between SIGTERM and SIGKILL."""
        self._most_s = most_s
        self._actions: list[Action] = []

    def take(self) -> list[Action]:
        """Remove and return the orders collected so far."""
        actions, self._actions = self._actions, []
        return actions

    def add(self, action: Action) -> None:
        self._actions.append(action)

    def record(self, event: Event) -> None:
        self.add(Record(event))

    def stop(
        self,
        members: Sequence[Member],
        why: str,
        now: float,
        *,
        grace_s: float | None = FAILURE_GRACE_S,
    ) -> None:
        """Order `members` to stop; if `grace_s` is None each gets as long as it can use."""
        tasks = defaultdict[tuple[str, float], list[str]](list)
        for member in members:
            tasks[member.node, self._grace_s(member, grace_s)].append(str(member.id))
        for (node, grace), names in tasks.items():
            self.add(StopTasks(node, tuple(names), grace, why))
        for member in members:
            answer_by = now + self._grace_s(member, grace_s) + AGENT_SLACK_S
            if member.is_stopping and member.answer_by is not None:
                answer_by = min(answer_by, member.answer_by)  # asking again gives no more time
            member.is_stopping, member.answer_by = True, answer_by
            self.record(ev.TaskStopping(task=str(member.id), attempt=member.attempt, why=why))

    def longest_grace_s(self, members: Sequence[Member], grace_s: float | None) -> float:
        """Return the longest time, in seconds, that `stop` would give any of `members`."""
        return max((self._grace_s(member, grace_s) for member in members), default=0.0)

    def _grace_s(self, member: Member, grace_s: float | None) -> float:
        return member.stop_grace_s(self._most_s) if grace_s is None else grace_s

    def dump_stacks(self, members: Sequence[Member]) -> None:
        """Order the stacks of the hooked `members`: SIGUSR1 would kill the others."""
        tasks = defaultdict[str, list[str]](list)
        for member in members:
            if member.is_hooked:
                tasks[member.node].append(str(member.id))
        for node, names in tasks.items():
            self.add(DumpStacks(node, tuple(names)))


class Stage(Enum):
    """The stages of an attempt."""

    STARTING = "its tasks are not ordered to start yet"
    TRAINING = "its tasks run"
    ENDING_GANG = "a task failed, the others are being stopped"
    GATHERING = "all have ended, the chief's last checkpoints are being gathered"
    ENDING_RUN = "everything is being stopped, the outcome is known"


class AttemptState:
    """The state of one attempt after another; `outcome` is set when the run is over."""

    def __init__(self, plan: Plan) -> None:
        self.gang, self._elsewhere = Gang(plan), plan.elsewhere
        self._joined = plan.elsewhere if plan.joins else ()
        self._is_by_hand = bool(plan.by_hand)
        self.orders = Orders(plan.supervision.grace_s)
        self.timers = Timers()
        self.stage = Stage.STARTING
        self.next_attempt: NextAttempt | None = None
        """The next attempt, once the gang is to be restarted."""
        self.outcome: Outcome | None = None
        self.ending: Outcome | None = None
        """The outcome of the run, where it is known before its tasks have ended."""

    @property
    def is_training(self) -> bool:
        return self.stage is Stage.TRAINING

    @property
    def is_ending(self) -> bool:
        """True while the tasks of the gang are being stopped, or have been."""
        return self.stage in (Stage.ENDING_GANG, Stage.GATHERING, Stage.ENDING_RUN)

    def must_stop(self, member: Member) -> bool:
        """Return whether `member` must be stopped if it starts now; an evaluator goes on."""
        is_core = member.id.job != "evaluator"
        return self.stage is Stage.ENDING_RUN or (self.is_ending and is_core)

    def begin(self) -> None:
        """Enter the training stage: the attempt's tasks are ordered to start."""
        self.stage, self.next_attempt, self.ending = Stage.TRAINING, None, None
        self.timers.clear_all(but=("run", *self._evaluators_timers()))

    def enter_next_stage(self, verdict: Next) -> None:
        """Enter the next stage if all tasks that the present one waits for have ended."""
        standings = self.gang.member_counts.standings()
        if self.stage is Stage.ENDING_GANG and not any(s.is_core and s.may_run for s in standings):
            self.stage = Stage.GATHERING
            self.orders.add(GatherCheckpoints())
        if self.stage is Stage.ENDING_RUN and not any(s.is_running for s in standings):
            self.conclude(verdict)

    def end_gang(self, why: str, now: float) -> None:
        """Stop all tasks except evaluators, which can go on with the next attempt's checkpoints."""
        if not self.is_ending:
            self.stage = Stage.ENDING_GANG
            self.timers.clear_all(but=("run", "stacks", *self._evaluators_timers()))
            running = [m for m in self.gang.core() if m.is_running and not m.is_stopping]
            self.orders.stop(running, why, now)

    def _evaluators_timers(self) -> tuple[str, ...]:
        """Return the timers of evaluators, which go on when the gang is stopped.

        Restart timers are not among them: a task that waits for its restart starts with the gang.
        """
        return tuple(f"frozen {m.id}" for m in self.gang if m.id.job == "evaluator")

    def cancel_restarts(self) -> None:
        """Cancel pending starts and restarts after the chief's success; they are no failures."""
        for member in self.gang.member_counts.members(
            lambda standing: standing.is_core and (standing.is_restart_due or standing.is_to_start)
        ):
            member.is_restart_due, member.is_cancelled = False, True
            self.timers.clear(f"restart {member.id}")

    def watch_agents(self) -> None:
        """Set the timer by which agents must have reported the ordered starts and stops."""
        standings = self.gang.member_counts.standings()
        due = (standing.answer_by for standing in standings if standing.answer_by is not None)
        self.timers.put("agents", min(due, default=None))

    def fail(self, cause: Failure, why: GiveUp, now: float) -> None:
        """End the run as failed for good because of `cause`."""
        self.diagnose(why=why.why)
        self.ending = verdicts.outcome_of(cause, why, self._joined)
        self.stage = Stage.ENDING_RUN
        self.next_attempt = None
        self.timers.clear_all()
        self.orders.stop(self.gang.running(), "another task failed", now)

    def fail_unbegun(self, cause: Failure) -> None:
        """End the run as failed before any task has run that could be diagnosed or stopped."""
        self.ending = verdicts.outcome_of(cause, GiveUp("the run had not begun"))
        self.stage = Stage.ENDING_RUN

    def end_run(
        self, why: str, outcome: Outcome, now: float, *, grace_s: float | None = FAILURE_GRACE_S
    ) -> None:
        """Stop all tasks early and end the run with `outcome`."""
        if self.outcome is not None:
            return
        if self.gang.failures and outcome.status is not Status.INTERRUPTED:
            self.diagnose()
        self.ending, self.stage, self.next_attempt = outcome, Stage.ENDING_RUN, None
        self.timers.clear_all()
        running = self.gang.running()
        longest = self.orders.longest_grace_s(running, grace_s)
        self.orders.record(ev.RunStopping(why=why, grace_s=longest))
        self.orders.stop(running, why, now, grace_s=grace_s)

    def end_rest(self, why: str, now: float) -> None:
        """Stop all running tasks after the chief's success; their exits decide the outcome."""
        self.stage = Stage.ENDING_RUN
        self.orders.stop(self.gang.running(), why, now)

    def conclude(self, verdict: Next) -> None:
        if self.ending is not None:
            self.outcome = self.ending
        elif verdict in (Next.SUCCEED, Next.FINISH):
            self.outcome = Outcome(Status.SUCCEEDED, 0)
        else:
            self.diagnose()
            why = GiveUp("it is not restarted")
            self.outcome = verdicts.outcome_of(self.cause(), why, self._joined)

    def _failures(self) -> list[Failure]:
        return self.gang.failures or self.gang.task_failures

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
