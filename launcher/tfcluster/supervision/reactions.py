"""Reacts to what has changed: follows the tasks' ends, and acts on the timers that are due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tfcluster.agent import catalogue as msg
from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.rundir import events as ev
from tfcluster.supervision import connectivity, stalls, verdicts
from tfcluster.supervision.alerts import (
    Alert,
    find_different_states,
    find_double_sharding,
    find_lone_training,
    find_same_data,
)
from tfcluster.supervision.decisions import DropNode, Next, ProbeLinks, ReadLogs
from tfcluster.supervision.failure import Kind, kind_of_leaving, signal_name
from tfcluster.supervision.gang import describe_lone_work
from tfcluster.supervision.member import Member
from tfcluster.supervision.restarts import (
    cancel,
    cancel_restarts,
    lose_start,
    loss_of,
    record_loss,
    restart_alone,
    revive,
    start_without,
)
from tfcluster.supervision.run_state import STACKS_WAIT_S, RunState, Stage
from tfcluster.supervision.silence import Silence
from tfcluster.supervision.stalls import Activity, Position
from tfcluster.supervision.verdicts import CAUSE_WAIT_S, Verdict

EVALUATOR_S: Final = 10.0
"""The time that an evaluator gets to end by itself after the last checkpoint; most do."""
FINISHING_S: Final = 5.0
"""The time after the chief's success at which running tasks are named; most end with it."""
REPORTS_NOTHING: Final = (
    "no task has reported a step yet. Keras and Estimator report by themselves; in its own training"
    " loop a script calls tfcluster_workers.reporting.progress(step, total=…)"
)
ALONE_S: Final = 10.0
"""The time in which tasks that compute gradients may still meet: JAX and Horovod do it later."""
BUSY: Final = 2.0
"""The load per core from which on a node is so busy that a longer silence is normal."""
ENDING_S: Final = 60.0
"""The silence allowed once tasks end: tf.data's threads and atexit handlers, while a chief that is
left evaluates and exports."""
TRAINS_IN_CHILD: Final = (
    "no task has reported a step yet. {task} seems to train in a child process that started without"
    " tfcluster's hooks: `{command}`. Start that script directly: `tfcluster run SCRIPT`, or"
    " job.script in the spec (`tfcluster help guides/your_own_script#child-process`)"
)
AFTER_SUSPENSION_S: Final = 60.0
"""The time after a suspension in which it explains that tasks lose each other."""
STACKS_S: Final = 1.0
"""The time that tasks get to write their stacks before they are stopped."""


def react(state: RunState, now: float) -> None:
    """React to an input: every input ends with this."""
    if state.outcome is not None:
        return
    _blame_suspension(state, now)
    _probe_links_once(state)
    if state.next_attempt is None:
        if state.is_training and "stacks" not in state.timers:
            _follow(state, state.gang.judge(), now)
        if state.is_training:
            _set_deadlines(state)
        state.enter_next_stage()
    state.watch_agents()


def _blame_suspension(state: RunState, now: float) -> None:
    """Blame the end of a suspension if tasks take each other for dead soon after it."""
    failures = state.gang.failures
    if state.resumed_at is None or now > state.resumed_at + AFTER_SUSPENSION_S or not failures:
        return
    if state.forms_gang and all(failure.is_collateral for failure in failures):
        description = (
            f"the run was suspended for {state.suspended_s:.0f} s, and its tasks then took each"
            " other for dead"
        )
        state.gang.blame(state.gang[failures[0].task], Kind.SUSPENDED, description)


def _probe_links_once(state: RunState) -> None:
    """Have the links between nodes probed if tasks failed but none by itself.

    This happens once per attempt and at once: the links may work again soon.
    """
    failures = state.gang.failures
    if not failures or state.has_probed_links or not state.forms_gang:
        return
    if connectivity.can_break(state.plan) and all(
        failure.is_collateral or failure.kind is Kind.LATE for failure in failures
    ):
        state.has_probed_links = True
        state.orders.append(ProbeLinks(state.gang.number))


