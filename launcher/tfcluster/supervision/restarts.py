"""Restarts the gang or single tasks: applies the policy to the state of a run, and orders them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tfcluster.errors import join_first
from tfcluster.node_loss import NodeLoss
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import restart_policy
from tfcluster.supervision.decisions import Next, NextAttempt, Outcome, Standing, StartAlone
from tfcluster.supervision.failure import Failure, Kind, kind_of_loss
from tfcluster.supervision.member import Member
from tfcluster.supervision.membership import Absence, count_of
from tfcluster.supervision.restart_policy import TRAINERS, GiveUp, Restart
from tfcluster.supervision.run_state import RunState, Stage

NODE_GONE = GiveUp("its node is gone for good", exhausted=True)
REACH_S: Final = 60.0
"""The time in which an attempt tries to reach a node on which nothing lives any more."""


def restart_gang(state: RunState, now: float) -> None:
    """Restart the gang or give up, once all have ended and the checkpoints are gathered."""
    if state.planned and not state.gang.failures:
        _order_planned(state, now)
        return
    state.planned = ""
    cause = state.cause()
    progress = [member.progress for member in state.gang.core()]
    step = max((step for step in progress if step is not None), default=None)
    verdict = state.restarts.decide(None, cause, step=step, jitter=state.jitter)
    if isinstance(verdict, GiveUp):
        _give_up(state, cause, verdict, now)
        return
    state.membership.take_back(state.membership.due(now), now)  # it restarts anyway
    if (loss := _loss(state, state.gone)) is not None:
        _give_up(state, loss, NODE_GONE, now, verdict)
    else:
        state.diagnose()
        _order_gang(state, _reason_of(cause), now, verdict)


def restart_smaller_gang(state: RunState, next_one: NextAttempt, now: float) -> None:
    """Decide again after a node of the next gang is gone: it may have to do without the node."""
    if (loss := _loss(state, state.gone)) is not None:
        _give_up(state, loss, NODE_GONE, now)
    else:
        _order_gang(state, next_one.reason, now)


def can_do_without(state: RunState, node: str) -> bool:
    """Return whether the run can go on at once without a lost node: with fewer tasks, or because
    its scheduler gives it another node."""
    if state.can_come_back or state.next_attempt is None:
        return state.can_come_back
    loss, members = _loss(state, {node: NodeLoss("")}), state.membership.members
    return loss is None or restart_policy.without(state.plan, members, loss, NODE_GONE) is not None


def reach_again(state: RunState, node: str, why: NodeLoss, now: float) -> bool:
    """Restart what needs a node that was not reached; return False if the node is given up.

    The attempt that could not reach it counts against the budget of the gang, or of the tasks that
    restart alone.
    """
    if state.next_attempt is None:
        for task in state.gang.lose_node(node, why):
            revive(state, task, now)
        return any(one.is_restart_due for one in state.gang if one.node == node)
    loss = _loss(state, {node: why})
    assert loss is not None
    state.restarts.begin()  # that attempt has not advanced
    verdict = state.restarts.decide(None, loss, step=None, jitter=state.jitter)
    if isinstance(verdict, GiveUp):
        state.fail(loss, verdict.why, now)
    else:
        _order_gang(state, _reason_of(loss), now, verdict)
    return True


def grow(state: RunState, now: float) -> None:
    """Restart the gang with the tasks whose nodes are back, if it is time for that.

    To be called when a checkpoint of the present attempt was saved: the restart costs little then.
    """
    is_at_work = state.is_training and state.outcome is None and state.verdict is Next.GO_ON
    if not is_at_work or state.next_attempt is not None or "stacks" in state.timers:
        return
    joining = [task for task in state.membership.due(now) if task.job in TRAINERS]
    if joining and not state.gang.is_nearly_over:
        names = join_first(joining)
        verb, count = "is" if len(joining) == 1 else "are", len(state.membership.workers)
        why = f"{names} {verb} back: growing to {count_of(count + len(joining))}"
        restart_as_planned(state, why, now)


def restart_as_planned(state: RunState, why: str, now: float) -> None:
    """Restart the gang although nothing has failed: its tasks may save before they stop."""
    state.planned = why
    if state.next_attempt is not None:
        _order_gang(state, why, now, _free(state))
    else:
        state.end_gang(why, now, grace_s=None)


def _order_planned(state: RunState, now: float) -> None:
    """Order the planned restart, unless the chief has finished before it was asked to stop."""
    chief = state.gang[str(state.gang.chief)]
    if chief.is_ok and chief.exit is not None and chief.exit.ended_by == "itself":
        state.stage = Stage.TRAINING  # which ends now, as the chief has succeeded
        return
    state.membership.take_back(state.membership.due(now), now)
    if (loss := _loss(state, state.gone)) is not None:
        _give_up(state, loss, NODE_GONE, now)
    else:
        _order_gang(state, state.planned, now, _free(state))


def _free(state: RunState) -> Restart:
    """Return a restart that nothing failed for: without delay, and not counted."""
    return Restart(0.0, state.restarts.history(None), is_counted=False)


def _loss(state: RunState, lost: Mapping[str, NodeLoss]) -> Failure | None:
    """Return the failure of a task that the gang needs but whose node is `lost`, or None."""
    for task in state.membership.members if lost else ():
        node = state.plan.task(task).node
        why = lost.get(node)
        if why is not None and not restart_policy.restarts_alone(state.plan, task):
            failure = loss_of(state.plan, node, str(task), why)
            return replace(failure, attempt=state.gang.number)
    return None


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


def record_loss(state: RunState, node: str, loss: NodeLoss) -> None:
    """Record that a node is lost."""
    state.record(ev.NodeLost(node=node, reason=loss.reason, nature=loss.nature))


def _give_up(
    state: RunState, cause: Failure, why: GiveUp, now: float, verdict: Restart | None = None
) -> None:
    """Start a smaller gang without the lost tasks if it is large enough, else fail.

    A run whose scheduler can give it another node waits for that instead of failing. `verdict`
    allows that restart, unless one is recorded already.
    """
    state.planned, before = "", state.membership.members
    members = restart_policy.without(state.plan, before, cause, why)
    if members is None and why is NODE_GONE and state.can_come_back:
        if verdict is not None:
            _record(state, None, _reason_of(cause), verdict, attempt=state.gang.attempt + 1)
        _go_back(state, cause.node, now)
    elif members is None:
        state.fail(cause, why.why, now)
    else:
        state.diagnose(why.why, cause)
        absence = Absence.NODE if cause.kind is Kind.NODE_LOST else Absence.FAILED
        state.membership.leave_out([task for task in before if task not in members], absence, now)
        _order_gang(state, _reason_of(cause), now)


def start_without(state: RunState, nodes: Mapping[str, NodeLoss], now: float) -> None:
    """Leave the tasks of `nodes`, which the first start has not reached, out of the gang.

    Nothing happens if it would be too small, or a node has other tasks than workers.
    """
    lost = {task.id for task in state.plan.tasks if task.node in nodes}
    members = restart_policy.remaining(state.plan, state.membership.members, lost)
    if members is None or any(task.job not in TRAINERS for task in lost):
        return
    for node, why in nodes.items():
        state.gone[node] = why
        state.membership.lost.add(node)
        record_loss(state, node, why)
    state.membership.leave_out(lost, Absence.NODE, now)
    names, count = join_first(sorted(lost)), len(state.membership.workers)
    what = f"starting with {count} of {count_of(count + len(lost))}, without {names}"
    state.record(ev.Warned(message=f"{what}: {join_first([*nodes])} cannot be reached"))


def lose_start(state: RunState, loss: Failure, now: float) -> None:
    """Have the run's job start again, which gives it all nodes anew, or fail.

    To be called for a node that is lost before the first attempt here.
    """
    verdict: GiveUp | Restart = GiveUp("")
    if loss.is_own_end:
        verdict = GiveUp("it would fail the same way")
    elif state.can_come_back:
        verdict = state.restarts.decide(None, loss, step=None, jitter=state.jitter)
    if isinstance(verdict, GiveUp):
        state.fail_unbegun(loss, verdict.why)
    else:
        _record(state, None, _reason_of(loss), verdict, attempt=state.gang.number + 1)
        _go_back(state, loss.node, now)


def _go_back(state: RunState, node: str, now: float) -> None:
    """End this start of the run; its job goes back into the queue of its scheduler."""
    reason = f"another node in the place of {node}, which is lost"
    outcome = Outcome(Status.INTERRUPTED, 1, comes_back=reason)
    state.end_run(f"it needs {reason}", outcome, now, grace_s=None)


def _order_gang(state: RunState, why: str, now: float, verdict: Restart | None = None) -> None:
    """Order the next attempt; without a `verdict` it does not count, as for a smaller gang."""
    if verdict is None:
        verdict = Restart(state.policy.backoff_s, state.restarts.history(None), is_counted=False)
    on_gone = [t for t in state.membership.members if state.plan.task(t).node in state.gone]
    state.membership.leave_out(on_gone, Absence.NODE, now)
    members, number = state.membership.members, state.gang.attempt + 1
    state.next_attempt = NextAttempt(number, members, verdict.delay_s, verdict.fresh_ports, why)
    fewer = members if len(members) < len(state.plan.tasks) else None
    _record(state, None, why, verdict, attempt=number, members=fewer)


def _reason_of(failure: Failure) -> str:
    return f"{failure.task}: {failure.reason}"


def _record(
    state: RunState,
    unit: TaskId | None,
    why: str,
    verdict: Restart,
    *,
    attempt: int,
    members: tuple[TaskId, ...] | None = None,
) -> None:
    """Record a restart; `members` is set where the gang is smaller than in the spec."""
    newest = state.restarts.newest
    event = ev.Restarting(
        task=str(unit) if unit else None,
        reason=why,
        attempt=attempt,
        of=restart_policy.last_attempt(attempt, verdict.history, state.policy),
        from_step=newest.step,
        from_checkpoint=newest.name if newest.step is None else None,
        delay_s=round(verdict.delay_s, 3),
        members=tuple(map(str, members)) if members is not None else None,
        counts=None if verdict.is_counted else False,
        planned=True if unit is None and state.planned else None,
    )
    state.record(event)


def revive(state: RunState, task: str, now: float) -> None:
    """Schedule a restart of `task` alone if it has failed and is still needed."""
    member = state.gang[task]
    failure = member.failure
    if failure is None or member.is_restart_due or not _is_needed(state, member):
        return
    verdict: GiveUp | Restart = NODE_GONE
    if member.node not in state.gone:
        step, jitter = member.progress, state.jitter
        verdict = state.restarts.decide(member.id, failure, step=step, jitter=jitter)
    if isinstance(verdict, GiveUp):
        state.record(ev.Warned(message=f"{task} is not restarted: {verdict.why}"))
        return
    state.gang.put(replace(member, is_restart_due=True))
    if state.is_training:
        state.timers[f"restart {task}"] = now + verdict.delay_s
    _record(state, member.id, _reason_of(failure), verdict, attempt=member.attempt + 1)


def _is_needed(state: RunState, member: Member) -> bool:
    """Return whether a task that has failed is needed again while the run goes on.

    An evaluator is needed as long as the run goes on: one that fails while the gang is being
    stopped starts again together with it.
    """
    if not member.restarts_alone or not member.is_over or member.is_cancelled:
        return False
    if member.is_core:
        return state.is_training and not state.is_finishing
    starts_with_gang = member.is_lost and not state.is_training
    return state.stage is not Stage.ENDING_RUN and not starts_with_gang


def restart_alone(state: RunState, member: Member) -> None:
    """Restart `member` now that its delay is over."""
    if member.node in state.gone:
        state.gang.put(replace(member, is_restart_due=False))
    else:
        renewed = state.gang.renew(member)
        state.orders.append(StartAlone(renewed.id, renewed.attempt))


def cancel_restarts(state: RunState) -> None:
    """Cancel pending starts and restarts after the chief's success; they are no failures."""
    cancel(state, lambda one: one.is_core and (one.is_restart_due or one.is_to_start))


def cancel(state: RunState, fits: Callable[[Standing], bool]) -> None:
    """Cancel the starts and restarts of the tasks whose standing `fits`."""
    for member in state.gang.members(fits):
        state.gang.put(replace(member, is_restart_due=False, is_cancelled=True))
        state.timers.pop(f"restart {member.name}", None)
