"""Decides what becomes of a run: inputs with their time go in, orders and events come out.

No clock, no disk, no process: the coordinator carries out what `take` returns, and tests replay
histories. The rules: only the whole gang can be restarted under MultiWorkerMirroredStrategy; the
root cause is the first failure that is no consequence; whoever lives on while all others fail
because of somebody is that somebody (design.md, "After a failure").
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from tfcluster.plan.plan import Plan, TaskId
from tfcluster.run import diagnosis, findings, restart, shrinking
from tfcluster.run import events as ev
from tfcluster.run.actions import (
    Action,
    Again,
    BringHome,
    DropNode,
    DumpStacks,
    Record,
    StartAlone,
    StopTasks,
)
from tfcluster.run.ending import Next, Outcome, Stop, judge
from tfcluster.run.events import Event, Status
from tfcluster.run.failure import Failure, Kind
from tfcluster.run.gang import Gang, Member, by_node, longest_grace_s, stops
from tfcluster.run.patience import Patience
from tfcluster.run.restart import GiveUp, Past, Restart
from tfcluster.run.timers import Timers

CAUSE_WAIT_S = 12.0
"""How long a collateral failure waits for its cause: TensorFlow's heartbeat time-out is 10 s."""
FROZEN_S = 10.0
"""How long a task may be stopped (SIGSTOP): as long as its peers bear it."""
FAILURE_GRACE_S = 1.0
"""Survivors of a failure cannot save; they get this long after SIGTERM."""
AGENT_SLACK_S = 15.0
"""An agent that has not reported the end of its tasks so long after the grace is itself lost."""
STACKS_S = 1.0
"""How long tasks get to write their stacks before they are ended."""


class Stage(Enum):
    """How far the present attempt is."""

    STARTING = "its tasks are not told to start yet"
    TRAINING = "its tasks run"
    ENDING_GANG = "a task failed, the others are being ended"
    HOMING = "all have ended, what the chief saved last is brought home"
    ENDING_RUN = "everything is being ended, how is settled"