def _follow(state: RunState, verdict: Next, now: float) -> None:
    if verdict is not state.verdict:  # the timers of the earlier verdict no longer apply
        state.verdict = verdict
        for name in ("cause", "late", "finishing", "positions"):
            state.timers.pop(name, None)
        state.positions = None  # those that were asked for because of a silence
        if state.is_finishing and state.policy.finish_grace_s > FINISHING_S:
            state.timers["finishing"] = now + FINISHING_S
    match verdict:
        case Next.FAIL if verdicts.leaves_preempted(state.gang.core()):
            state.timers.setdefault("cause", now + state.policy.grace_s)
        case Next.FAIL:
            state.end_gang("another task failed", now)
        case Next.AWAIT_CAUSE if frozen := state.gang.frozen():
            _act_on(state, verdicts.blame_frozen(frozen[0]), now)
        case Next.AWAIT_CAUSE:
            state.timers.setdefault("cause", now + CAUSE_WAIT_S)
        case Next.DESERTED:
            wait_s = verdicts.deserted_grace_s(state.plan, state.gang.core())
            state.timers.setdefault("late", now + wait_s)
        case Next.FINISH:
            _finish(state, now)
        case Next.FAILED if state.gang.failures and state.forms_gang:
            state.gang.explain_lone_work()
            state.end_gang("all have ended", now)
        case Next.SUCCEED | Next.FAILED:
            state.conclude(verdict)


def _finish(state: RunState, now: float) -> None:
    cancel_restarts(state)
    if (verdict := state.gang.judge()) is not Next.FINISH:
        _follow(state, verdict, now)
        return
    state.stop_tasks(state.gang.idle(), "the chief has finished", now)
    for member in state.gang.satisfied(state.last_step):
        state.timers.setdefault(f"satisfied {member.name}", now + EVALUATOR_S)
    if not any(one.is_core and one.is_awaited for one in state.gang.standings):
        state.timers.setdefault("late", now + state.policy.finish_grace_s)


def _set_deadlines(state: RunState) -> None:
    """Set the start and stall deadlines anew; a run that finishes has `finish_grace_s` instead."""
    state.set_timer("hint", _hint_due(state))
    goes_on, silence = state.verdict is Next.GO_ON, state.silence
    if goes_on and "stacks" in state.timers:
        return
    is_explained = state.positions is None  # else the tasks' stacks are awaited
    state.set_timer("quiet", silence.stall_due(state.policy) if goes_on and is_explained else None)
    is_limited = goes_on and state.forms_gang
    state.set_timer("start", _start_due(state) if is_limited else None)
    state.set_timer(
        "stall", silence.deadline(state.policy) if is_limited and is_explained else None
    )


def _hint_due(state: RunState) -> float | None:
    """Return when to say how a script reports its progress; None if it does, or still waits."""
    is_waiting = state.verdict is not Next.GO_ON or state.gang.waits_since is not None
    if is_waiting or not state.plan.hooks or state.plan.kind == "tuner":
        return None
    return state.silence.hint_due


def _hint_about(silence: Silence) -> str:
    """Return why no task may have reported a step, and what to do."""
    if silence.unheard_child is None:
        return REPORTS_NOTHING
    task, command = silence.unheard_child
    return TRAINS_IN_CHILD.format(task=task, command=command)


def _start_due(state: RunState) -> float | None:
    """Return when the start counts as failed; None while no task waits for its peers.

    Only tasks that wait now count: the wait of a task that was restarted alone begins again.
    """
    since = state.gang.waits_since
    if since is None or any(one.has_searched and one.is_core for one in state.gang.standings):
        return None  # a tuner that joins after the search waits until the run is over
    return since + state.policy.start_deadline_s


# -- timers ---------------------------------------------------------------------------------


