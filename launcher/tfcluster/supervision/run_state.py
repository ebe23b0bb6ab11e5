"""All that changes in a run, and how an attempt or the run ends.

Only the run's `Supervisor` has a `RunState`; the functions that change it take it as their first
argument, and none keeps it. Two runs with the same history have equal states.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from tfcluster.node_loss import NodeLoss
from tfcluster.plans.plan import Plan, Supervision
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.states import Status
from tfcluster.supervision import verdicts
from tfcluster.supervision.alerts import Alert, Losses, find_lone_training, find_no_step
from tfcluster.supervision.decisions import (
    Action,
    GatherCheckpoints,
    Next,
    NextAttempt,
    Outcome,
    Record,
    StopTasks,
    TakeStacks,
)
from tfcluster.supervision.failure import Failure
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.member import Member
from tfcluster.supervision.membership import Membership
from tfcluster.supervision.restart_policy import Restarts
from tfcluster.supervision.silence import Silence
from tfcluster.supervision.stalls import Position

AGENT_SLACK_S: Final = 15.0
"""The time after the grace in which an agent must report the end of its tasks; then it is lost."""
FAILURE_GRACE_S: Final = 1.0
"""The time that survivors of a failure, which cannot save, get after SIGTERM."""
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
class RunState:
    """The state of a run, attempt after attempt; `outcome` is set when it is over."""

    plan: Plan
    jitter: Callable[[], float] = field(default=random.random, compare=False)
    """Returns a random number for `restart_policy.decide`."""
    run_id: str = "RUN"
    """The run's id, for the commands in its messages."""
    gang: Gang = field(init=False)
    restarts: Restarts = field(init=False)
    membership: Membership = field(init=False)
    stage: Stage = Stage.STARTING
    verdict: Next = Next.GO_ON
    timers: dict[str, float] = field(default_factory=dict)
    """Timer → when it is due; those of one task are called ``NAME TASK``."""
    orders: list[Action] = field(default_factory=list)
    """The orders that the coordinator has not taken yet."""
    alerts: dict[Alert, str] = field(default_factory=dict)
    """The alerts of this attempt but those about losses → their messages."""
    silence: Silence = field(default_factory=Silence)
    losses: Losses = field(default_factory=Losses)
    positions: dict[str, Position | None] | None = None
    """Task → where it is, None until its stacks have arrived; None if nobody has asked for them."""
    load: float = 0.0
    """The load per core of the busiest node, when the stacks were last taken."""
    has_probed_links: bool = False
    resumed_at: float | None = None
    """The time at which the run went on after it was suspended for `suspended_s`."""
    suspended_s: float = 0.0
    absent: tuple[str, ...] = ()
    """The tasks that are not started from here and cannot be reached, each with the reason."""
    gone: dict[str, NodeLoss] = field(default_factory=dict)
    """Nodes that are gone for good → why."""
    why_end: str = ""
    """The reason to stop the tasks once their stacks are written."""
    planned: str = ""
    """The reason why the gang is being restarted although nothing failed; empty if it is not."""
    grace_if_late_s: float | None = 0.0
    """The grace that was ordered last: that of a task whose start is heard of only afterwards."""
    gathers: bool = True
    """True if checkpoints are gathered while the tasks train."""
    can_come_back: bool = False
    """True if the run's job can go back into the queue of its scheduler, which gives it other
    nodes."""
    next_attempt: NextAttempt | None = None
    """The next attempt, once the gang is to be restarted."""
    outcome: Outcome | None = None
    ending: Outcome | None = None
    """The outcome of the run, where it is known before its tasks have ended."""

    def __post_init__(self) -> None:
        self.gang, self.restarts = Gang(self.plan), Restarts(self.plan)
        self.membership = Membership(self.plan)

    @property
    def policy(self) -> Supervision:
        return self.plan.supervision

    @property
    def forms_gang(self) -> bool:
        """False for `plain` tasks, which wait for no other."""
        return self.plan.kind != "plain"

    @property
    def is_training(self) -> bool:
        return self.stage is Stage.TRAINING

    @property
    def is_finishing(self) -> bool:
        """True after the chief's success, while other tasks still run."""
        return self.verdict is Next.FINISH

    @property
    def is_ending(self) -> bool:
        """True while the tasks of the gang are being stopped, or have been."""
        return self.stage in (Stage.ENDING_GANG, Stage.GATHERING, Stage.ENDING_RUN)

    @property
    def last_step(self) -> int | None:
        """The step of the last checkpoint, which may be reported but not yet gathered."""
        chief = self.gang.get(str(self.gang.chief))
        steps = (self.restarts.newest.step, chief.saved_step if chief else None)
        return max((step for step in steps if step is not None), default=None)

    def is_spare(self, node: str) -> bool:
        """Return whether no task of the present gang and of the next one is on `node`."""
        return not self.membership.uses(node) and all(member.node != node for member in self.gang)

    def must_stop(self, member: Member) -> bool:
        """Return whether `member` must be stopped if it starts now; an evaluator goes on."""
        return self.stage is Stage.ENDING_RUN or (self.is_ending and member.is_core)

    # -- orders and timers ------------------------------------------------------------------

    def record(self, event: Event) -> None:
        self.orders.append(Record(event))

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
        graces = [self.grace_s(member, grace_s) for member in members]
        tasks = defaultdict[tuple[str, float], list[str]](list)
        for member, grace in zip(members, graces, strict=True):
            tasks[member.node, grace].append(member.name)
        for (node, grace), names in tasks.items():
            self.orders.append(StopTasks(node, tuple(names), grace, why))
        for member, grace in zip(members, graces, strict=True):
            answer_by = now + grace + AGENT_SLACK_S
            if member.is_stopping and member.answer_by is not None:
                answer_by = min(answer_by, member.answer_by)  # asking again gives no more time
            self.gang.put(replace(member, is_stopping=True, answer_by=answer_by))
            self.record(ev.TaskStopping(task=member.name, attempt=member.attempt, why=why))

    def grace_s(self, member: Member, grace_s: float | None) -> float:
        """Return how long, in seconds, `stop` would wait for `member` after SIGTERM."""
        return member.stop_grace_s(self.policy.grace_s) if grace_s is None else grace_s

    def take_stacks(self) -> list[str]:
        """Order the stacks of hooked tasks that run; return these tasks."""
        hooked = [member for member in self.gang.running() if member.is_hooked]
        hooked.sort(key=lambda m: (m.step if m.step is not None else -1, m.heard_at or 0.0))
        tasks = defaultdict[str, list[str]](list)
        for member in hooked[:_MOST_STACKS]:
            tasks[member.node].append(member.name)
        self.orders += [TakeStacks(node, tuple(names)) for node, names in tasks.items()]
        return [name for names in tasks.values() for name in names]

    def set_timer(self, name: str, at: float | None) -> None:
        """Set timer `name` to `at`, or clear it if `at` is None."""
        if at is None:
            self.timers.pop(name, None)
        else:
            self.timers[name] = at

    def keep_timers(self, *names: str) -> None:
        """Clear all timers but `names` and those of evaluators that are stopped (SIGSTOP).

        An evaluator goes on when the gang is stopped. A task that waits for its restart starts with
        the next gang, so restart timers are cleared.
        """
        kept = {*names, *(f"frozen {m.id}" for m in self.gang if not m.is_core)}
        self.timers = {name: at for name, at in self.timers.items() if name in kept}

    def watch_agents(self) -> None:
        """Set the timer by which agents must have reported the ordered starts and stops."""
        due = [one.answer_by for one in self.gang.standings if one.answer_by is not None]
        self.set_timer("agents", min(due, default=None))

    # -- stages -----------------------------------------------------------------------------

    def enter_next_stage(self) -> None:
        """Enter the next stage if all tasks that the present one waits for have ended."""
        tasks = self.gang.standings
        if self.stage is Stage.ENDING_GANG:
            if not any(task.is_core and (task.is_alive or task.is_awaited) for task in tasks):
                self.stage = Stage.GATHERING
                self.orders.append(GatherCheckpoints())
        elif self.stage is Stage.ENDING_RUN:
            awaits = self.grace_if_late_s != 0.0  # else what starts late is killed with its agent
            if not any(task.is_alive or (task.is_awaited and awaits) for task in tasks):
                self.conclude(self.gang.judge())

    def end_gang(self, why: str, now: float, *, grace_s: float | None = FAILURE_GRACE_S) -> None:
        """Stop all tasks except evaluators, which can go on with the next attempt's checkpoints.

        `grace_s`: None gives each task as long as it can use to save.
        """
        if not self.is_ending:
            self.stage = Stage.ENDING_GANG
            self.keep_timers("run", "stacks")
            active = self.gang.active(lambda one: one.is_core)
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
        self._end(outcome)
        longest = max((self.grace_s(member, grace_s) for member in running), default=0.0)
        is_announced = self.gang.is_announced or None
        self.record(ev.RunStopping(why=why, grace_s=longest, is_announced=is_announced))
        self.stop_tasks(running, why, now, grace_s=grace_s)

    def _end(self, outcome: Outcome | None) -> None:
        self.ending, self.stage, self.next_attempt = outcome, Stage.ENDING_RUN, None
        self.timers.clear()

    def fail(self, cause: Failure, why: str, now: float) -> None:
        """End the run as failed because of `cause`, which is not restarted for `why`."""
        self.diagnose(why, cause)
        self._end(verdicts.outcome_of(cause, why, self.plan, self.run_id))
        self.stop_tasks(self.gang.running(), "another task failed", now)

    def fail_unbegun(self, loss: Failure, why: str) -> None:
        """End the run as failed before any task has run that could be diagnosed or stopped."""
        self._end(verdicts.outcome_of_start(loss, why))

    def conclude(self, verdict: Next) -> None:
        self.warn_of_lone_training(is_over=True)
        if self.ending is not None:
            self.outcome = self.ending
        elif verdict in (Next.SUCCEED, Next.FINISH):
            for failure in (*self.gang.failures, *self.gang.task_failures):
                self.record(ev.Warned(message=verdicts.warn_about_forgiven(failure)))
            self.alert(Alert.NO_STEP, find_no_step(self.gang.finished()))
            self.outcome = Outcome(Status.SUCCEEDED, 0)
        else:
            self.diagnose()
            why = "it is not restarted"
            self.outcome = verdicts.outcome_of(self.cause(), why, self.plan, self.run_id)

    # -- causes -----------------------------------------------------------------------------

    def workers(self) -> list[Member]:
        """Return the tasks that train one model together, if those of the plan are meant to."""
        is_meant = self.plan.kind == "training" and self.plan.strategy == "multi_worker_mirrored"
        return self.gang.members(lambda one: one.trains_together) if is_meant else []

    def warn_of_lone_training(self, *, is_over: bool = False) -> None:
        found = find_lone_training(self.workers(), is_over=is_over)
        self.alert(Alert.TRAINS_ALONE, found)

    def alert(self, kind: Alert, message: str | None) -> None:
        """Record an alert of this `kind`, once in an attempt; nothing without a message."""
        if message is not None and kind not in self.alerts:
            self.alerts[kind] = message
            self.record(ev.Alert(kind=str(kind), message=message, attempt=self.gang.number))

    def cause(self) -> Failure:
        cause = verdicts.root_cause(self._failures)
        assert cause is not None
        return cause

    def diagnose(self, not_restarted: str | None = None, cause: Failure | None = None) -> None:
        """Record the root cause, with the reason it is not restarted.

        It is `cause` if that is not among the failures of the attempt: a node was not reached
        afterwards.
        """
        core = [] if self.plan.kind == "plain" else self.gang.core()
        failures = self._failures
        event = verdicts.diagnosis(
            failures if cause is None or cause in failures else [cause],
            self.plan,
            core,
            not_restarted=not_restarted,
            state=self.alerts.get(Alert.STATES_DIFFER, ""),
        )
        if event is not None:
            self.record(event)

    @property
    def _failures(self) -> list[Failure]:
        return self.gang.failures or self.gang.task_failures
