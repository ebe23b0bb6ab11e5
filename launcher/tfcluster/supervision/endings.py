"""Decides how an attempt, or the whole run, ends: who is stopped, for how long, and the outcome."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from tfcluster.plans.plan import Plan, Supervision, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.states import Status
from tfcluster.supervision import verdicts
from tfcluster.supervision.alerts import AlertKind, Alerts
from tfcluster.supervision.decisions import (
    Action,
    AskForStacks,
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

AGENT_SLACK_S: Final = 15.0
"""The time after the grace in which an agent must report the end of its tasks; then it is lost."""
FAILURE_GRACE_S: Final = 1.0
"""The time that survivors of a failure, which cannot save, get after SIGTERM."""
STACKS_S: Final = 1.0
"""The time that tasks get to write their stacks before they are stopped."""
STACKS_WAIT_S: Final = 6.0
"""The time for the tasks' stacks to arrive; an agent waits 2 s for a task."""
_MOST_STACKS: Final = 32
"""The tasks of a large gang whose stacks are taken: those that are furthest behind."""


class Stage(Enum):
    """The stages of an attempt."""

    STARTING = "its tasks are not ordered to start yet"
    TRAINING = "its tasks run"
    ENDING_GANG = "a task failed, the others are being stopped"
    GATHERING = "all have ended, the chief's last checkpoints are being gathered"
    ENDING_RUN = "everything is being stopped, the outcome is known"


