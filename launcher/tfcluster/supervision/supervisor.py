"""Decides how a run goes on: inputs with their time go in, orders and events come out.

It has no clock, disk or process: the coordinator carries out the orders, and tests replay
histories. The rules: under MultiWorkerMirroredStrategy only the whole gang can be restarted; the
root cause is the first failure that is not a consequence of another; if all failures are
consequences, the task that keeps running is the cause.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, Final

from tfcluster.agent import catalogue as msg
from tfcluster.checkpoints.recognition import Newest
from tfcluster.node_loss import NodeLoss
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import stalls, task_network, verdicts
from tfcluster.supervision.alerts import Alerts
from tfcluster.supervision.decisions import (
    Action,
    DropNode,
    Next,
    NextAttempt,
    Outcome,
    ProbeLinks,
    ReadLogs,
    StopRequest,
)
from tfcluster.supervision.doubts import explain_lone_work, warnings_about
from tfcluster.supervision.endings import STACKS_WAIT_S, AttemptEnd, Stage
from tfcluster.supervision.failure import Kind, kind_of_leaving
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.member import Member
from tfcluster.supervision.membership import Membership
from tfcluster.supervision.restarting import REACH_S, Restarter, event_of, loss_of
from tfcluster.supervision.silence import Silence
from tfcluster.supervision.stalls import Activity, Position
from tfcluster.supervision.step_times import StepTimes
from tfcluster.supervision.task_network import find_missed_heartbeats
from tfcluster.supervision.verdicts import CAUSE_WAIT_S, FROZEN_S

START_ANSWER_S: Final = 60.0
"""The time after an order in which an agent must report the start of a task; then it is lost."""
EVALUATOR_S: Final = 10.0
"""The time that an evaluator gets to end by itself after the last checkpoint; most do."""
FINISHING_S: Final = 5.0
"""The time after the chief's success at which running tasks are named; most end with it."""
ALONE_S: Final = 10.0
"""The time in which tasks that compute gradients may still meet: JAX and Horovod do it later."""
AFTER_SUSPENSION_S: Final = 60.0
"""The time after a suspension in which it explains that tasks lose each other."""