def act_on_timer(state: RunState, timer: str, now: float) -> None:
    """Act on a timer that is due."""
    kind, _, task = timer.partition(" ")
    member = state.gang.get(task)
    match kind:
        case "agents":
            for node in dict.fromkeys(m.node for m in state.gang if m.is_overdue(now)):
                state.orders.append(DropNode(node))
                lose_node(state, node, NodeLoss("its agent does not answer"), now)
        case "run" if state.ending is None:
            stall = state.silence.describe_stall(now)
            deadline_s = state.policy.run_deadline_s or 0.0
            outcome = verdicts.run_deadline_outcome(deadline_s, stall, state.run_id)
            state.end_run("run_deadline_s has passed", outcome, now, grace_s=None)
        case "start":
            missing = verdicts.find_missing(state.gang.core(), state.absent)
            state.orders.append(ReadLogs(tuple(member.name for member in missing)))
        case "stall":
            state.orders.append(ReadLogs())
        case "quiet":
            _ask_positions(state, now)
        case "positions":
            _judge_positions(state, now)
        case "alone":
            state.warn_of_lone_training()
        case "hint":
            state.silence.is_heard = True
            state.record(ev.Hint(message=_hint_about(state.silence)))
        case "stacks" if state.ending is not None:
            state.end_run(state.why_end, state.ending, now)
        case "stacks":
            state.end_gang(state.why_end, now)
        case "restart" if member is not None:
            restart_alone(state, member)
        case "frozen" if member is not None and member.is_running:
            if not (state.is_finishing or member.is_stopping or "stacks" in state.timers):
                _act_on(state, verdicts.blame_frozen(member), now)
        case _:
            _act_on_verdict_timer(state, kind, member, now)


def _act_on_verdict_timer(state: RunState, kind: str, member: Member | None, now: float) -> None:
    """Act on a timer that `_follow` has set."""
    core = state.gang.core()
    match kind, state.verdict:
        case "cause", Next.FAIL:
            state.end_gang("it did not leave with the others", now)
        case "cause", _ if state.gang.explain_lone_work():
            react(state, now)
        case "cause", _:
            is_part = bool(state.plan.elsewhere)
            _act_on(state, verdicts.blame_survivors(core, is_part=is_part), now)
        case "late", Next.DESERTED:
            _act_on(state, verdicts.blame_deserted_chief(core), now)
        case "late", _:
            _ask_positions(state, now)
        case "finishing", _:
            if waits := [member.name for member in state.gang.active()]:
                left_s = state.policy.finish_grace_s - FINISHING_S
                state.record(ev.Finishing(tasks=waits, left_s=left_s))
        case "satisfied", _:
            done = [one for one in state.gang.satisfied(state.last_step) if one is member]
            state.stop_tasks(done, "it has evaluated the last checkpoint", now)


def lose_node(state: RunState, node: str, loss: NodeLoss, now: float) -> None:
    """Record that `node` is lost, and restart or end what ran on it."""
    if state.outcome is not None:
        return
    record_loss(state, node, loss)
    lost = state.gang.lose_node(node, loss, chief_done=state.is_finishing)
    needed = [state.gang[task] for task in lost if not state.gang[task].is_cancelled]
    if state.stage is Stage.STARTING:
        lose_start(state, loss_of(state.plan, node, node, loss), now)
    elif state.forms_gang and any(member.is_core for member in needed):
        state.end_gang("a node is lost", now)
    for task in lost:
        revive(state, task, now)
    react(state, now)


def lose_unreached(state: RunState, losses: Mapping[str, NodeLoss], now: float) -> None:
    """Act on nodes that the first start cannot connect to, if its job can start again.

    They are lost if earlier coordinators have reached them, or if a backend says so of one.
    Otherwise the spec or the environment may be wrong, which the job's next start would not change.
    A gang that is large enough starts without them.
    """
    is_known = any(loss.nature is not LossNature.UNKNOWN for loss in losses.values())
    if state.can_come_back and (is_known or state.gang.number > 0):
        for node, loss in losses.items():
            record_loss(state, node, loss)
        failures = [loss_of(state.plan, node, node, loss) for node, loss in losses.items()]
        lose_start(state, max(failures, key=lambda failure: failure.is_own_end), now)
        react(state, now)
    else:
        start_without(state, losses, now)


def leave_node(state: RunState, node: str, loss: NodeLoss, now: float) -> None:
    """Have the gang save and stop: `node` is taken away in a moment, and still answers.

    Its tasks count as preempted, whatever they do in the time that is left, unless it is known to
    be lost in another way. Before the first attempt the run's job starts again.
    """
    if state.outcome is None and state.stage is Stage.STARTING and state.can_come_back:
        lost = loss_of(state.plan, node, node, loss)
        lose_start(state, replace(lost, observed=kind_of_leaving(loss.nature)), now)
        react(state, now)
    if state.outcome is not None or not state.is_training:
        return
    leaving = [member for member in state.gang.running() if member.node == node]
    for member in leaving:
        state.gang.blame(member, kind_of_leaving(loss.nature), loss.reason, loss=loss.nature)
    if state.forms_gang and any(member.is_core for member in leaving):
        state.end_gang(f"{node} is leaving", now, grace_s=None)
    else:
        blamed = [state.gang[member.name] for member in leaving]
        state.stop_tasks(blamed, f"{node} is leaving", now, grace_s=None)
    react(state, now)


