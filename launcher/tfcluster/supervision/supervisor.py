"""Decides what becomes of a run: inputs with their time go in, orders and events come out.

No clock, no disk, no process: the coordinator carries out what `orders` holds, and tests replay
histories. The rules: only the whole gang can be restarted under MultiWorkerMirroredStrategy; the
root cause is the first failure that is no consequence; whoever lives on while all others fail
because of somebody is that somebody.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tfcluster.checkpoints.completeness import Newest
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import restart_policy, verdicts
from tfcluster.supervision.attempt_state import AttemptState, Stage
from tfcluster.supervision.deadlines import Watch
from tfcluster.supervision.decisions import Again, DropNode, Next, Outcome, Stop, judge
from tfcluster.supervision.failure import Kind
from tfcluster.supervision.gang import by_node
from tfcluster.supervision.member import Member
from tfcluster.supervision.next_attempt import GangRestarts, LoneRestarts, Restarts, loss_of
from tfcluster.supervision.verdicts import CAUSE_WAIT_S

START_ANSWER_S: Final = 60.0
"""An agent that has not said whether a task runs so long after the order is itself lost."""

EVALUATOR_S: Final = 10.0
"""Most evaluators leave by themselves once they have seen the last checkpoint; not every one."""
FINISHING_S: Final = 5.0
"""What still runs so long after the chief's success is named; most tasks end with it."""