@dataclass(slots=True)
class AttemptEnd:
    """The attempt on its way to its end, or the run's: its stage, its timers, the orders so far."""

    plan: Plan
    gang: Gang
    alerts: Alerts
    run_id: str
    """The run's id, for the commands in its messages."""
    stage: Stage = Stage.STARTING
    next_step: Next = Next.GO_ON
    timers: dict[tuple[str, str], float] = field(default_factory=dict)
    """The kind of a timer, and its task or an empty string → when it is due."""
    orders: list[Action] = field(default_factory=list)
    """The orders that the coordinator has not taken yet."""
    why_end: str = ""
    """The reason to stop the tasks once their stacks are written."""
    grace_if_late_s: float | None = 0.0
    """The grace that was ordered last: that of a task whose start is heard of only afterwards."""
    next_attempt: NextAttempt | None = None
    """The next attempt, once the gang is to be restarted."""
    outcome: Outcome | None = None
    ending: Outcome | None = None
    """The outcome of the run, where it is known before its tasks have ended."""

    @property
    def policy(self) -> Supervision:
        return self.plan.supervision

    @property
    def is_training(self) -> bool:
        return self.stage is Stage.TRAINING

    @property
    def is_finishing(self) -> bool:
        """True after the chief's success, while other tasks still run."""
        return self.next_step is Next.FINISH

    @property
    def is_ending(self) -> bool:
        """True while the tasks of the gang are being stopped, or have been."""
        return self.stage in (Stage.ENDING_GANG, Stage.GATHERING, Stage.ENDING_RUN)

    def stop_if_late(self, member: Member, now: float) -> None:
        """Stop a task that starts while the others are stopped; an evaluator goes on."""
        if self.stage is Stage.ENDING_RUN or (self.is_ending and member.is_core):
            self.stop_tasks([member], "the run is ending", now, grace_s=self.grace_if_late_s)

    # -- orders and timers ------------------------------------------------------------------

    def record(self, event: Event | None) -> None:
        """Have an event recorded, if there is one."""
        if event is not None:
            self.orders.append(Record(event))

    def record_all(self, events: Iterable[Event]) -> None:
        self.orders += map(Record, events)

    def warn(self, sentence: str) -> None:
        self.record(ev.Warned(message=sentence))

    def begin(self, number: int, members: tuple[TaskId, ...]) -> list[TaskId]:
        """Begin attempt `number`; return the tasks to start, without an evaluator that runs."""
        to_start = self.gang.enlist(members, number)
        self.next_step, self.stage = Next.GO_ON, Stage.TRAINING
        self.next_attempt, self.ending = None, None
        self.keep_timers("run")
        return to_start

    def stop_tasks(
        self,
        members: Sequence[Member],
        why: str,
        now: float,
        *,
        grace_s: float | None = FAILURE_GRACE_S,
    ) -> None:
        """Order `members` to stop; if `grace_s` is None each gets as long as it can use."""
        self.grace_if_late_s = grace_s
        graces = [self.grace_of(member, grace_s) for member in members]
        tasks = defaultdict[tuple[str, float], list[str]](list)
        for member, grace in zip(members, graces, strict=True):
            tasks[member.node, grace].append(member.name)
        for (node, grace), names in tasks.items():
            self.orders.append(StopTasks(node, tuple(names), grace))
        for member, grace in zip(members, graces, strict=True):
            answer_by = now + grace + AGENT_SLACK_S
            if member.is_stopping and member.answer_by is not None:
                answer_by = min(answer_by, member.answer_by)  # asking again gives no more time
            self.gang.put(replace(member, is_stopping=True, answer_by=answer_by))
            self.record(ev.TaskStopping(task=member.name, attempt=member.attempt, why=why))

    def grace_of(self, member: Member, grace_s: float | None) -> float:
        """Return how long, in seconds, `stop` would wait for `member` after SIGTERM."""
        return member.stop_grace_s(self.policy.grace_s) if grace_s is None else grace_s

    def take_stacks(self) -> list[str]:
        """Order the stacks of hooked tasks that run; return these tasks."""
        hooked = [member for member in self.gang.running() if member.is_hooked]
        hooked.sort(key=lambda member: member.advance)
        tasks = defaultdict[str, list[str]](list)
        for member in hooked[:_MOST_STACKS]:
            tasks[member.node].append(member.name)
        self.orders += [AskForStacks(node, tuple(names)) for node, names in tasks.items()]
        return [name for names in tasks.values() for name in names]

    def set_timer(self, kind: str, at: float | None, task: str = "", *, anew: bool = True) -> None:
        """Set a timer to `at`, or clear it if `at` is None; one that runs stays unless `anew`."""
        if at is None:
            self.timers.pop((kind, task), None)
        elif anew or (kind, task) not in self.timers:
            self.timers[kind, task] = at

    def has_timer(self, kind: str) -> bool:
        return (kind, "") in self.timers

    def keep_timers(self, *kinds: str) -> None:
        """Clear all timers but `kinds` and those of evaluators that are stopped (SIGSTOP).

        An evaluator goes on when the gang is stopped. A task that waits for its restart starts with
        the next gang, so restart timers are cleared.
        """
        kept = {(kind, "") for kind in kinds}
        kept |= {("frozen", member.name) for member in self.gang if not member.is_core}
        self.timers = {timer: at for timer, at in self.timers.items() if timer in kept}

    def watch_agents(self) -> None:
        """Set the timer by which agents must have reported the ordered starts and stops."""
        due = [member.due_by for member in self.gang.distinct if member.due_by is not None]
        self.set_timer("agents", min(due, default=None))

    # -- stages -----------------------------------------------------------------------------

    def enter_next_stage(self) -> None:
        """Enter the next stage if all tasks that the present one waits for have ended."""
        tasks = self.gang.distinct
        if self.stage is Stage.ENDING_GANG:
            if not any(task.is_core and (task.is_running or task.is_awaited) for task in tasks):
                self.stage = Stage.GATHERING
                self.orders.append(GatherCheckpoints())
        elif self.stage is Stage.ENDING_RUN:
            awaits = self.grace_if_late_s != 0.0  # else what starts late is killed with its agent
            if not any(task.is_running or (task.is_awaited and awaits) for task in tasks):
                self.set_outcome(self.gang.judge())

    def end_gang(self, why: str, now: float, *, grace_s: float | None = FAILURE_GRACE_S) -> None:
        """Stop all tasks except evaluators, which can go on with the next attempt's checkpoints.

        `grace_s`: None gives each task as long as it can use to save.
        """
        if not self.is_ending:
            self.stage = Stage.ENDING_GANG
            self.keep_timers("run", "stacks")
            active = self.gang.active(lambda member: member.is_core)
            self.stop_tasks(active, why, now, grace_s=grace_s)

    def end_run(
        self, why: str, outcome: Outcome, now: float, *, grace_s: float | None = FAILURE_GRACE_S
    ) -> None:
        """Stop all tasks early and end the run with `outcome`."""
        if self.outcome is not None:
            return
        if self.gang.failures and outcome.status is not Status.INTERRUPTED:
            self.diagnose()
        running = self.gang.running()
        self.end_once_stopped(outcome)
        longest = max((self.grace_of(member, grace_s) for member in running), default=0.0)
        is_announced = self.gang.is_announced or None
        self.record(ev.RunStopping(why=why, grace_s=longest, is_announced=is_announced))
        self.stop_tasks(running, why, now, grace_s=grace_s)

    def end_once_stopped(self, outcome: Outcome) -> None:
        """End the run with `outcome` once all tasks that run have ended."""
        self.ending, self.stage, self.next_attempt = outcome, Stage.ENDING_RUN, None
        self.timers.clear()

    def fail_run(self, cause: Failure, why: str, now: float) -> None:
        """End the run as failed because of `cause`, which is not restarted for `why`."""
        self.diagnose(why, cause)
        self.end_once_stopped(verdicts.outcome_of(cause, why, self.plan, self.run_id))
        self.stop_tasks(self.gang.running(), "another task failed", now)

    def set_outcome(self, next_step: Next) -> None:
        self.record_all(self.alerts.of_lone_training(is_over=True))
        if self.ending is not None:
            self.outcome = self.ending
        elif next_step in (Next.SUCCEED, Next.FINISH):
            for failure in (*self.gang.failures, *self.gang.task_failures):
                self.warn(f"the run succeeded although {failure.task} failed: {failure.reason}")
            self.record_all(self.alerts.of_no_step())
            self.outcome = Outcome(Status.SUCCEEDED, 0)
        else:
            self.diagnose()
            why = "it is not restarted"
            self.outcome = verdicts.outcome_of(self.cause(), why, self.plan, self.run_id)

    def act_on(self, blame: verdicts.Blame, now: float) -> None:
        """Blame the tasks of `blame`, have stacks written if it wants them, and stop tasks."""
        for member, description in blame.blamed:
            self.gang.blame(member, blame.kind, description)
        self.ending = blame.outcome or self.ending
        if blame.wants_stacks:
            self.take_stacks()
            self.set_timer("start", None)
            self.set_timer("stall", None)
            self.set_timer("stacks", now + STACKS_S)
            self.why_end = blame.why_end
        elif blame.outcome is not None:
            if not blame.blamed:
                self.diagnose()
            self.end_run(blame.why_end, blame.outcome, now)
        else:
            blamed = [self.gang[member.name] for member, _ in blame.blamed]
            frozen = [member for member in blamed if member.frozen_by is not None]
            self.stop_tasks(frozen, blame.why_end, now, grace_s=0.0)
            if not blamed or not all(member.restarts_alone for member in blamed):
                self.end_gang(blame.why_end, now)

    # -- causes -----------------------------------------------------------------------------

    def cause(self) -> Failure:
        cause = verdicts.root_cause(self._failures)
        assert cause is not None
        return cause

    def diagnose(self, not_restarted: str | None = None, cause: Failure | None = None) -> None:
        """Record the root cause, with the reason it is not restarted.

        It is `cause` if that is not among the failures of the attempt: a node was not reached
        afterwards.
        """
        core = self.gang.core() if self.plan.forms_gang else []
        failures = self._failures
        event = verdicts.diagnosis(
            failures if cause is None or cause in failures else [cause],
            self.plan,
            core,
            not_restarted=not_restarted,
            state=self.alerts.messages.get(AlertKind.STATES_DIFFER, ""),
        )
        self.record(event)

    @property
    def _failures(self) -> list[Failure]:
        return self.gang.failures or self.gang.task_failures