class Supervisor:
    """One run's. After any input, `take` the actions, and look at `again` and `outcome`."""

    def __init__(
        self,
        plan: Plan,
        *,
        last_output: Callable[[], float] = lambda: 0.0,
        last_line: Callable[[Member], str] = lambda member: "",
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`last_output`: when a task last wrote a line, on the clock of the inputs."""
        self.plan, self.policy = plan, plan.supervision
        self.gang = Gang(plan)
        self.again: Again | None = None
        """Set when the gang is to be started again; `begin` clears it."""
        self.outcome: Outcome | None = None
        """Set when the run is over."""
        self._last_output, self._last_line, self._jitter = last_output, last_line, jitter
        self._members: tuple[TaskId, ...] = tuple(task.id for task in plan.tasks)
        self.chief = plan.chief
        """Whose exit and whose checkpoints count; another one in a smaller gang."""
        self._forms_gang = plan.kind != "plain"
        self._actions: list[Action] = []
        self._timers = Timers()
        self._patience = Patience(self.policy)
        self._past: dict[TaskId | None, Past] = defaultdict(Past)
        self._stage = Stage.STARTING
        self._ending: Outcome | None = None
        self._verdict = Next.GO_ON
        self._advanced = False
        self._newest_step: int | None = None

    @property
    def wake_at(self) -> float | None:
        """When `tick` must be called next."""
        return self._timers.next

    @property
    def is_ending(self) -> bool:
        """Whether tasks are being ended: one that starts now is to be ended too."""
        return self._stage in (Stage.ENDING_GANG, Stage.HOMING, Stage.ENDING_RUN)

    @property
    def was_asked_to_stop(self) -> bool:
        return self._ending is not None and self._ending.status is Status.INTERRUPTED

    def take(self) -> list[Action]:
        """What is to be done now, in order."""
        actions, self._actions = self._actions, []
        return actions

    # -- inputs -----------------------------------------------------------------------------

    def begin_run(self, now: float) -> None:
        """The run's clock starts."""
        if self.policy.run_deadline_s is not None:
            self._timers.set("run", now + self.policy.run_deadline_s)

    def begin(self, number: int, members: tuple[TaskId, ...]) -> list[TaskId]:
        """Attempt `number` begins; returns the tasks to start: not an evaluator that runs on."""
        to_start = self.gang.enlist(members, number)
        self._members, self.chief = members, shrinking.chief_of(members)
        self._patience = Patience(self.policy)
        self._timers.clear_all(but=("run",))
        self._stage, self._verdict, self._advanced, self.again = (
            Stage.TRAINING,
            Next.GO_ON,
            False,
            None,
        )
        return to_start

    def started(self, task: str, attempt: int, now: float) -> None:
        if (member := self.gang.get(task, attempt)) is not None:
            member.started_at = now
            if self.is_ending:  # its order was on the way when the end came
                self._stop([member], "the run is ending", 0.0, now)

    def start_failed(self, task: str, attempt: int, error: str, now: float) -> None:
        """The program of `task` could not be executed."""
        if (member := self.gang.get(task, attempt)) is not None and not member.is_over:
            member.is_lost = True
            self.gang.blame(member, Kind.START_FAILED, error)
            self._end_gang("a task cannot start", now)
            self._react(now)

    def exited(
        self,
        event: ev.TaskExited,
        now: float,
        *,
        error: Mapping[str, Any] | None = None,
        last_lines: str = "",
    ) -> None:
        """`error` is the exception that the task reported, if it did."""
        if (member := self.gang.get(event.task, event.attempt)) is None:
            return
        self.gang.note_exit(member, event, error=error, last_lines=last_lines)
        self._timers.clear(f"frozen {member.id}")
        if member.alone and member.failure is not None:
            self._revive(member, member.failure, now)
        self._react(now)

    def reported(self, task: str, attempt: int, report: Mapping[str, Any], now: float) -> None:
        """What a task says of itself."""
        if (member := self.gang.get(task, attempt)) is not None:
            self.gang.note_report(member, report, now)
            self._advanced |= member.saved and member.id == self.chief
            if not member.alone:
                self._patience.note(report, now)
            self._react(now)

    def froze(self, task: str, attempt: int, signal: int, now: float) -> None:
        """A signal has stopped the task's process."""
        member = self.gang.get(task, attempt)
        if member is not None and member.is_running and self._forms_gang:
            member.frozen_by = signal
            self._timers.set(f"frozen {member.id}", now + FROZEN_S)
            self._react(now)

    def thawed(self, task: str, attempt: int) -> None:
        if (member := self.gang.get(task, attempt)) is not None:
            member.frozen_by = None
            self._timers.clear(f"frozen {member.id}")

    def node_lost(self, node: str, reason: str, now: float) -> None:
        """No word of the tasks of `node` will come; they are ended by its guard."""
        if self.outcome is not None:
            return
        self._record(ev.NodeLost(node=node, reason=reason))
        lost = [member for member in self.gang if member.node == node and not member.is_over]
        self.gang.lose_node(node, reason)
        if self._stage is Stage.STARTING:
            cause = Failure(node, None, None, node=node, observed=Kind.NODE_LOST, words=reason)
            self._ending = findings.outcome_of(cause, GiveUp("the run had not begun"))
            self._stage = Stage.ENDING_RUN
        elif any(member.id.job != "evaluator" for member in lost) and self._forms_gang:
            self._end_gang("a node is lost", now)
        else:
            for member in lost:
                if member.failure is not None:
                    self._revive(member, member.failure, now)
        self._react(now)

    def gathered(self, step: int | None, now: float) -> None:
        """A checkpoint that the present attempt saved is at home."""
        self._advanced = True
        self._newest_step = step if step is not None else self._newest_step
        self._react(now)

    def stop(self, stop: Stop, now: float) -> None:
        """The user wants the run to end; a second wish kills at once."""
        again = self.was_asked_to_stop
        why = f"{stop.why} again, tasks are killed" if again else stop.why
        outcome = self._ending if again else Outcome(Status.INTERRUPTED, stop.exit_code)
        assert outcome is not None
        self._end_run(why, outcome, 0.0 if stop.now or again else None, now)

    def home(self, step: int | None, now: float) -> None:
        """What the chief saved is at home, its newest step is `step`: decide."""
        if self._stage is Stage.HOMING:
            self._newest_step = step
            self._decide(now)
            self._react(now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        for name in self._timers.take_due(now):
            kind, _, task = name.partition(" ")
            _DUE[kind](self, now, self.gang.get(task))
        self._react(now)

    # -- what follows -----------------------------------------------------------------------

    def _react(self, now: float) -> None:
        if self.outcome is not None or self.again is not None:
            return
        if self._stage is Stage.ENDING_RUN:
            if not self.gang.running():
                self._conclude()
        elif self._stage is Stage.ENDING_GANG:
            if not any(member.is_running for member in self.gang.core()):
                self._stage = Stage.HOMING
                self._actions.append(BringHome())
        elif self._stage is Stage.TRAINING:
            self._follow(judge(self.gang.ends(), chief=self.chief, gang=self._forms_gang), now)
            self._set_deadlines()
            if self.is_ending:
                self._react(now)

    def _follow(self, verdict: Next, now: float) -> None:
        if verdict is not self._verdict:  # what was waited for so far is no matter any more
            self._verdict = verdict
            self._timers.clear("cause", "late")
        match verdict:
            case Next.FAIL:
                self._end_gang("another task failed", now)
            case Next.AWAIT_CAUSE if frozen := [m for m in self.gang.running() if m.frozen_by]:
                self._due_frozen(now, frozen[0])
            case Next.AWAIT_CAUSE:
                self._timers.set_once("cause", now + CAUSE_WAIT_S)
            case Next.DESERTED:
                self._timers.set_once("late", now + self.policy.finish_grace_s)
            case Next.FINISH:
                self._call_off_restarts()
                self._stop(self.gang.serving(), "the chief has finished", FAILURE_GRACE_S, now)
                self._stop(self._satisfied(), "it has evaluated the last", FAILURE_GRACE_S, now)
                self._timers.set_once("late", now + self.policy.finish_grace_s)
            case Next.FAILED if self.gang.failures and self._forms_gang:
                self._end_gang("all have ended", now)
            case Next.SUCCEED | Next.FAILED:
                self._conclude()

    def _satisfied(self) -> list[Member]:
        """Evaluators that have nothing left to do; one that never ends would wait for more."""
        newest = self._newest_step
        return [
            member
            for member in self.gang.running()
            if member.id.job == "evaluator"
            and not member.is_stopping
            and newest is not None
            and (member.evaluated_step or -1) >= newest
        ]

    def _set_deadlines(self) -> None:
        if self._stage is not Stage.TRAINING or not self._forms_gang or "stacks" in self._timers:
            return
        for name, due in (
            ("start", self._patience.start_due(self.gang.core())),
            ("stall", self._patience.stall_due),
        ):
            if due is None:
                self._timers.clear(name)
            else:
                self._timers.set(name, due)

    def _decide(self, now: float) -> None:
        cause = self._cause()
        verdict = restart.decide(
            cause,
            self._past[None],
            self.policy,
            advanced=self._advanced,
            progressed=any(member.has_trained for member in self.gang.core()),
            jitter=self._jitter(),
        )
        members, smaller = self._members, None
        if isinstance(verdict, GiveUp):
            smaller = shrinking.without(self.plan, members, cause, verdict)
            if smaller is None:
                self._fail(cause, verdict, now)
                return
            members = smaller
            verdict = Restart(self.policy.backoff_s, self._past[None])
        self._diagnose(self.gang.failures)
        self._past[None] = verdict.past
        self._restart(members, cause, verdict, is_smaller=smaller is not None)

    def _restart(
        self, members: tuple[TaskId, ...], cause: Failure, verdict: Restart, *, is_smaller: bool
    ) -> None:
        self.again = Again(
            number=self.gang.attempt + 1,
            members=members,
            fresh_ports=verdict.fresh_ports,
            delay_s=verdict.delay_s,
        )
        self._record(
            ev.Restarting(
                reason=f"{cause.task}: {cause.reason}",
                attempt=self.again.number,
                of=restart.attempts_in_all(verdict.past, self.policy),
                from_step=self._newest_step,
                delay_s=round(verdict.delay_s, 3),
                members=tuple(map(str, members)) if is_smaller else None,
            )
        )

    def _revive(self, member: Member, failure: Failure, now: float) -> None:
        """A task that restarts alone has failed."""
        if self._stage is not Stage.TRAINING or self._verdict is Next.FINISH:
            return
        verdict = restart.decide(
            failure,
            self._past[member.id],
            self.policy,
            advanced=self._advanced,
            progressed=member.has_trained,
            jitter=self._jitter(),
        )
        if isinstance(verdict, GiveUp):
            self._record(ev.Warned(message=f"{member.id} is not started again: {verdict.why}"))
            return
        self._past[member.id] = verdict.past
        member.is_due_again = True
        self._timers.set(f"again {member.id}", now + verdict.delay_s)
        self._record(
            ev.Restarting(
                task=str(member.id),
                reason=f"{member.id}: {failure.reason}",
                attempt=member.attempt + 1,
                of=restart.attempts_in_all(verdict.past, self.policy),
                from_step=self._newest_step,
                delay_s=round(verdict.delay_s, 3),
            )
        )

    # -- what is due ------------------------------------------------------------------------

    def _due_cause(self, now: float, _: Member | None) -> None:
        """The others failed as a consequence and no cause came: whoever lives on is the cause."""
        for member in [m for m in self.gang.core() if m.is_running]:
            self.gang.blame(member, Kind.LATE, findings.OUTLIVED)
        self._end_gang("it outlived the others' failure", now)

    def _due_frozen(self, now: float, member: Member | None) -> None:
        if member is None or not member.is_running or member.frozen_by is None or self.is_ending:
            return
        self.gang.blame(member, Kind.FROZEN, findings.frozen(member.frozen_by, FROZEN_S))
        self._stop([member], "it was stopped and did not go on", 0.0, now)
        if not member.alone:
            self._end_gang("another task was stopped", now)

    def _due_late(self, now: float, _: Member | None) -> None:
        if self._verdict is Next.DESERTED:
            for member in self.gang.core():
                if member.is_running:
                    self.gang.blame(member, Kind.LATE, findings.DESERTED)
            self._fail(self._cause(), GiveUp("all that it works with have ended"), now)
            return
        late = ", ".join(str(member.id) for member in self.gang.running())
        self._record(ev.Warned(message=f"{late} did not end with the others: ended"))
        self._stage = Stage.ENDING_RUN
        self._stop(self.gang.running(), "the others have ended", FAILURE_GRACE_S, now)

    def _due_again(self, now: float, member: Member | None) -> None:
        if member is not None and member.is_due_again and self._stage is Stage.TRAINING:
            again = self.gang.renew(member)
            self._actions.append(StartAlone(again.id, again.attempt))

    def _due_start(self, now: float, _: Member | None) -> None:
        found = findings.who_is_missing(self.gang.core(), self._last_line, now)
        for member, words in found:
            self.gang.blame(member, Kind.LATE, words)
        self._diagnose(self.gang.failures)
        error = findings.start_error([words for _, words in found], self.policy.start_deadline_s)
        self._ending = Outcome(Status.TIMED_OUT, error.exit_code, error)
        self._dump_stacks(now)

    def _due_stall(self, now: float, _: Member | None) -> None:
        self._patience.note_output(self._last_output())
        due, since = self._patience.stall_due, self._patience.heard_at
        if due is None or since is None or due > now:
            return
        limit = self.policy.stall_deadline_s
        self._record(ev.Stalled(silent_s=round(now - since, 1), deadline_s=limit))
        if limit is None:
            self._patience.noticed = True
            self._dump(self.gang.running())
            return
        member, words = findings.who_stalled(self.gang.core(), now - since)
        self.gang.blame(member, Kind.STALLED, words)
        self._dump_stacks(now)

    def _due_stacks(self, now: float, _: Member | None) -> None:
        if self._ending is None:
            self._end_gang("nothing was heard of it", now)
        else:
            self._end_run(str(self._ending.error), self._ending, FAILURE_GRACE_S, now)

    def _due_run(self, now: float, _: Member | None) -> None:
        error = findings.run_error(self.policy.run_deadline_s or 0.0)
        outcome = Outcome(Status.TIMED_OUT, error.exit_code, error)
        if self._ending is None:
            self._end_run(error.message, outcome, None, now)

    def _due_agents(self, now: float, _: Member | None) -> None:
        """Tasks that were told to end have not: their agents do not answer."""
        for node in by_node(self.gang.running(), lambda member: member.is_stopping):
            self._actions.append(DropNode(node))
            self.node_lost(node, "its agent does not answer", now)

    # -- ending -----------------------------------------------------------------------------

    def _end_gang(self, why: str, now: float) -> None:
        """End all but the evaluators, which follow the checkpoints whoever makes them."""
        if not self.is_ending:
            self._stage = Stage.ENDING_GANG
            self._call_off_restarts()
            running = [m for m in self.gang.core() if m.is_running and not m.is_stopping]
            self._stop(running, why, FAILURE_GRACE_S, now)

    def _call_off_restarts(self) -> None:
        for member in self.gang:
            member.is_due_again = False
            self._timers.clear(f"again {member.id}")

    def _fail(self, cause: Failure, why: GiveUp, now: float) -> None:
        """The run has failed for good, because of `cause`."""
        self._diagnose(self.gang.failures or self.gang.lone_failures, why=why.why)
        self._ending = findings.outcome_of(cause, why)
        self._stage = Stage.ENDING_RUN
        self._stop(self.gang.running(), "another task failed", FAILURE_GRACE_S, now)

    def _end_run(self, why: str, outcome: Outcome, grace_s: float | None, now: float) -> None:
        if self.outcome is not None:
            return
        self._ending, self._stage, self.again = outcome, Stage.ENDING_RUN, None
        running = self.gang.running()
        orders = stops(running, grace_s, most_s=self.policy.grace_s)
        self._record(ev.RunStopping(why=why, grace_s=longest_grace_s(orders)))
        self._timers.clear_all()
        self._stop(running, why, grace_s, now)
        self._react(now)

    def _stop(self, members: list[Member], why: str, grace_s: float | None, now: float) -> None:
        """Without `grace_s` each gets as long as it can use."""
        orders = stops(members, grace_s, most_s=self.policy.grace_s)
        for order in orders:
            self._actions.append(StopTasks(order.node, tuple(order.tasks), order.grace_s, why))
        for member in members:
            member.is_stopping = True
            self._record(ev.TaskStopping(task=str(member.id), attempt=member.attempt, why=why))
        if orders:
            self._timers.set("agents", now + longest_grace_s(orders) + AGENT_SLACK_S)

    def _dump_stacks(self, now: float) -> None:
        """Before the tasks are ended."""
        self._dump(self.gang.running())
        self._timers.clear("start", "stall")
        self._timers.set("stacks", now + STACKS_S)

    def _dump(self, members: list[Member]) -> None:
        for node, tasks in by_node(members, lambda member: member.is_hooked).items():
            self._actions.append(DumpStacks(node, tuple(tasks)))

    def _conclude(self) -> None:
        verdict = judge(self.gang.ends(), chief=self.chief, gang=self._forms_gang)
        if self._ending is not None:
            self.outcome = self._ending
        elif verdict is Next.SUCCEED:
            self.outcome = Outcome(Status.SUCCEEDED, 0)
        else:
            self._diagnose(self.gang.failures or self.gang.lone_failures)
            self.outcome = Outcome(Status.FAILED, 1)

    def _cause(self) -> Failure:
        cause = diagnosis.root_cause(self.gang.failures or self.gang.lone_failures)
        assert cause is not None
        return cause

    def _diagnose(self, failures: list[Failure], why: str | None = None) -> None:
        if (facts := diagnosis.to_json(failures)) is not None:
            if why is not None:
                facts["root_cause"]["not_restarted"] = why
            self._record(ev.Diagnosis(**facts))

    def _record(self, event: Event) -> None:
        self._actions.append(Record(event))


_DUE: Mapping[str, Callable[[Supervisor, float, Member | None], None]] = {
    "cause": Supervisor._due_cause,
    "frozen": Supervisor._due_frozen,
    "late": Supervisor._due_late,
    "again": Supervisor._due_again,
    "start": Supervisor._due_start,
    "stall": Supervisor._due_stall,
    "stacks": Supervisor._due_stacks,
    "run": Supervisor._due_run,
    "agents": Supervisor._due_agents,
}