@dataclass(slots=True)
class Supervisor:
    """The state of one run, with the inputs that change it.

    After any input, take the orders and check `next_attempt` and `outcome`. Two supervisors with
    the same inputs are equal.
    """

    plan: Plan
    jitter: InitVar[Callable[[], float]] = random.random
    run_id: InitVar[str] = "RUN"
    gang: Gang = field(init=False)
    alerts: Alerts = field(init=False)
    end: AttemptEnd = field(init=False)
    restarting: Restarter = field(init=False)
    silence: Silence = field(default_factory=Silence)
    step_times: StepTimes = field(default_factory=StepTimes)
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

    def __post_init__(self, jitter: Callable[[], float], run_id: str) -> None:
        self.gang = Gang(self.plan)
        self.alerts = Alerts(self.gang)
        self.end = AttemptEnd(self.plan, self.gang, self.alerts, run_id)
        self.restarting = Restarter(self.plan, self.gang, self.end, jitter)

    @property
    def membership(self) -> Membership:
        return self.restarting.membership

    @property
    def next_attempt(self) -> NextAttempt | None:
        """The next attempt, once the gang is to be restarted."""
        return self.end.next_attempt

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the run, once it is over."""
        return self.end.outcome

    @property
    def gone(self) -> Mapping[str, NodeLoss]:
        """The nodes that are gone for good → why."""
        return self.restarting.gone

    @property
    def wake_at(self) -> float | None:
        """The time at which `tick` must be called next, or None."""
        return min(self.end.timers.values(), default=None)

    def take_orders(self) -> list[Action]:
        """Remove and return the orders since the last call."""
        orders, self.end.orders = self.end.orders, []
        return orders

    def is_spare(self, node: str) -> bool:
        """Return whether no task of the present gang and of the next one is on `node`."""
        return not self.membership.uses(node) and all(member.node != node for member in self.gang)

    # -- inputs -----------------------------------------------------------------------------

    def begin_run(
        self,
        now: float,
        newest: Newest | None = None,
        *,
        attempt: int = 0,
        ran_s: float = 0.0,
        restarts: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Start the run's clock; `newest` is the checkpoint to resume from.

        A run that its scheduler has started again has run for `ran_s` seconds before, up to
        `attempt`, with `restarts` (`RunSnapshot.restarts`).
        """
        budgets = self.restarting.budgets
        self.gang.number, budgets.newest = attempt, newest or Newest()
        budgets.carry_over(restarts, last_attempt=attempt)
        if (deadline_s := self.end.policy.run_deadline_s) is not None:
            self.end.set_timer("run", now + max(0.0, deadline_s - ran_s))

    def begin(self, number: int, members: tuple[TaskId, ...]) -> list[TaskId]:
        """Begin attempt `number`; return the tasks to start, without an evaluator that runs."""
        self.restarting.begin()
        self.alerts.begin()
        self.silence, self.positions, self.has_probed_links = Silence(), None, False
        nodes = {self.plan.task(task).node for task in members if task.trains}
        self.step_times = StepTimes(self.step_times.link, len(nodes) > 1)
        return self.end.begin(number, members)

    def order(self, tasks: Iterable[TaskId], attempt: int, now: float) -> list[TaskId]:
        """Return the `tasks` that still must start; their agents must answer in time."""
        requested = set(tasks)
        ordered = [
            member
            for member in (self.gang if self.end.is_training else ())
            if member.id in requested and member.attempt == attempt and member.is_to_start
        ]
        for member in ordered:
            self.gang.put(replace(member, is_ordered=True, answer_by=now + START_ANSWER_S))
        self.end.watch_agents()
        return [member.id for member in ordered]

    def started(self, task: str, attempt: int, now: float) -> None:
        """Note that a task has started."""
        if (member := self.gang.get(task, attempt)) is not None:
            member = replace(member, is_ordered=True, started_at=now, answer_by=None)
            self.gang.put(member)
            self.silence.note_start(now)
            self.end.stop_if_late(member, now)
            self._react(now)

    def start_failed(self, task: str, attempt: int, error: str, now: float) -> None:
        """Note that the program of `task` could not be executed."""
        if (member := self.gang.get(task, attempt)) is not None and not member.is_over:
            self.gang.blame(replace(member, is_lost=True), Kind.START_FAILED, error)
            if attempt == self.gang.number:
                self.end.end_gang("a task cannot start", now)
            else:
                self.restarting.revive(task, now)
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
        ended = self.gang[event.task]
        if ended.is_ok and event.ended_by == "itself" and not self.gang.is_announced:
            for warning in warnings_about(ended):
                self.end.warn(warning)
        if member.is_core and ended.is_ok and self.end.is_training:
            self.silence.note_end(now)
            self._end_stall(now)
        self.end.set_timer("frozen", None, event.task)
        self.restarting.revive(event.task, now)
        self._react(now)

    def reported(self, report: msg.TaskReport, now: float) -> None:
        """Note a task's report about itself."""
        if (member := self.gang.get(report.task, report.attempt)) is None:
            return
        if isinstance(report, msg.StepParts):
            self.end.record_all(self.step_times.note(report, self._in_step_with(member)))
            return
        self.gang.note_report(member, report, now)
        self.end.record_all(self.alerts.of_report(report))
        if isinstance(report, msg.Trains) and self.alerts.seem_alone:
            self.end.set_timer("alone", now + ALONE_S, anew=False)
        if isinstance(report, (msg.Progress, msg.Weights)):
            self._note_losses(member, report, now)
        if isinstance(report, msg.Saved) and member.id == self.gang.chief:
            self.restarting.note_saved(report.step, now)
        if member.is_core:  # its signs of life say nothing about the gang
            self.silence.note(report, now)
            if self.silence.is_sign(report):
                self._end_stall(now)
        self._react(now)

    def _in_step_with(self, member: Member) -> list[str]:
        """Return the running tasks that take their steps together with `member`, and itself."""
        if not member.trains_in_step:
            return [member.name]
        return [other.name for other in self.gang.running() if other.trains_in_step]

    def froze(self, task: str, attempt: int, signal: int, now: float) -> None:
        """Note that a signal has stopped the task's process."""
        member = self.gang.get(task, attempt)
        if member is not None and member.is_running and self.plan.forms_gang:
            self.gang.put(replace(member, frozen_by=signal))
            self.end.set_timer("frozen", now + FROZEN_S, task)
            self._react(now)

    def thawed(self, task: str, attempt: int) -> None:
        """Note that a stopped process runs again."""
        if (member := self.gang.get(task, attempt)) is not None:
            self.gang.put(replace(member, frozen_by=None))
            self.end.set_timer("frozen", None, task)

    def suspended(self, seconds: float, now: float) -> None:
        """Note that nothing of the run has run for so long, until now; `now` does not count it."""
        self.resumed_at, self.suspended_s = now, seconds
        self.end.record(ev.Suspended(seconds=round(seconds, 1)))

    def node_lost(self, node: str, loss: NodeLoss, now: float) -> None:
        """Note that `node` is lost and reports nothing any more; its guard kills its tasks."""
        self.membership.lost.add(node)
        if self.outcome is not None:
            return
        self.end.record(event_of(node, loss))
        lost = self.gang.lose_node(node, loss, chief_done=self.end.is_finishing)
        needed = [self.gang[task] for task in lost if not self.gang[task].is_cancelled]
        if self.end.stage is Stage.STARTING:
            self.restarting.lose_start(loss_of(self.plan, node, node, loss), now)
        elif self.plan.forms_gang and any(map(_ends_attempt, needed)):
            self.end.end_gang("a node is lost", now)
        for task in lost:
            self.restarting.revive(task, now)
        self._react(now)

    def new_nodes_unreached(self, losses: Mapping[str, NodeLoss], now: float) -> None:
        """Note that the first start cannot connect to nodes.

        If one is known to be lost and the run's job can start again, it does. Else the nodes are
        gone if the gang may start without them, or nothing happens.
        """
        self.restarting.lose_before_start(losses, now)
        self._react(now)

    def node_leaving(self, node: str, loss: NodeLoss, now: float) -> None:
        """Note that `node` is taken away soon: its tasks save, the next attempt uses another.

        Until then it answers. Its tasks count as preempted, whatever they do in the time that is
        left, unless it is known to be lost in another way. A run before its first attempt has its
        job start again; ignored while no task trains later.
        """
        end = self.end
        if self.outcome is None and end.stage is Stage.STARTING and self.restarting.can_come_back:
            lost = loss_of(self.plan, node, node, loss)
            lost = replace(lost, observed=kind_of_leaving(loss.nature))
            self.restarting.lose_start(lost, now)
        elif self.outcome is None and end.is_training:
            leaving = [member for member in self.gang.running() if member.node == node]
            kind = kind_of_leaving(loss.nature)
            for member in leaving:
                self.gang.blame(member, kind, loss.reason, loss=loss.nature)
            if self.plan.forms_gang and any(map(_ends_attempt, leaving)):
                end.end_gang(f"{node} is leaving", now, grace_s=None)
                leaving = [m for m in leaving if _ends_attempt(m) and not m.is_core]
            blamed = [self.gang[member.name] for member in leaving]
            end.stop_tasks(blamed, f"{node} is leaving", now, grace_s=None)
        self._react(now)

    def patience_s(self, node: str) -> float:
        """Return for how long, in seconds, the next start tries to reach a lost node on which
        nothing lives any more."""
        has_lease = self.plan.node(node).capabilities.has_lease
        return REACH_S if has_lease and not self.restarting.can_do_without(node) else 0.0

    def lost_node_unreached(self, node: str, loss: NodeLoss, now: float) -> None:
        """Note that the next start has not reached a lost node, on which nothing lives any more.

        That is a failed attempt: if another one is left, it tries again. The node is gone for good
        if none is, or if the run can go on without it.
        """
        restarting = self.restarting
        if restarting.can_do_without(node) or not restarting.reach_again(node, loss, now):
            restarting.lose_for_good(node, loss, now)
        self._react(now)

    def node_gone(self, node: str, loss: NodeLoss, now: float) -> None:
        """Note that a lost node is gone for good: none of its tasks can still run."""
        self.restarting.lose_for_good(node, loss, now)
        self._react(now)

    def node_back(self, node: str, now: float) -> None:
        """Note that a lost node has a new agent, which could start tasks.

        Those that the gang left out with the node start when the gang grows.
        """
        self.restarting.take_back(node, now)
        self._react(now)

    def scale_to(self, workers: int, now: float) -> str:
        """Restart the gang with this number of workers; return a sentence about it.

        If it is being restarted already, the next gang has them. Raises UsageError.
        """
        answer = self.restarting.scale_to(workers, now)
        self._react(now)
        return answer

    def checkpoint_gathered(self, step: int | None, now: float, *, name: str | None = None) -> None:
        """Note that a checkpoint of the present attempt is in the run folder."""
        self.restarting.note_gathered(step, name, now)
        self._react(now)

    def all_checkpoints_gathered(self, newest: Newest, now: float) -> None:
        """Decide about a restart: all of the chief's checkpoints are now in the run folder."""
        if self.end.stage is Stage.GATHERING:
            self.restarting.budgets.note_all_gathered(newest)
            self.restarting.restart_gang(now)
            self._react(now)

    def links_probed(self, lost: Mapping[str, str], now: float) -> None:
        """Note the result of probing the links; `lost`: node → how it is cut off."""
        if not lost and all(failure.is_collateral for failure in self.gang.failures):
            nodes = {member.name: member.node for member in self.gang}
            lost = find_missed_heartbeats(self.gang.failures, nodes)
        for node, description in lost.items():
            on_node = (member for member in self.gang.core() if member.node == node)
            if member := next((m for m in on_node if not (m.restarts_alone or m.is_ok)), None):
                self.gang.blame(member, Kind.LINK_LOST, description)
        if lost and self.end.is_training:
            self.end.end_gang("the link between hosts is lost", now)
        self._react(now)

    def stacks_asked(self, last_output: float, now: float) -> None:
        """Note that tasks are asked for their stacks, and when any task last wrote before."""
        self.silence.note_stacks(last_output, now, now + STACKS_WAIT_S)

    def stacks_taken(self, task: str, attempt: int, report: msg.Stacks, now: float) -> None:
        """Note the stacks of a task, in answer to `AskForStacks`: where it is.

        Once all have answered, it is judged what that means.
        """
        if self.gang.get(task, attempt) is None:
            return
        if self.positions is not None and task in self.positions:
            self.positions[task] = stalls.position_of(report.threads, silence=report.silence)
            self.load = max(self.load, report.load)
            if None not in self.positions.values():
                self._judge_positions(now)
        self._react(now)

    def logs_read(self, last_output: float, last_lines: Mapping[str, str], now: float) -> None:
        """Note when any task last wrote, on the inputs' clock, and the last lines asked for.

        That is asked for where a start or a silence takes too long.
        """
        core, start = self.gang.core(), self.end.timers.get(("start", ""))
        if start is not None and start <= now:
            limit_s, absent = self.end.policy.start_deadline_s, self.absent
            self.end.act_on(verdicts.blame_missing(core, limit_s, last_lines, now, absent), now)
        elif self.end.has_timer("stall"):
            self.silence.note_output(last_output)
            due, since = self.silence.deadline(self.end.policy), self.silence.heard_at
            is_due = due is not None and due <= now
            if is_due and since is not None and any(member.is_running for member in core):
                stall = self.silence.stall
                self.end.act_on(verdicts.blame_stalled(core, now - since, stall), now)
        self._react(now)

    def peers_dialled(self, absent: Sequence[str]) -> None:
        """Note which tasks started elsewhere cannot be reached, each with the reason."""
        self.absent = tuple(absent)

    def stop(self, stop: StopRequest, now: float) -> None:
        """Stop the run on request; a second request kills its tasks at once."""
        before = self.end.ending
        self.gang.is_announced |= stop.is_announced
        if before is None or before.status is not Status.INTERRUPTED:
            reason = self.silence.describe_stall(now)
            outcome = Outcome(Status.INTERRUPTED, stop.exit_code, reason=reason)
            self.end.end_run(stop.why, outcome, now, grace_s=0.0 if stop.now else None)
        elif not stop.is_announced:
            self.end.end_run(f"{stop.why} again, killing the tasks", before, now, grace_s=0.0)
        self._react(now)

    def tick(self, now: float) -> None:
        """Act on the timers that are due, earliest first, but for those that one of them ends."""
        timers = self.end.timers
        for at, timer in sorted((at, timer) for timer, at in timers.items() if at <= now):
            if self.end.timers.get(timer) == at:
                del self.end.timers[timer]
                self._act_on_timer(*timer, now)
        self._react(now)

    # -- reactions ------------------------------------------------------------------------------

    def _react(self, now: float) -> None:
        """React to an input: every input ends with this."""
        if self.end.outcome is not None:
            return
        self._blame_suspension(now)
        self._probe_links_once()
        if self.end.next_attempt is None:
            if self.end.is_training and not self.end.has_timer("stacks"):
                self._follow(self.gang.judge(), now)
            if self.end.is_training:
                self._set_deadlines()
            self.end.enter_next_stage()
        self.end.watch_agents()

    def _blame_suspension(self, now: float) -> None:
        """Blame the end of a suspension if tasks take each other for dead soon after it."""
        failures = self.gang.failures
        if self.resumed_at is None or now > self.resumed_at + AFTER_SUSPENSION_S or not failures:
            return
        if self.plan.forms_gang and all(failure.is_collateral for failure in failures):
            description = (
                f"the run was suspended for {self.suspended_s:.0f} s, and its tasks then took each"
                " other for dead"
            )
            self.gang.blame(self.gang[failures[0].task], Kind.SUSPENDED, description)

    def _probe_links_once(self) -> None:
        """Have the links between nodes probed if tasks failed but none by itself.

        This happens once per attempt and at once: the links may work again soon.
        """
        failures = self.gang.failures
        if not failures or self.has_probed_links or not self.plan.forms_gang:
            return
        if task_network.can_break(self.plan) and all(
            failure.is_collateral or failure.kind is Kind.LATE for failure in failures
        ):
            self.has_probed_links = True
            self.end.orders.append(ProbeLinks(self.gang.number))

    def _follow(self, next_step: Next, now: float) -> None:
        if next_step is not self.end.next_step:  # the timers of the earlier step no longer apply
            self.end.next_step = next_step
            for kind in ("cause", "late", "finishing", "positions"):
                self.end.set_timer(kind, None)
            self.positions = None  # those that were asked for because of a silence
            if self.end.is_finishing and self.end.policy.finish_grace_s > FINISHING_S:
                self.end.set_timer("finishing", now + FINISHING_S)
        match next_step:
            case Next.FAIL if verdicts.leaves_preempted(self.gang.core()):
                self.end.set_timer("cause", now + self.end.policy.grace_s, anew=False)
            case Next.FAIL:
                self.end.end_gang("another task failed", now)
            case Next.AWAIT_CAUSE if frozen := self.gang.frozen():
                self.end.act_on(verdicts.blame_frozen(frozen[0]), now)
            case Next.AWAIT_CAUSE:
                self.end.set_timer("cause", now + CAUSE_WAIT_S, anew=False)
            case Next.DESERTED:
                wait_s = verdicts.deserted_grace_s(self.plan, self.gang.core())
                self.end.set_timer("late", now + wait_s, anew=False)
            case Next.FINISH:
                self._finish(now)
            case Next.FAILED if self.gang.failures and self.plan.forms_gang:
                self.gang.explain_lone_work()
                self.end.end_gang("all have ended", now)
            case Next.SUCCEED | Next.FAILED:
                self.end.set_outcome(next_step)

    def _finish(self, now: float) -> None:
        # What has not started is not needed after the chief's success, and is no failure.
        is_needless = self.gang.needless()
        self.restarting.cancel(
            lambda m: (
                (m.is_core or (m.id.serves_data and is_needless(m)))
                and (m.is_restart_due or m.is_to_start)
            )
        )
        if (next_step := self.gang.judge()) is not Next.FINISH:
            self._follow(next_step, now)
            return
        self.end.stop_tasks(self.gang.idle(), "the chief has finished", now)
        chief = self.gang.chief_member
        for member in self.gang.done_evaluators(self._last_step):
            if member.follows and chief is not None and chief.saved_step is not None:
                self.end.stop_tasks([member], "it has evaluated the last checkpoint", now)
            else:
                self.end.set_timer("satisfied", now + EVALUATOR_S, member.name, anew=False)
        if not any(member.is_core and member.is_awaited for member in self.gang.distinct):
            self.end.set_timer("late", now + self.end.policy.finish_grace_s, anew=False)

    def _set_deadlines(self) -> None:
        """Set the start and stall deadlines anew; while a run finishes, `finish_grace_s` counts."""
        self.end.set_timer("hint", self._hint_due())
        goes_on, silence = self.end.next_step is Next.GO_ON, self.silence
        if goes_on and self.end.has_timer("stacks"):
            return
        is_explained = self.positions is None  # else the tasks' stacks are awaited
        self.end.set_timer(
            "quiet", silence.stall_due(self.end.policy) if goes_on and is_explained else None
        )
        is_limited = goes_on and self.plan.forms_gang
        self.end.set_timer("start", self._start_due() if is_limited else None)
        self.end.set_timer(
            "stall", silence.deadline(self.end.policy) if is_limited and is_explained else None
        )

    def _hint_due(self) -> float | None:
        """Return when to say how a script reports its progress; None if it does, or still waits."""
        is_waiting = self.end.next_step is not Next.GO_ON or self.gang.waits_since is not None
        if is_waiting or not self.plan.hooks or self.plan.kind == "tuner":
            return None
        return self.silence.hint_due

    def _start_due(self) -> float | None:
        """Return when the start counts as failed; None while no task waits for its peers.

        Only tasks that wait now count: the wait of a task that was restarted alone begins again.
        """
        since = self.gang.waits_since
        if since is None or any(m.has_searched and m.is_core for m in self.gang.distinct):
            return None  # a tuner that joins after the search waits until the run is over
        return since + self.end.policy.start_deadline_s

    def _act_on_timer(self, kind: str, task: str, now: float) -> None:
        """Act on a timer that is due."""
        member = self.gang.get(task)
        match kind:
            case "agents":
                for node in dict.fromkeys(m.node for m in self.gang if m.is_overdue(now)):
                    self.end.orders.append(DropNode(node))
                    self.node_lost(node, NodeLoss("its agent does not answer"), now)
            case "run" if self.end.ending is None:
                stall = self.silence.describe_stall(now)
                deadline_s = self.end.policy.run_deadline_s or 0.0
                outcome = verdicts.run_deadline_outcome(deadline_s, stall, self.end.run_id)
                self.end.end_run("run_deadline_s has passed", outcome, now, grace_s=None)
            case "start":
                missing = verdicts.find_missing(self.gang.core(), self.absent)
                self.end.orders.append(ReadLogs(tuple(member.name for member in missing)))
            case "stall":
                self.end.orders.append(ReadLogs())
            case "quiet":
                self._ask_positions(now)
            case "positions":
                self._judge_positions(now)
            case "alone":
                self.end.record_all(self.alerts.of_lone_training())
            case "hint":
                self.silence.is_heard = True
                self.end.record(ev.Hint(message=self.silence.hint))
            case "stacks" if self.end.ending is not None:
                self.end.end_run(self.end.why_end, self.end.ending, now)
            case "stacks":
                self.end.end_gang(self.end.why_end, now)
            case "restart" if member is not None:
                self.restarting.restart_alone(member)
            case "frozen" if member is not None and member.is_running:
                if not (
                    self.end.is_finishing or member.is_stopping or self.end.has_timer("stacks")
                ):
                    self.end.act_on(verdicts.blame_frozen(member), now)
            case _:
                self._act_on_verdict_timer(kind, member, now)

    def _act_on_verdict_timer(self, kind: str, member: Member | None, now: float) -> None:
        """Act on a timer that `_follow` has set."""
        core = self.gang.core()
        match kind, self.end.next_step:
            case "cause", Next.FAIL:
                self.end.end_gang("it did not leave with the others", now)
            case "cause", _ if self.gang.explain_lone_work():
                self._react(now)
            case "cause", _:
                is_part = bool(self.plan.elsewhere)
                self.end.act_on(verdicts.blame_survivors(core, is_part=is_part), now)
            case "late", Next.DESERTED:
                self.end.act_on(verdicts.blame_deserted_chief(core), now)
            case "late", _:
                self._ask_positions(now)
            case "finishing", _:
                if waits := [member.name for member in self.gang.active()]:
                    left_s = self.end.policy.finish_grace_s - FINISHING_S
                    self.end.record(ev.Finishing(tasks=waits, left_s=left_s))
            case "satisfied", _:
                done = [m for m in self.gang.done_evaluators(self._last_step) if m is member]
                self.end.stop_tasks(done, "it has evaluated the last checkpoint", now)

    def _ask_positions(self, now: float) -> None:
        """Have all stacks taken: too much time has passed without a step, or an end."""
        self.positions, self.load = dict.fromkeys(self.end.take_stacks()), 0.0
        if self.positions:
            self.end.set_timer("positions", now + STACKS_WAIT_S)
        else:
            self._judge_positions(now)

    def _judge_positions(self, now: float) -> None:
        asked, self.positions = self.positions or {}, None
        self.end.set_timer("positions", None)
        positions = {
            task: position or Position(Activity.UNKNOWN) for task, position in asked.items()
        }
        if self.end.is_finishing and self.end.is_training:
            self._end_late(positions, now)
        elif self.end.next_step is Next.GO_ON:
            policy, load = self.end.policy, self.load
            stalled = self.silence.judge(positions, self.gang, policy, load, now)
            self.end.record(stalled)
            if stalled is not None and self.end.is_training and not self.gang.is_announced:
                self._end_deserted(positions, now)

    def _end_deserted(self, positions: Mapping[str, Position], now: float) -> None:
        """End the attempt if a task is in `fit` and waits for one that has left its script.

        On JAX such a task does not end with 0: at its exit it waits five minutes for the others.
        """

        def find(activity: Activity) -> list[Member]:
            found = (self.gang[task] for task, at in positions.items() if at.activity is activity)
            return [member for member in found if member.trains_together and member.trains_in_step]

        waiting = [member for member in find(Activity.IN_STEP) if positions[member.name].is_in_fit]
        if (left := find(Activity.EXITS)) and waiting:
            place = positions[waiting[0].name].place
            blamed, reason, known = explain_lone_work(waiting[0], left, place, is_in_fit=True)
            if blamed not in left:  # they did their part: the other may train alone
                return
            kind = Kind.PERMANENT if blamed.raised is None else Kind.LATE
            self.gang.blame(blamed, kind, reason, known=known)
            self.end.end_gang(f"{blamed.name} has left its script", now)

    def _end_late(self, positions: Mapping[str, Position], now: float) -> None:
        """Stop all tasks that still run `finish_grace_s` after the chief's success.

        A worker that still works independently makes the run fail: its work is interrupted. So does
        one that waits in a collective with steps left; the task that left too early is to blame.
        """
        grace_s, unfinished = self.end.policy.finish_grace_s, self.gang.unfinished()
        description = f"it had not finished {grace_s:g} s after the chief and was stopped"
        for member in unfinished:
            self.gang.blame(member, Kind.UNFINISHED, description)
        late = [m for m in self.gang.active(lambda m: not m.serves) if m.failure is None]
        where = {task: position.place for task, position in positions.items()}
        in_step = {t for t, position in positions.items() if position.activity is Activity.IN_STEP}
        waiting = [
            member
            for member in late
            if member.name in in_step and member.trains_in_step
            if member.frozen_by is None and not member.is_done
        ]
        finished = self.gang.finished()
        for member in waiting:
            blamed, reason, known = explain_lone_work(member, finished, where[member.name])
            if self.gang[blamed.name].failure is None:
                self.gang.blame(blamed, Kind.PERMANENT, reason, known=known)
        others = [member for member in late if member not in waiting]
        for warning in verdicts.warn_about_late(others, grace_s, self._last_step, where):
            self.end.warn(warning)
        self.restarting.cancel(lambda member: member.may_run and not member.is_running)
        self.end.stage = Stage.ENDING_RUN  # the exits decide the outcome
        self.end.stop_tasks(self.gang.running(), "the others have ended", now)

    @property
    def _last_step(self) -> int | None:
        """The step of the last checkpoint, which may be reported but not yet gathered."""
        chief = self.gang.chief_member
        steps = (self.restarting.budgets.newest.step, chief.saved_step if chief else None)
        return max((step for step in steps if step is not None), default=None)

    def _end_stall(self, now: float) -> None:
        """Record that the run goes on, if it is stalled: a task has reported work or has ended."""
        if self.end.is_training:
            self.end.record(self.silence.end_stall(now))

    def _note_losses(self, member: Member, report: msg.Progress | msg.Weights, now: float) -> None:
        """Record that a loss has become NaN or infinite; with `stop_on_nan` that ends the run."""
        losses = self.alerts.losses
        alert = losses.note(member.name, member.attempt, report, together=member.trains_in_step)
        if alert is None:
            return
        self.end.record(alert)
        if losses.since and self.end.policy.stop_on_nan and self.end.is_training:
            self.gang.blame(member, Kind.DIVERGED, alert.message)
            cause = self.gang[member.name].failure or self.end.cause()
            self.end.fail_run(cause, "stop_on_nan is set", now)


def _ends_attempt(member: Member) -> bool:
    """Return whether the loss of the member's node ends the attempt.

    With the node of a dispatcher its journal is lost, which says what each task is to read.
    """
    return member.is_core or member.id.job == "data_dispatcher"
