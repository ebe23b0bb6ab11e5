"""Restarts the gang or single tasks, with fewer workers or more: decides it, and orders it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tfcluster.checkpoints.recognition import Newest
from tfcluster.errors import UsageError, join_first
from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import restart_policy, verdicts
from tfcluster.supervision.decisions import Next, NextAttempt, Outcome, StartAlone
from tfcluster.supervision.endings import AttemptEnd, Stage
from tfcluster.supervision.failure import Failure, Kind, kind_of_loss
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.member import Member
from tfcluster.supervision.membership import Absence, Membership, count_of
from tfcluster.supervision.restart_policy import GiveUp, Restart, Restarts

NODE_GONE = GiveUp("its node is gone for good", exhausted=True)
REACH_S: Final = 60.0
"""The time in which an attempt tries to reach a node on which nothing lives any more."""


@dataclass(slots=True)
class Restarter:
    """The restarts of a run: which attempt follows, and which tasks it has."""

    plan: Plan
    gang: Gang
    end: AttemptEnd
    jitter: Callable[[], float] = field(compare=False)
    """Returns a random number for `restart_policy.decide`."""
    budgets: Restarts = field(init=False)
    membership: Membership = field(init=False)
    gone: dict[str, NodeLoss] = field(default_factory=dict)
    """Nodes that are gone for good → why."""
    planned: str = ""
    """The reason why the gang is being restarted although nothing failed; empty if it is not."""
    gathers: bool = True
    """True if checkpoints are gathered while the tasks train."""
    can_come_back: bool = False
    """True if the run's job can go back into the queue of its scheduler, which gives it other
    nodes."""

    def __post_init__(self) -> None:
        self.budgets, self.membership = Restarts(self.plan), Membership(self.plan)

    def begin(self) -> None:
        """Note that an attempt of the gang begins."""
        self.budgets.begin()
        self.planned = ""

    def note_saved(self, step: int | None, now: float) -> None:
        """Note that the chief has saved."""
        self.budgets.note_saved(step)
        if not self.gathers:
            self._grow(now)

    def note_gathered(self, step: int | None, name: str | None, now: float) -> None:
        """Note that a checkpoint of the present attempt is in the run folder."""
        self.budgets.note_gathered(step, name)
        self._grow(now)

    # -- the gang -------------------------------------------------------------------------

    def restart_gang(self, now: float) -> None:
        """Restart the gang or give up, once all have ended and the checkpoints are gathered."""
        if self.planned and not self.gang.failures:
            self._order_planned(now)
            return
        self.planned = ""
        cause = self.end.cause()
        progress = [member.progress for member in self.gang.core()]
        step = max((step for step in progress if step is not None), default=None)
        decision = self.budgets.decide(None, cause, step=step, jitter=self.jitter)
        if isinstance(decision, GiveUp):
            self._give_up(cause, decision, now)
            return
        self.membership.take_back(self.membership.due_to_join(now), now)  # it restarts anyway
        if (loss := self._find_needed_loss(self.gone)) is not None:
            self._give_up(loss, NODE_GONE, now, decision)
        else:
            self.end.diagnose()
            self._order_gang(_reason_of(cause), now, decision)

    def _give_up(
        self, cause: Failure, give_up: GiveUp, now: float, restart: Restart | None = None
    ) -> None:
        """Start a smaller gang without the lost tasks if it is large enough, else fail.

        A run whose scheduler can give it another node waits for that instead of failing. `restart`
        allows that restart, unless one is recorded already.
        """
        self.planned, before = "", self.membership.members
        members = restart_policy.without(self.plan, before, cause, give_up)
        if members is None and give_up is NODE_GONE and self.can_come_back:
            if restart is not None:
                self._record(None, _reason_of(cause), restart, attempt=self.gang.attempt + 1)
            self._requeue(cause.node, now)
        elif members is None:
            self.end.fail_run(cause, give_up.reason, now)
        else:
            self.end.diagnose(give_up.reason, cause)
            absence = Absence.NODE if cause.kind is Kind.NODE_LOST else Absence.FAILED
            self.membership.leave_out(
                [task for task in before if task not in members], absence, now
            )
            self._order_gang(_reason_of(cause), now)

    def _order_gang(self, reason: str, now: float, restart: Restart | None = None) -> None:
        """Order the next attempt; without a `restart` it does not count, as for a smaller gang."""
        if restart is None:
            restart = Restart(
                self.end.policy.backoff_s, self.budgets.history(None), is_counted=False
            )
        on_gone = [t for t in self.membership.members if self.plan.task(t).node in self.gone]
        self.membership.leave_out(on_gone, Absence.NODE, now)
        members, number = self.membership.members, self.gang.attempt + 1
        self.end.next_attempt = NextAttempt(
            number, members, restart.delay_s, restart.fresh_ports, reason
        )
        fewer = members if len(members) < len(self.plan.tasks) else None
        self._record(None, reason, restart, attempt=number, members=fewer)

    def _record(
        self,
        unit: TaskId | None,
        reason: str,
        restart: Restart,
        *,
        attempt: int,
        members: tuple[TaskId, ...] | None = None,
    ) -> None:
        """Record a restart; `members` is set where the gang is smaller than in the spec."""
        resumes = unit is None or not unit.serves_data
        newest = self.budgets.newest if resumes else Newest()
        event = ev.Restarting(
            task=str(unit) if unit else None,
            reason=reason,
            attempt=attempt,
            of=restart_policy.last_attempt(attempt, restart.history, self.end.policy),
            from_step=newest.step,
            from_checkpoint=newest.name if newest.step is None else None,
            delay_s=round(restart.delay_s, 3),
            members=tuple(map(str, members)) if members is not None else None,
            counts=None if restart.is_counted else False,
            planned=True if unit is None and self.planned else None,
        )
        self.end.record(event)

    # -- one task -------------------------------------------------------------------------

    def revive(self, task: str, now: float) -> None:
        """Schedule a restart of `task` alone if it has failed and is still needed."""
        member = self.gang[task]
        failure = member.failure
        if failure is None or member.is_restart_due or not self._is_needed(member):
            return
        decision: GiveUp | Restart = NODE_GONE
        if member.node not in self.gone:
            step, jitter = member.progress, self.jitter
            decision = self.budgets.decide(member.id, failure, step=step, jitter=jitter)
        if isinstance(decision, GiveUp):
            others = [m for m in self.gang if m.id.job == member.id.job and m.may_run]
            if member.id.serves_data and not others:
                self.end.fail_run(failure, decision.reason, now)
            else:
                self.end.warn(f"{task} is not restarted: {decision.reason}")
            return
        self.gang.put(replace(member, is_restart_due=True))
        if self.end.is_training:
            self.end.set_timer("restart", now + decision.delay_s, task)
        self._record(member.id, failure.reason, decision, attempt=member.attempt + 1)

    def _is_needed(self, member: Member) -> bool:
        """Return whether a task that has failed is needed again while the run goes on.

        What is not in the gang is needed as long as the run goes on: a task that fails while the
        gang is being stopped starts again together with it.
        """
        if not member.restarts_alone or not member.is_over or member.is_cancelled:
            return False
        if member.is_core:
            return self.end.is_training and not self.end.is_finishing
        starts_with_gang = member.is_lost and not self.end.is_training
        return self.end.stage is not Stage.ENDING_RUN and not starts_with_gang

    def restart_alone(self, member: Member) -> None:
        """Restart `member` now that its delay is over."""
        if member.node in self.gone:
            self.gang.put(replace(member, is_restart_due=False))
        else:
            renewed = self.gang.renew(member)
            self.end.orders.append(StartAlone(renewed.id, renewed.attempt))

    def cancel(self, fits: Callable[[Member], bool]) -> None:
        """Cancel the starts and restarts of the tasks that fit; see `Gang.members`."""
        for member in self.gang.members(fits):
            self.gang.put(replace(member, is_restart_due=False, is_cancelled=True))
            self.end.set_timer("restart", None, member.name)

    # -- lost nodes -----------------------------------------------------------------------

    def lose_for_good(self, node: str, loss: NodeLoss, now: float) -> None:
        """Go on without a lost node: none of its tasks can still run."""
        self.gone[node] = loss
        self.membership.lost.add(node)
        if self.end.next_attempt is None:
            self.gang.lose_node(node, loss)
        elif self.membership.uses(node):  # the next gang may do without it
            if (failure := self._find_needed_loss(self.gone)) is not None:
                self._give_up(failure, NODE_GONE, now)
            else:
                self._order_gang(self.end.next_attempt.reason, now)

    def lose_before_start(self, losses: Mapping[str, NodeLoss], now: float) -> None:
        """Act on nodes that the first start cannot connect to, if its job can start again.

        They are lost if earlier coordinators have reached them, or if a backend says so of one.
        Otherwise the spec or the environment may be wrong, which the job's next start would not
        change. A gang that is large enough starts without them.
        """
        is_known = any(loss.nature is not LossNature.UNKNOWN for loss in losses.values())
        if self.can_come_back and (is_known or self.gang.number > 0):
            for node, loss in losses.items():
                self.end.record(event_of(node, loss))
            failures = [loss_of(self.plan, node, node, loss) for node, loss in losses.items()]
            self.lose_start(max(failures, key=lambda failure: failure.is_own_end), now)
        else:
            self._start_without(losses, now)

    def can_do_without(self, node: str) -> bool:
        """Return whether the run can go on at once without a lost node: with fewer tasks, or
        because its scheduler gives it another node."""
        if self.can_come_back or self.end.next_attempt is None:
            return self.can_come_back
        loss, members = self._find_needed_loss({node: NodeLoss("")}), self.membership.members
        return (
            loss is None or restart_policy.without(self.plan, members, loss, NODE_GONE) is not None
        )

    def reach_again(self, node: str, loss: NodeLoss, now: float) -> bool:
        """Restart what needs a node that was not reached; return False if the node is given up.

        The attempt that could not reach it counts against the budget of the gang, or of the tasks
        that restart alone.
        """
        if self.end.next_attempt is None:
            for task in self.gang.lose_node(node, loss):
                self.revive(task, now)
            return any(member.is_restart_due for member in self.gang if member.node == node)
        failure = self._find_needed_loss({node: loss})
        assert failure is not None
        self.budgets.begin()  # that attempt has not advanced
        decision = self.budgets.decide(None, failure, step=None, jitter=self.jitter)
        if isinstance(decision, GiveUp):
            self.end.fail_run(failure, decision.reason, now)
        else:
            self._order_gang(_reason_of(failure), now, decision)
        return True

    def lose_start(self, loss: Failure, now: float) -> None:
        """Have the run's job start again, which gives it all nodes anew, or fail.

        To be called for a node that is lost before the first attempt here.
        """
        decision: GiveUp | Restart = GiveUp("")
        if loss.is_own_end:
            decision = GiveUp("it would fail the same way")
        elif self.can_come_back:
            decision = self.budgets.decide(None, loss, step=None, jitter=self.jitter)
        if isinstance(decision, GiveUp):
            self.end.end_once_stopped(verdicts.outcome_of_start(loss, decision.reason))
        else:
            self._record(None, _reason_of(loss), decision, attempt=self.gang.number + 1)
            self._requeue(loss.node, now)

    def _requeue(self, node: str, now: float) -> None:
        """End this start of the run; its job goes back into the queue of its scheduler."""
        reason = f"another node in the place of {node}, which is lost"
        outcome = Outcome(Status.INTERRUPTED, 1, comes_back=reason)
        self.end.end_run(f"it needs {reason}", outcome, now, grace_s=None)

    def _find_needed_loss(self, lost: Mapping[str, NodeLoss]) -> Failure | None:
        """Return the failure of a task that the gang needs but whose node is `lost`, or None."""
        for task in self.membership.members if lost else ():
            node = self.plan.task(task).node
            loss = lost.get(node)
            if loss is not None and not restart_policy.restarts_alone(self.plan, task):
                failure = loss_of(self.plan, node, str(task), loss)
                return replace(failure, attempt=self.gang.number)
        return None

    # -- fewer workers, and more ----------------------------------------------------------

    def take_back(self, node: str, now: float) -> None:
        """Note that a lost node could start tasks; the gang takes them in when it grows."""
        self.gone.pop(node, None)
        self.membership.lost.discard(node)
        if self.end.outcome is None and (tasks := self.membership.left_out_on(node)):
            grows_at = self.membership.grows_at(node)
            joins_in_s = None if grows_at is None else round(max(0.0, grows_at - now), 1)
            names = [str(task) for task in tasks]
            self.end.record(ev.NodeBack(node=node, tasks=names, joins_in_s=joins_in_s))

    def scale_to(self, workers: int, now: float) -> str:
        """Restart the gang with this number of workers; see `Supervisor.scale_to`."""
        end = self.end
        self.membership.check_plan(workers)
        if end.stage is Stage.STARTING:
            raise UsageError("its tasks have not started yet", fix="try again once they run")
        if end.outcome is not None or end.stage is Stage.ENDING_RUN or end.is_finishing:
            raise UsageError("it is ending", fix="start it again with another number of workers")
        self.membership.check_nodes(workers)
        answer = self.membership.describe_request(workers)
        has_changed = self.membership.resize(workers, now)
        if has_changed and (end.is_training or end.next_attempt is not None):
            self._restart_as_planned(f"scaling to {count_of(workers)}", now)
        return answer

    def _grow(self, now: float) -> None:
        """Restart the gang with the tasks whose nodes are back, if it is time for that.

        To be called when a checkpoint of the attempt was saved: the restart costs little then.
        """
        is_at_work = (
            self.end.is_training and self.end.outcome is None and self.end.next_step is Next.GO_ON
        )
        if not is_at_work or self.end.next_attempt is not None or self.end.has_timer("stacks"):
            return
        joining = [task for task in self.membership.due_to_join(now) if task.trains]
        if joining and not self.gang.is_nearly_over:
            names = join_first(joining)
            verb, count = "is" if len(joining) == 1 else "are", len(self.membership.workers)
            reason = f"{names} {verb} back: growing to {count_of(count + len(joining))}"
            self._restart_as_planned(reason, now)

    def _restart_as_planned(self, reason: str, now: float) -> None:
        """Restart the gang although nothing has failed: its tasks may save before they stop."""
        self.planned = reason
        if self.end.next_attempt is not None:
            self._order_gang(reason, now, self._uncounted_restart())
        else:
            self.end.end_gang(reason, now, grace_s=None)

    def _order_planned(self, now: float) -> None:
        """Order the planned restart, unless the chief has finished before it was asked to stop."""
        chief = self.gang.chief_member
        if (
            chief is not None
            and chief.is_ok
            and chief.exit is not None
            and chief.exit.ended_by == "itself"
        ):
            self.end.stage = Stage.TRAINING  # which ends now, as the chief has succeeded
            return
        self.membership.take_back(self.membership.due_to_join(now), now)
        if (loss := self._find_needed_loss(self.gone)) is not None:
            self._give_up(loss, NODE_GONE, now)
        else:
            self._order_gang(self.planned, now, self._uncounted_restart())

    def _uncounted_restart(self) -> Restart:
        """Return a restart that nothing failed for: without delay, and not counted."""
        return Restart(0.0, self.budgets.history(None), is_counted=False)

    def _start_without(self, nodes: Mapping[str, NodeLoss], now: float) -> None:
        """Leave the tasks of `nodes`, which the first start has not reached, out of the gang.

        Nothing happens if it would be too small, or a node has other tasks than workers.
        """
        lost = {task.id for task in self.plan.tasks if task.node in nodes}
        members = restart_policy.remaining(self.plan, self.membership.members, lost)
        if members is None or any(not task.trains for task in lost):
            return
        for node, loss in nodes.items():
            self.gone[node] = loss
            self.membership.lost.add(node)
            self.end.record(event_of(node, loss))
        self.membership.leave_out(lost, Absence.NODE, now)
        names, count = join_first(sorted(lost)), len(self.membership.workers)
        start = f"starting with {count} of {count_of(count + len(lost))}, without {names}"
        self.end.warn(f"{start}: {join_first([*nodes])} cannot be reached")


def loss_of(plan: Plan, node: str, task: str, loss: NodeLoss) -> Failure:
    """Return the failure of `task`, or of a whole node with its name, by the loss of the node."""
    return Failure(
        task,
        None,
        None,
        node=node,
        observed=kind_of_loss(loss.nature),
        description=loss.reason,
        loss=loss.nature,
        backend=plan.node(node).backend,
    )


def event_of(node: str, loss: NodeLoss) -> ev.NodeLost:
    """Return the event of a node's loss."""
    return ev.NodeLost(node=node, reason=loss.reason, nature=loss.nature)


def _reason_of(failure: Failure) -> str:
    return f"{failure.task}: {failure.reason}"
