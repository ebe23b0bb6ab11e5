"""Decides how a run goes on: inputs with their time go in, orders and events come out.

It has no clock, disk or process: the coordinator carries out the `orders`, and tests replay
histories. The rules: under MultiWorkerMirroredStrategy only the whole gang can be restarted; the
root cause is the first failure that is not a consequence of another; if all failures are
consequences, the task that keeps running is the cause.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tfcluster.agent import catalogue as msg
from tfcluster.checkpoints.completeness import Newest
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import restart_policy, verdicts
from tfcluster.supervision.attempt_state import AttemptState, Stage
from tfcluster.supervision.deadlines import Watch
from tfcluster.supervision.decisions import DropNode, Next, NextAttempt, Outcome, Stop, judge
from tfcluster.supervision.failure import Kind
from tfcluster.supervision.member import Member
from tfcluster.supervision.next_attempt import GangRestarts, Restarts, TaskRestarts, loss_of
from tfcluster.supervision.verdicts import CAUSE_WAIT_S

START_ANSWER_S: Final = 60.0
"""The time after an order in which an agent must report the start of a task; then it is lost."""
EVALUATOR_S: Final = 10.0
"""The time that an evaluator gets to end by itself after the last checkpoint; most do."""
FINISHING_S: Final = 5.0
"""The time after the chief's success at which running tasks are named; most end with it."""


