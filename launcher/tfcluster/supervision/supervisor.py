"""Decides how a run goes on: inputs with their time go in, orders and events come out.

It has no clock, disk or process: the coordinator carries out the orders, and tests replay
histories. The rules: under MultiWorkerMirroredStrategy only the whole gang can be restarted; the
root cause is the first failure that is not a consequence of another; if all failures are
consequences, the task that keeps running is the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tfcluster.agent import catalogue as msg
from tfcluster.checkpoints.completeness import Newest
from tfcluster.errors import UsageError
from tfcluster.node_loss import NodeLoss
from tfcluster.plans.plan import TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import reactions
from tfcluster.supervision.alerts import Losses
from tfcluster.supervision.connectivity import find_missed_heartbeats
from tfcluster.supervision.decisions import Action, Next, Outcome, Stop
from tfcluster.supervision.doubts import warnings_about
from tfcluster.supervision.failure import Kind
from tfcluster.supervision.membership import count_of
from tfcluster.supervision.reactions import react
from tfcluster.supervision.restarts import (
    REACH_S,
    can_do_without,
    grow,
    reach_again,
    restart_as_planned,
    restart_gang,
    restart_smaller_gang,
    revive,
)
from tfcluster.supervision.run_state import STACKS_WAIT_S, RunState, Stage
from tfcluster.supervision.silence import Silence
from tfcluster.supervision.verdicts import FROZEN_S

START_ANSWER_S: Final = 60.0
"""The time after an order in which an agent must report the start of a task; then it is lost."""


@dataclass(slots=True)
class Supervisor(RunState):
    """The state of one run with its inputs: the only owner, which nothing else changes.

    After any input, take the orders and check `next_attempt` and `outcome`.
    """

    @property
    def wake_at(self) -> float | None:
        """The time at which `tick` must be called next, or None."""
        return min(self.timers.values(), default=None)

    def take_orders(self) -> list[Action]:
        """Remove and return the orders since the last call."""
        orders, self.orders = self.orders, []
        return orders

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
        self.gang.number, self.restarts.newest = attempt, newest or Newest()
        self.restarts.carry_over(restarts, last_attempt=attempt)
        if (deadline_s := self.policy.run_deadline_s) is not None:
            self.timers["run"] = now + max(0.0, deadline_s - ran_s)

    def begin(self, number: int, members: tuple[TaskId, ...]) -> list[TaskId]:
        """Begin attempt `number`; return the tasks to start, without an evaluator that runs."""
        to_start = self.gang.enlist(members, number)
        self.verdict = Next.GO_ON
        self.restarts.begin()
        self.stage, self.next_attempt, self.ending = Stage.TRAINING, None, None
        self.planned = ""
        self.silence, self.losses, self.alerts = Silence(), Losses(), {}
        self.positions, self.has_probed_links = None, False
        self.keep_timers("run")
        return to_start

    def order(self, tasks: Iterable[TaskId], attempt: int, now: float) -> list[TaskId]:
        """Return the `tasks` that still must start; their agents must answer in time."""
        requested = set(tasks)
        ordered = [
            member
            for member in (self.gang if self.is_training else ())
            if member.id in requested and member.attempt == attempt and member.is_to_start
        ]
        for member in ordered:
            self.gang.put(replace(member, is_ordered=True, answer_by=now + START_ANSWER_S))
        self.watch_agents()
        return [member.id for member in ordered]

    def started(self, task: str, attempt: int, now: float) -> None:
        """Note that a task has started."""
        if (member := self.gang.get(task, attempt)) is not None:
            member = replace(member, is_ordered=True, started_at=now, answer_by=None)
            self.gang.put(member)
            self.silence.note_start(now)
            if self.must_stop(member):  # the order to start came too late
                self.stop_tasks([member], "the run is ending", now, grace_s=self.grace_if_late_s)
            react(self, now)

    def start_failed(self, task: str, attempt: int, error: str, now: float) -> None:
        """Note that the program of `task` could not be executed."""
        if (member := self.gang.get(task, attempt)) is not None and not member.is_over:
            self.gang.blame(replace(member, is_lost=True), Kind.START_FAILED, error)
            if attempt == self.gang.number:
                self.end_gang("a task cannot start", now)
            else:
                revive(self, task, now)
            react(self, now)

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
        if member is not None and not member.is_over:
            self.gang.note_exit(member, event, error=error, last_lines=last_lines)
            ended = self.gang[event.task]
            if ended.is_ok and event.ended_by == "itself" and not self.gang.is_announced:
                for warning in warnings_about(ended):
                    self.record(ev.Warned(message=warning))
            if member.is_core and ended.is_ok and self.is_training:
                self.silence.note_end(now)
                reactions.end_stall(self, now)
            self.set_timer(f"frozen {event.task}", None)
            revive(self, event.task, now)
            react(self, now)

    def reported(self, task: str, attempt: int, report: msg.TaskReport, now: float) -> None:
        """Note a task's report about itself."""
        if (member := self.gang.get(task, attempt)) is not None:
            self.gang.note_report(member, report, now)
            reactions.note_facts(self, report, now)
            if isinstance(report, (msg.Progress, msg.Weights)):
                reactions.note_losses(self, member, report, now)
            if isinstance(report, msg.Saved) and member.id == self.gang.chief:
                self.restarts.note_saved(report.step)
                if not self.gathers:
                    grow(self, now)
            if member.is_core:  # its signs of life say nothing about the gang
                self.silence.note(task, report, now)
                if self.silence.is_sign(report):
                    reactions.end_stall(self, now)
            react(self, now)

    def froze(self, task: str, attempt: int, signal: int, now: float) -> None:
        """Note that a signal has stopped the task's process."""
        member = self.gang.get(task, attempt)
        if member is not None and member.is_running and self.forms_gang:
            self.gang.put(replace(member, frozen_by=signal))
            self.timers[f"frozen {task}"] = now + FROZEN_S
            react(self, now)

    def thawed(self, task: str, attempt: int) -> None:
        """Note that a stopped process runs again."""
        if (member := self.gang.get(task, attempt)) is not None:
            self.gang.put(replace(member, frozen_by=None))
            self.set_timer(f"frozen {task}", None)

    def suspended(self, seconds: float, now: float) -> None:
        """Note that nothing of the run has run for so long, until now; `now` does not count it."""
        self.resumed_at, self.suspended_s = now, seconds
        self.record(ev.Suspended(seconds=round(seconds, 1)))

    def node_lost(self, node: str, loss: NodeLoss, now: float) -> None:
        """Note that `node` is lost and reports nothing any more; its guard kills its tasks."""
        self.membership.lost.add(node)
        reactions.lose_node(self, node, loss, now)

    def nodes_unreached(self, losses: Mapping[str, NodeLoss], now: float) -> None:
        """Note that the first start cannot connect to nodes.

        If one is known to be lost and the run's job can start again, it does. Else the nodes are
        gone if the gang may start without them, or nothing happens.
        """
        reactions.lose_unreached(self, losses, now)

    def node_leaving(self, node: str, loss: NodeLoss, now: float) -> None:
        """Note that `node` is taken away soon: its tasks save, and the next attempt uses another.

        Until then it answers. A run before its first attempt has its job start again; ignored while
        no task trains later.
        """
        reactions.leave_node(self, node, loss, now)

    def patience_s(self, node: str) -> float:
        """Return for how long, in seconds, the next start tries to reach a lost node on which
        nothing lives any more."""
        has_lease = self.plan.node(node).capabilities.has_lease
        return REACH_S if has_lease and not can_do_without(self, node) else 0.0

    def node_unreached(self, node: str, loss: NodeLoss, now: float) -> None:
        """Note that the next start has not reached a lost node, on which nothing lives any more.

        That is a failed attempt: if another one is left, it tries again. The node is gone for good
        if none is, or if the run can go on without it.
        """
        if can_do_without(self, node) or not reach_again(self, node, loss, now):
            self.node_gone(node, loss, now)
        react(self, now)

    def node_gone(self, node: str, loss: NodeLoss, now: float) -> None:
        """Note that a lost node is gone for good: none of its tasks can still run."""
        self.gone[node] = loss
        self.membership.lost.add(node)
        if self.next_attempt is None:
            self.gang.lose_node(node, loss)
        elif self.membership.uses(node):
            restart_smaller_gang(self, self.next_attempt, now)
        react(self, now)

    def node_back(self, node: str, now: float) -> None:
        """Note that a lost node has a new agent, which could start tasks.

        Those that the gang left out with the node start when the gang grows.
        """
        self.gone.pop(node, None)
        self.membership.lost.discard(node)
        if self.outcome is None and (tasks := self.membership.on_node(node)):
            grows_at = self.membership.grows_at(node)
            joins_in_s = None if grows_at is None else round(max(0.0, grows_at - now), 1)
            names = [str(task) for task in tasks]
            self.record(ev.NodeBack(node=node, tasks=names, joins_in_s=joins_in_s))
        react(self, now)

    def scale_to(self, workers: int, now: float) -> str:
        """Restart the gang with this number of workers; return a sentence about it.

        If it is being restarted already, the next gang has them. Raises UsageError.
        """
        self.membership.check_plan(workers)
        if self.stage is Stage.STARTING:
            raise UsageError("its tasks have not started yet", fix="try again once they run")
        if self.outcome is not None or self.stage is Stage.ENDING_RUN or self.is_finishing:
            raise UsageError("it is ending", fix="start it again with another number of workers")
        self.membership.check_nodes(workers)
        answer = self.membership.describe_request(workers)
        has_changed = self.membership.resize(workers, now)
        if has_changed and (self.is_training or self.next_attempt is not None):
            restart_as_planned(self, f"scaling to {count_of(workers)}", now)
        react(self, now)
        return answer

    def gathered(self, step: int | None, now: float, *, name: str | None = None) -> None:
        """Note that a checkpoint of the present attempt is in the run folder."""
        self.restarts.note_gathered(step, name)
        grow(self, now)
        react(self, now)

    def checkpoints_gathered(self, newest: Newest, now: float) -> None:
        """Decide about a restart: all of the chief's checkpoints are now in the run folder."""
        if self.stage is Stage.GATHERING:
            self.restarts.note_all_gathered(newest)
            restart_gang(self, now)
            react(self, now)

    def links_probed(self, lost: Mapping[str, str], now: float) -> None:
        """Note the result of probing the links; `lost`: node → how it is cut off."""
        if not lost and all(failure.is_collateral for failure in self.gang.failures):
            nodes = {member.name: member.node for member in self.gang}
            lost = find_missed_heartbeats(self.gang.failures, nodes)
        for node, description in lost.items():
            on_node = (member for member in self.gang.core() if member.node == node)
            if member := next((m for m in on_node if not (m.restarts_alone or m.is_ok)), None):
                self.gang.blame(member, Kind.LINK_LOST, description)
        if lost and self.is_training:
            self.end_gang("the link between hosts is lost", now)
        react(self, now)

    def stacks_asked(self, last_output: float, now: float) -> None:
        """Note that tasks are asked for their stacks, and when any task last wrote before."""
        self.silence.note_stacks(last_output, now, now + STACKS_WAIT_S)

    def stacks_taken(self, task: str, attempt: int, report: msg.Stacks, now: float) -> None:
        """Note the stacks of a task, in answer to `TakeStacks`."""
        if self.gang.get(task, attempt) is not None:
            reactions.note_position(self, task, report, now)
            react(self, now)

    def logs_read(self, last_output: float, last_lines: Mapping[str, str], now: float) -> None:
        """Note when any task last wrote, on the inputs' clock, and the last lines asked for."""
        reactions.end_hang(self, last_output, last_lines, now)
        react(self, now)

    def peers_dialled(self, absent: Sequence[str]) -> None:
        """Note which tasks started elsewhere cannot be reached, each with the reason."""
        self.absent = tuple(absent)

    def stop(self, stop: Stop, now: float) -> None:
        """Stop the run on request; a second request kills its tasks at once."""
        before = self.ending
        self.gang.is_announced |= stop.is_announced
        if before is None or before.status is not Status.INTERRUPTED:
            reason = self.silence.describe_stall(now)
            outcome = Outcome(Status.INTERRUPTED, stop.exit_code, reason=reason)
            self.end_run(stop.why, outcome, now, grace_s=0.0 if stop.now else None)
        elif not stop.is_announced:
            self.end_run(f"{stop.why} again, killing the tasks", before, now, grace_s=0.0)
        react(self, now)

    def tick(self, now: float) -> None:
        """Act on the timers that are due, earliest first, but for those that one of them ends."""
        for at, name in sorted((at, name) for name, at in self.timers.items() if at <= now):
            if self.timers.get(name) == at:
                del self.timers[name]
                reactions.act_on_timer(self, name, now)
        react(self, now)