def end_hang(
    state: RunState, last_output: float, last_lines: Mapping[str, str], now: float
) -> None:
    """Act on a start or a silence that takes too long, now that the logs have been read."""
    core, start = state.gang.core(), state.timers.get("start")
    if start is not None and start <= now:
        limit_s, absent = state.policy.start_deadline_s, state.absent
        _act_on(state, verdicts.blame_missing(core, limit_s, last_lines, now, absent), now)
    elif "stall" in state.timers:
        state.silence.note_output(last_output)
        _end_silence(state, core, now)


def _end_silence(state: RunState, core: list[Member], now: float) -> None:
    due, since = state.silence.deadline(state.policy), state.silence.heard_at
    if due is None or since is None or due > now or not any(member.is_running for member in core):
        return
    _act_on(state, verdicts.blame_stalled(core, now - since, state.silence.stall), now)


def _ask_positions(state: RunState, now: float) -> None:
    """Have the stacks of all tasks taken: too much time has passed without a step, or an end."""
    state.positions, state.load = dict.fromkeys(state.take_stacks()), 0.0
    if state.positions:
        state.timers["positions"] = now + STACKS_WAIT_S
    else:
        _judge_positions(state, now)


def note_position(state: RunState, task: str, report: msg.Stacks, now: float) -> None:
    """Note where a task is; once all have answered, judge what that means."""
    if state.positions is None or task not in state.positions:
        return
    state.positions[task] = stalls.position_of(report.threads, silence=report.silence)
    state.load = max(state.load, report.load)
    if None not in state.positions.values():
        _judge_positions(state, now)


def _judge_positions(state: RunState, now: float) -> None:
    asked, state.positions = state.positions or {}, None
    state.set_timer("positions", None)
    positions = {task: at or Position(Activity.UNKNOWN) for task, at in asked.items()}
    if state.is_finishing and state.is_training:
        _end_late(state, positions, now)
    elif state.verdict is Next.GO_ON:
        _judge_silence(state, positions, now)


def _judge_silence(state: RunState, positions: Mapping[str, Position], now: float) -> None:
    """Record that the run is stalled, and why, unless a task is at work that may take so long."""
    due, since = state.silence.stall_due(state.policy), state.silence.heard_at
    if due is None or since is None or due > now:
        return
    if any(at.activity is Activity.TRACES for at in positions.values()):
        state.silence.allow_until(now + state.silence.limit_s)
        return
    until = since + state.silence.limit_s * state.load / BUSY
    if (deadline := state.silence.deadline(state.policy)) is not None:
        until = min(until, deadline)
    if until > now:  # on a machine with too much work, a step takes that much longer
        state.silence.allow_until(until)
        return
    has_ended = any(member.is_over for member in state.gang.core())
    is_ending = has_ended or any(at.activity is Activity.EXITS for at in positions.values())
    if is_ending and since + ENDING_S > now:
        state.silence.allow_until(since + ENDING_S)
        return
    stall = state.silence.stall = explain(state, positions)
    state.silence.stalled_since = since
    state.record(
        ev.Stalled(
            silent_s=round(now - since, 1),
            deadline_s=state.policy.stall_deadline_s,
            what=stall.what,
            causes=stall.causes,
            tasks=stall.tasks,
        )
    )


def explain(state: RunState, positions: Mapping[str, Position]) -> stalls.Stall:
    """Return who is waited for and where, from the stacks of tasks that run."""
    stopped = {
        member.name: Position(Activity.STOPPED, why=f"by {signal_name(member.frozen_by or 0)}")
        for member in state.gang.frozen()
    }
    every = {**positions, **stopped}
    known = {member.name: every[member.name] for member in state.gang if member.name in every}
    core = state.gang.core()
    running = [member for member in core if member.is_running]
    together = len(core) > 1 and all(m.trains_in_step and not m.restarts_alone for m in running)
    ended = [member.name for member in core if member.is_over]
    return stalls.explain(known, ended=ended, together=together)