class Supervisor:
    """One run's. After any input, take the `orders`, and look at `again` and `outcome`."""

    def __init__(
        self,
        plan: Plan,
        *,
        last_output: Callable[[], float] = lambda: 0.0,
        last_line: Callable[[Member], str] = lambda member: "",
        absent: Callable[[], Sequence[str]] = tuple,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`last_output`: when a task last wrote a line, on the inputs' clock; `absent`: Watch."""
        self.plan, self.policy = plan, plan.supervision
        self._attempt_state = attempt_state = AttemptState(plan)
        self.gang, self.orders, self._timers = (
            attempt_state.gang,
            attempt_state.orders,
            attempt_state.timers,
        )
        self._watch = Watch(plan, attempt_state, last_output, last_line, absent)
        self._restarts = Restarts(plan, jitter)
        self._lone = LoneRestarts(attempt_state, self._restarts)
        self._forms_gang = plan.kind != "plain"
        self._anew = GangRestarts(plan, attempt_state, self._restarts, self._lone.gone)
        self.chief = plan.chief
        """Whose exit and whose checkpoints count; another one in a smaller gang."""
        self._verdict = Next.GO_ON

    @property
    def again(self) -> Again | None:
        """Set when the gang is to be started again; `begin` clears it."""
        return self._attempt_state.again

    @property
    def outcome(self) -> Outcome | None:
        """Set when the run is over."""
        return self._attempt_state.outcome

    @property
    def wake_at(self) -> float | None:
        """When `tick` must be called next."""
        return self._timers.next

    # -- inputs -----------------------------------------------------------------------------

    def begin_run(
        self, now: float, *, from_step: int | None = None, from_name: str | None = None
    ) -> None:
        """The run's clock starts; `from_step`, `from_name`: of the checkpoint it resumes from."""
        self._restarts.newest = Newest(from_step, from_name)
        if self.policy.run_deadline_s is not None:
            self._timers.set("run", now + self.policy.run_deadline_s)

    def begin(self, number: int, members: tuple[TaskId, ...]) -> list[TaskId]:
        """Attempt `number` begins; returns the tasks to start: not an evaluator that runs on."""
        to_start = self.gang.enlist(members, number)
        self._anew.members, self.chief = members, restart_policy.chief_among(self.plan, members)
        self._verdict = Next.GO_ON
        self._restarts.begin()
        self._attempt_state.begin()
        self._watch.begin()
        return to_start

    def order(self, tasks: Iterable[TaskId], attempt: int, now: float) -> list[TaskId]:
        """Those of `tasks` that are to start still; what their agents say to it is waited for."""
        wanted = []
        for member in self.gang if self._attempt_state.is_training else ():
            if member.id in tasks and member.attempt == attempt and member.is_to_start:
                member.is_ordered, member.answer_by = True, now + START_ANSWER_S
                wanted.append(member.id)
        self._attempt_state.watch_agents()
        return wanted

    def started(self, task: str, attempt: int, now: float) -> None:
        if (member := self.gang.get(task, attempt)) is not None:
            member.note_start(now)
            if self._attempt_state.is_ending_it(
                member
            ):  # its order was on the way when the end came
                self._attempt_state.stop([member], "the run is ending", now, grace_s=0.0)
            self._react(now)

    def start_failed(self, task: str, attempt: int, error: str, now: float) -> None:
        """The program of `task` could not be executed."""
        if (member := self.gang.get(task, attempt)) is not None and not member.is_over:
            member.is_lost = True
            self.gang.blame(member, Kind.START_FAILED, error)
            if member.attempt == self.gang.number:
                self._attempt_state.end_gang("a task cannot start", now)
            else:
                self._revive(member, now)
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
        member = self.gang.get(event.task, event.attempt)
        if member is None or member.is_over:
            return
        self.gang.note_exit(member, event, error=error, last_lines=last_lines)
        self._timers.clear(f"frozen {member.id}")
        self._revive(member, now)
        self._react(now)

    def reported(self, task: str, attempt: int, report: Mapping[str, Any], now: float) -> None:
        """What a task says of itself."""
        if (member := self.gang.get(task, attempt)) is not None:
            self.gang.note_report(member, report, now)
            if report.get("type") == "saved" and member.id == self.chief:
                self._restarts.note_saved(member.saved_step)
            self._watch.note(member, report, now)
            self._react(now)

    def froze(self, task: str, attempt: int, signal: int, now: float) -> None:
        """A signal has stopped the task's process."""
        if (member := self.gang.get(task, attempt)) is not None and member.is_running:
            self._watch.froze(member, signal, now)
            self._react(now)

    def thawed(self, task: str, attempt: int) -> None:
        """It goes on."""
        if (member := self.gang.get(task, attempt)) is not None:
            self._watch.thawed(member)

    def node_lost(self, node: str, reason: str, now: float) -> None:
        """No word of the tasks of `node` will come; they are ended by its guard."""
        if self.outcome is not None:
            return
        self.orders.record(ev.NodeLost(node=node, reason=reason))
        lost = [member for member in self.gang if member.node == node and not member.is_over]
        self.gang.lose_node(node, reason)
        if self._attempt_state.stage is Stage.STARTING:
            self._attempt_state.fail_unbegun(loss_of(node, node, reason))
        elif any(member.id.job != "evaluator" for member in lost) and self._forms_gang:
            self._attempt_state.end_gang("a node is lost", now)
        for member in lost:
            self._revive(member, now)
        self._react(now)

    def gone(self, node: str, reason: str, now: float) -> None:
        """A lost node does not come back, and nothing of its tasks can live any more."""
        self._lone.gone[node] = reason
        if self.again is None:
            self.gang.lose_node(node, reason)
        else:
            self._anew.decide_again(now)
        self._react(now)

    def gathered(self, step: int | None, now: float, *, name: str | None = None) -> None:
        """A checkpoint that the present attempt saved is in the run folder."""
        self._restarts.note_gathered(step, name)
        self._react(now)

    def home(self, step: int | None, now: float, *, name: str | None = None) -> None:
        """All that the chief saved is in the run folder; `step` and `name` are those of its newest
        checkpoint: decide."""
        if self._attempt_state.stage is Stage.HOMING:
            self._restarts.note_home(step, name)
            self._anew.decide(now)
            self._react(now)

    def linked(self, lost: Mapping[str, str], now: float) -> None:
        """What the nodes found that were to dial each other: node → how it is cut off."""
        self._watch.linked(lost, now)
        self._react(now)

    def stop(self, stop: Stop, now: float) -> None:
        """The user wants the run to end; a second wish kills at once."""
        before = self._attempt_state.ending
        if before is not None and before.status is Status.INTERRUPTED:
            self._attempt_state.end_run(
                f"{stop.why} again, tasks are killed", before, now, grace_s=0.0
            )
        else:
            outcome = Outcome(Status.INTERRUPTED, stop.exit_code)
            self._attempt_state.end_run(stop.why, outcome, now, grace_s=0.0 if stop.now else None)
        self._react(now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        for name in self._timers.take_due(now):
            kind, _, task = name.partition(" ")
            self._due(kind, self.gang.get(task), now)
        self._react(now)

    # -- what follows -----------------------------------------------------------------------

    def _react(self, now: float) -> None:
        if self.outcome is not None:
            return
        self._watch.ask_links()
        if self.again is None:
            if self._attempt_state.is_training and not self._watch.has_stacks_written:
                self._follow(self._judge(), now)
            if self._attempt_state.is_training:
                self._watch.set_deadlines(waits_for_all=self._verdict is Next.GO_ON)
            self._attempt_state.go_on(self._judge())
        self._attempt_state.watch_agents()

    def _judge(self) -> Next:
        return judge(self.gang.ends(self.chief), chief=self.chief, gang=self._forms_gang)

    def _follow(self, verdict: Next, now: float) -> None:
        if verdict is not self._verdict:  # what was waited for so far is no matter any more
            self._verdict = verdict
            self._timers.clear("cause", "late", "finishing")
            if verdict is Next.FINISH and self.policy.finish_grace_s > FINISHING_S:
                self._timers.set("finishing", now + FINISHING_S)
        match verdict:
            case Next.FAIL if verdicts.leaves_preempted(self.gang.core()):
                self._timers.set_once("cause", now + self.policy.grace_s)
            case Next.FAIL:
                self._attempt_state.end_gang("another task failed", now)
            case Next.AWAIT_CAUSE if frozen := verdicts.suspects(self.gang.member_counts):
                self._watch.act_on(verdicts.frozen(frozen[0]), now)
            case Next.AWAIT_CAUSE:
                self._timers.set_once("cause", now + CAUSE_WAIT_S)
            case Next.DESERTED:
                wait_s = verdicts.longest_wait_s(self.plan, self.gang.core())
                self._timers.set_once("late", now + wait_s)
            case Next.FINISH:
                self._finish(now)
            case Next.FAILED if self.gang.failures and self._forms_gang:
                self._attempt_state.end_gang("all have ended", now)
            case Next.SUCCEED | Next.FAILED:
                self._attempt_state.conclude(verdict)

    def _finish(self, now: float) -> None:
        """The chief has succeeded."""
        self._attempt_state.call_off_restarts()
        if (verdict := self._judge()) is not Next.FINISH:
            self._follow(verdict, now)
            return
        self._attempt_state.stop(self.gang.idle(), "the chief has finished", now)
        for member in self._satisfied():
            self._timers.set_once(f"satisfied {member.id}", now + EVALUATOR_S)
        self._timers.set_once("late", now + self.policy.finish_grace_s)

    def _satisfied(self) -> list[Member]:
        return self.gang.satisfied(self._last_step())

    def _last_step(self) -> int | None:
        """The step of the last checkpoint: what the chief has reported may still be gathered."""
        told = chief.saved_step if (chief := self.gang.get(str(self.chief))) else None
        return max(
            (step for step in (self._restarts.newest.step, told) if step is not None), default=None
        )

    def _revive(self, member: Member, now: float) -> None:
        self._lone.revive(member, now, is_finishing=self._verdict is Next.FINISH)

    # -- what is due ------------------------------------------------------------------------

    def _due(self, name: str, member: Member | None, now: float) -> None:
        match name:
            case "cause" if self._verdict is Next.FAIL:
                self._attempt_state.end_gang("it did not leave with the others", now)
            case "late" if self._verdict is Next.DESERTED:
                self._watch.act_on(verdicts.deserted(self.gang.core()), now)
            case "late":
                self._watch.end_late(self._last_step(), now)
            case "satisfied" if member is not None and member in self._satisfied():
                self._attempt_state.stop([member], "it has evaluated the last checkpoint", now)
            case "finishing":
                if waits := [str(one.id) for one in self.gang.running() if not one.is_stopping]:
                    left_s = self.policy.finish_grace_s - FINISHING_S
                    self.orders.record(ev.Finishing(tasks=waits, left_s=left_s))
            case "again" if member is not None:
                self._lone.due(member)
            case "frozen" if self._verdict is Next.FINISH:
                pass  # it is late with the others, no failure of a gang that has succeeded
            case "run" if self._attempt_state.ending is None:
                outcome = verdicts.too_long(self.policy.run_deadline_s or 0.0)
                self._attempt_state.end_run("run_deadline_s has passed", outcome, now, grace_s=None)
            case "agents":
                for node in by_node(self.gang, lambda member: member.is_overdue(now)):
                    self.orders.add(DropNode(node))
                    self.node_lost(node, "its agent does not answer", now)
            case _:
                self._watch.due(name, member, now)