class Supervisor:
    """The supervisor of one run.

    After any input, take the `orders` and check `next_attempt` and `outcome`.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        last_output: Callable[[], float] = lambda: 0.0,
        last_line: Callable[[Member], str] = lambda member: "",
        absent: Callable[[], Sequence[str]] = tuple,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Take the callables for facts from outside.

        `last_output`: when a task last wrote a line, on the inputs' clock. `last_line`: a task's
        last line. `absent`: the unreachable tasks elsewhere. `jitter`: see `restart_policy.decide`.
        """
        self.plan, self.policy = plan, plan.supervision
        self._attempt_state = attempt_state = AttemptState(plan)
        self.gang, self.orders = attempt_state.gang, attempt_state.orders
        self._timers = attempt_state.timers
        self._watch = Watch(plan, attempt_state, last_output, last_line, absent)
        self._restarts = Restarts(plan, jitter)
        self._task_restarts = TaskRestarts(attempt_state, self._restarts)
        self._forms_gang = plan.kind != "plain"
        self._gang_restarts = GangRestarts(
            plan, attempt_state, self._restarts, self._task_restarts.gone
        )
        self.chief = plan.chief
        """The task whose exit and checkpoints count; a smaller gang may have another one."""
        self._verdict = Next.GO_ON

    @property
    def next_attempt(self) -> NextAttempt | None:
        """The next attempt once the gang is to be restarted; `begin` clears it."""
        return self._attempt_state.next_attempt

    @property
    def outcome(self) -> Outcome | None:
        """The outcome once the run is over."""
        return self._attempt_state.outcome

    @property
    def wake_at(self) -> float | None:
        """The time at which `tick` must be called next, or None."""
        return self._timers.next

    # -- inputs -----------------------------------------------------------------------------

    def begin_run(
        self, now: float, *, from_step: int | None = None, from_name: str | None = None
    ) -> None:
        """Start the run's clock; `from_step` and `from_name` name the checkpoint to resume from."""
        self._restarts.newest = Newest(from_step, from_name)
        if self.policy.run_deadline_s is not None:
            self._timers.set("run", now + self.policy.run_deadline_s)

    def begin(self, number: int, members: tuple[TaskId, ...]) -> list[TaskId]:
        """Begin attempt `number`; return the tasks to start, without an evaluator that runs."""
        to_start = self.gang.enlist(members, number)
        self._gang_restarts.members = members
        self.chief = restart_policy.chief_among(self.plan, members)
        self._verdict = Next.GO_ON
        self._restarts.begin()
        self._attempt_state.begin()
        self._watch.begin()
        return to_start

    def order(self, tasks: Iterable[TaskId], attempt: int, now: float) -> list[TaskId]:
        """Return the `tasks` that still must start; their agents must answer in time."""
        ordered, requested = [], set(tasks)
        for member in self.gang if self._attempt_state.is_training else ():
            if member.id in requested and member.attempt == attempt and member.is_to_start:
                member.is_ordered, member.answer_by = True, now + START_ANSWER_S
                ordered.append(member.id)
        self._attempt_state.watch_agents()
        return ordered

    def started(self, task: str, attempt: int, now: float) -> None:
        """Note that a task has started."""
        if (member := self.gang.get(task, attempt)) is not None:
            member.note_start(now)
            if self._attempt_state.must_stop(member):  # the order to start came too late
                self.orders.stop([member], "the run is ending", now, grace_s=0.0)
            self._react(now)

    def start_failed(self, task: str, attempt: int, error: str, now: float) -> None:
        """Note that the program of `task` could not be executed."""
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
        """Note that a task has ended; `error` is the exception it reported, if any."""
        member = self.gang.get(event.task, event.attempt)
        if member is None or member.is_over:
            return
        self.gang.note_exit(member, event, error=error, last_lines=last_lines)
        self._timers.clear(f"frozen {member.id}")
        self._revive(member, now)
        self._react(now)

    def reported(self, task: str, attempt: int, report: msg.TaskReport, now: float) -> None:
        """Note a task's report about itself."""
        if (member := self.gang.get(task, attempt)) is not None:
            self.gang.note_report(member, report, now)
            if isinstance(report, msg.Saved) and member.id == self.chief:
                self._restarts.note_saved(member.saved_step)
            self._watch.note(member, report, now)
            self._react(now)

    def froze(self, task: str, attempt: int, signal: int, now: float) -> None:
        """Note that a signal has stopped the task's process."""
        if (member := self.gang.get(task, attempt)) is not None and member.is_running:
            self._watch.froze(member, signal, now)
            self._react(now)

    def thawed(self, task: str, attempt: int) -> None:
        """Note that a stopped process runs again."""
        if (member := self.gang.get(task, attempt)) is not None:
            self._watch.thawed(member)

    def node_lost(self, node: str, reason: str, now: float) -> None:
        """Note that `node` is lost and reports nothing any more; its guard kills its tasks."""
        if self.outcome is not None:
            return
        self.orders.record(ev.NodeLost(node=node, reason=reason))
        lost = self.gang.lose_node(node, reason)
        if self._attempt_state.stage is Stage.STARTING:
            self._attempt_state.fail_unbegun(loss_of(node, node, reason))
        elif any(member.id.job != "evaluator" for member in lost) and self._forms_gang:
            self._attempt_state.end_gang("a node is lost", now)
        for member in lost:
            self._revive(member, now)
        self._react(now)

    def node_gone(self, node: str, reason: str, now: float) -> None:
        """Note that a lost node is gone for good: none of its tasks can still run."""
        self._task_restarts.gone[node] = reason
        if self.next_attempt is None:
            self.gang.lose_node(node, reason)
        else:
            self._gang_restarts.decide_again(now)
        self._react(now)

    def gathered(self, step: int | None, now: float, *, name: str | None = None) -> None:
        """Note that a checkpoint of the present attempt is in the run folder."""
        self._restarts.note_gathered(step, name)
        self._react(now)

    def checkpoints_gathered(self, newest: Newest, now: float) -> None:
        """Decide about a restart: all of the chief's checkpoints are now in the run folder."""
        if self._attempt_state.stage is Stage.GATHERING:
            self._restarts.note_all_gathered(newest)
            self._gang_restarts.decide(now)
            self._react(now)

    def links_probed(self, lost: Mapping[str, str], now: float) -> None:
        """Note the result of probing the links; `lost`: node → how it is cut off."""
        self._watch.note_lost_links(lost, now)
        self._react(now)

    def stop(self, stop: Stop, now: float) -> None:
        """Stop the run on request; a second request kills its tasks at once."""
        before = self._attempt_state.ending
        if before is not None and before.status is Status.INTERRUPTED:
            self._attempt_state.end_run(
                f"{stop.why} again, killing the tasks", before, now, grace_s=0.0
            )
        else:
            outcome = Outcome(Status.INTERRUPTED, stop.exit_code)
            self._attempt_state.end_run(stop.why, outcome, now, grace_s=0.0 if stop.now else None)
        self._react(now)

    def tick(self, now: float) -> None:
        """Act on the timers that are due."""
        for name in self._timers.take_due(now):
            kind, _, task = name.partition(" ")
            self._due(kind, self.gang.get(task), now)
        self._react(now)

    # -- reactions --------------------------------------------------------------------------

    def _react(self, now: float) -> None:
        if self.outcome is not None:
            return
        self._watch.probe_links_once()
        if self.next_attempt is None:
            if self._attempt_state.is_training and not self._watch.has_stacks_written:
                self._follow(self._judge(), now)
            if self._attempt_state.is_training:
                self._watch.set_deadlines(waits_for_all=self._verdict is Next.GO_ON)
            self._attempt_state.enter_next_stage(self._judge())
        self._attempt_state.watch_agents()

    def _judge(self) -> Next:
        return judge(self.gang.ends(self.chief), chief=self.chief, gang=self._forms_gang)

    def _follow(self, verdict: Next, now: float) -> None:
        if verdict is not self._verdict:  # the timers of the earlier verdict no longer apply
            self._verdict = verdict
            self._timers.clear("cause", "late", "finishing")
            if verdict is Next.FINISH and self.policy.finish_grace_s > FINISHING_S:
                self._timers.set("finishing", now + FINISHING_S)
        match verdict:
            case Next.FAIL if verdicts.leaves_preempted(self.gang.core()):
                self._timers.set_once("cause", now + self.policy.grace_s)
            case Next.FAIL:
                self._attempt_state.end_gang("another task failed", now)
            case Next.AWAIT_CAUSE if frozen := verdicts.find_frozen(self.gang.member_counts):
                self._watch.act_on(verdicts.blame_frozen(frozen[0]), now)
            case Next.AWAIT_CAUSE:
                self._timers.set_once("cause", now + CAUSE_WAIT_S)
            case Next.DESERTED:
                wait_s = verdicts.deserted_grace_s(self.plan, self.gang.core())
                self._timers.set_once("late", now + wait_s)
            case Next.FINISH:
                self._finish(now)
            case Next.FAILED if self.gang.failures and self._forms_gang:
                self._attempt_state.end_gang("all have ended", now)
            case Next.SUCCEED | Next.FAILED:
                self._attempt_state.conclude(verdict)

    def _finish(self, now: float) -> None:
        self._attempt_state.cancel_restarts()
        if (verdict := self._judge()) is not Next.FINISH:
            self._follow(verdict, now)
            return
        self.orders.stop(self.gang.idle(), "the chief has finished", now)
        for member in self._satisfied():
            self._timers.set_once(f"satisfied {member.id}", now + EVALUATOR_S)
        self._timers.set_once("late", now + self.policy.finish_grace_s)

    def _satisfied(self) -> list[Member]:
        return self.gang.satisfied(self._last_step())

    def _last_step(self) -> int | None:
        """Return the step of the last checkpoint, which may be reported but not yet gathered."""
        reported = chief.saved_step if (chief := self.gang.get(str(self.chief))) else None
        steps = (self._restarts.newest.step, reported)
        return max((step for step in steps if step is not None), default=None)

    def _revive(self, member: Member, now: float) -> None:
        self._task_restarts.revive(member, now, is_finishing=self._verdict is Next.FINISH)

    # -- timers -----------------------------------------------------------------------------

    def _due(self, name: str, member: Member | None, now: float) -> None:
        match name:
            case "cause" if self._verdict is Next.FAIL:
                self._attempt_state.end_gang("it did not leave with the others", now)
            case "late" if self._verdict is Next.DESERTED:
                self._watch.act_on(verdicts.blame_deserted_chief(self.gang.core()), now)
            case "late":
                self._watch.end_late(self._last_step(), now)
            case "satisfied" if member is not None and member in self._satisfied():
                self.orders.stop([member], "it has evaluated the last checkpoint", now)
            case "finishing":
                if waits := [str(m.id) for m in self.gang.running() if not m.is_stopping]:
                    left_s = self.policy.finish_grace_s - FINISHING_S
                    self.orders.record(ev.Finishing(tasks=waits, left_s=left_s))
            case "restart" if member is not None:
                self._task_restarts.due(member)
            case "frozen" if self._verdict is Next.FINISH:
                pass  # the gang has succeeded: a stopped task is only late
            case "run" if self._attempt_state.ending is None:
                outcome = verdicts.run_deadline_outcome(self.policy.run_deadline_s or 0.0)
                self._attempt_state.end_run("run_deadline_s has passed", outcome, now, grace_s=None)
            case "agents":
                for node in dict.fromkeys(m.node for m in self.gang if m.is_overdue(now)):
                    self.orders.add(DropNode(node))
                    self.node_lost(node, "its agent does not answer", now)
            case _:
                self._watch.due(name, member, now)