def note_facts(state: RunState, report: msg.TaskReport, now: float) -> None:
    """Compare what the tasks have reported about their training."""
    match report:
        case msg.Restored():
            state.alert(Alert.STATES_DIFFER, find_different_states(state.workers()))
        case msg.FirstBatches():
            state.alert(Alert.SAME_DATA, find_same_data(state.workers()))
        case msg.Sharded():
            state.alert(Alert.SHARDED_TWICE, find_double_sharding(state.workers()))
        case msg.Trains() if find_lone_training(state.workers(), is_over=False) is not None:
            state.timers.setdefault("alone", now + ALONE_S)


def note_losses(
    state: RunState, member: Member, report: msg.Progress | msg.Weights, now: float
) -> None:
    """Record that a loss has become NaN or infinite; with `stop_on_nan` that ends the run."""
    alert = state.losses.note(member.name, member.attempt, report, together=member.trains_in_step)
    if alert is None:
        return
    state.record(alert)
    if state.losses.since and state.policy.stop_on_nan and state.is_training:
        state.gang.blame(member, Kind.DIVERGED, alert.message)
        state.fail(state.gang[member.name].failure or state.cause(), "stop_on_nan is set", now)


def end_stall(state: RunState, now: float) -> None:
    """Record that the run goes on, if it is stalled: a task has reported work or has ended."""
    if state.silence.stall is not None and state.is_training:
        state.silence.stall = None
        state.record(ev.StallEnded(silent_s=round(now - state.silence.stalled_since, 1)))


def _end_late(state: RunState, positions: Mapping[str, Position], now: float) -> None:
    """Stop all tasks that still run `finish_grace_s` after the chief's success.

    A worker that still works independently makes the run fail, as its work is interrupted. So does
    one that has steps left and waits in a collective: the chief has left too early.
    """
    grace_s, unfinished = state.policy.finish_grace_s, state.gang.unfinished()
    description = f"it had not finished {grace_s:g} s after the chief and was stopped"
    for member in unfinished:
        state.gang.blame(member, Kind.UNFINISHED, description)
    late = [one for one in state.gang.active(lambda one: not one.serves) if one.failure is None]
    for member in late:
        at = positions.get(member.name)
        waits = at is not None and at.activity is Activity.IN_STEP and member.frozen_by is None
        if at is not None and waits and member.trains_in_step and not member.is_done:
            why, known = describe_lone_work(member, state.gang.finished(), at.place)
            state.gang.blame(member, Kind.PERMANENT, why, known=known)
    late = [member for member in late if state.gang[member.name].failure is None]
    where = {task: at.place for task, at in positions.items()}
    for warning in verdicts.warn_about_late(late, grace_s, state.last_step, where):
        state.record(ev.Warned(message=warning))
    cancel(state, lambda one: one.running and not one.is_alive)
    state.stage = Stage.ENDING_RUN  # the exits decide the outcome
    state.stop_tasks(state.gang.running(), "the others have ended", now)


def _act_on(state: RunState, verdict: Verdict, now: float) -> None:
    """Blame the tasks of a verdict, have stacks written if it wants them, and stop tasks."""
    for member, description in verdict.blamed:
        state.gang.blame(member, verdict.kind, description)
    state.ending = verdict.outcome or state.ending
    if verdict.wants_stacks:
        state.take_stacks()
        state.set_timer("start", None)
        state.set_timer("stall", None)
        state.timers["stacks"], state.why_end = now + STACKS_S, verdict.why_end
    elif verdict.outcome is not None:
        if not verdict.blamed:
            state.diagnose()
        state.end_run(verdict.why_end, verdict.outcome, now)
    else:
        blamed = [state.gang[member.name] for member, _ in verdict.blamed]
        frozen = [member for member in blamed if member.frozen_by is not None]
        state.stop_tasks(frozen, verdict.why_end, now, grace_s=0.0)
        if not blamed or not all(member.restarts_alone for member in blamed):
            state.end_gang(verdict.why_end, now)
