"""Names the root cause of a failure, blames tasks that hang, and settles how the run ends (pure).

When one worker dies, TensorFlow ends the others within seconds with errors of their own
(tensorflow/core: "Collective ops is aborted by", coordination-service heartbeats). Those are
*collateral*; the first failure that is not collateral is the *root cause*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfcluster.errors import (
    CollateralError,
    DeadlineError,
    NodeLostError,
    SetupError,
    TfclusterError,
    join_first,
    signal_name,
)
from tfcluster.plans.plan import Plan, TaskPlan
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import Outcome
from tfcluster.supervision.failure import CIRCUMSTANCES, Failure, Kind
from tfcluster.supervision.member import Member
from tfcluster.supervision.stalls import Stall

_OUT_OF_STEP = frozenset({Kind.COLLATERAL, Kind.LATE, Kind.STALLED})
_OUT_OF_STEP_DOCS = frozenset(
    f"docs/failures.md#{anchor}" for anchor in ("chief-alone", "hosts-differ", "uneven-batches")
)
"""The failures of tasks that do not take the same steps any more."""
_INFERRED = frozenset({Kind.LINK_LOST, Kind.LATE, Kind.STALLED})
"""Kinds that are inferred from silence alone, of the task or of the link to it."""


def root_cause(failures: Sequence[Failure]) -> Failure | None:
    """Return the first of `failures`, in order of arrival, that no other has caused.

    A task that failed by itself comes before a lost link, and that before a task that was merely
    silent. Where all are collateral the first one is returned; without failures, None.
    """
    uncaused = [failure for failure in failures if not failure.is_collateral]
    certain = [failure for failure in uncaused if failure.kind not in _INFERRED]
    links = [failure for failure in uncaused if failure.kind is Kind.LINK_LOST]
    return next(iter([*certain, *links, *uncaused, *failures]), None)


def diagnosis(
    failures: Sequence[Failure],
    plan: Plan,
    core: Sequence[Member] = (),
    *,
    not_restarted: str | None = None,
    state: str = "",
) -> ev.Diagnosis | None:
    """Return the event that names the root cause, or None without failures.

    `core`: the tasks that train together, whose steps are compared where that explains the cause.
    `state`: a sentence about the different states that the tasks have restored; empty if they have
    not. It is the cause of what only shows that the tasks are no longer in step.

    Where all failures are collateral and there are tasks elsewhere, one of those is the cause;
    they were started on another machine, or by hand. `not_restarted`: the reason for that.
    """
    cause = root_cause(failures)
    if cause is None:
        return None
    root: dict[str, Any]
    if cause.is_collateral and (elsewhere := plan.elsewhere):
        root = {"task": "another machine", "reason": _name_first_failed(elsewhere)}
        if plan.by_hand:
            name = str(elsewhere[0].id) if len(elsewhere) == 1 else "a task started by hand"
            root["task"] = name
            root["reason"] += "; it was started by hand: see its terminal"
        collateral = dict.fromkeys(failure.task for failure in failures)
    else:
        others = [failure for failure in failures if failure.task != cause.task]
        root = _facts(cause, also=_failed_alike(cause, others))
        if cause.compares_steps and (difference := _describe_difference(failures, core)):
            root["reason"] = f"{difference}\n{root['reason']}"
        collateral = dict.fromkeys(f.task for f in others if f.is_collateral)
    if state and (cause.kind in _OUT_OF_STEP or cause.docs in _OUT_OF_STEP_DOCS):
        known = CIRCUMSTANCES["states_differ"]
        reason = f"{state}\nthen {cause.task}: {root['reason']}"
        root |= {"reason": reason, "hint": known.hint, "docs": known.docs}
    if cause.has_only_a_code and root["reason"] == cause.reason:
        root["has_only_a_code"] = True
    if not_restarted is not None:
        root["not_restarted"] = not_restarted
    return ev.Diagnosis(root_cause=root, collateral=tuple(collateral), attempt=cause.attempt)


def _name_first_failed(elsewhere: Sequence[TaskPlan]) -> str:
    """Return the sentence that one of the tasks `elsewhere` failed first."""
    names = join_first([task.id for task in elsewhere])
    return f"{'one of ' if len(elsewhere) > 1 else ''}{names} failed first"


def _describe_difference(failures: Sequence[Failure], core: Sequence[Member]) -> str:
    """Return how the steps or the places of the tasks that train together differ, or ""."""
    trainers = [member for member in core if member.total_steps is not None]
    if len({member.began_at_step for member in trainers}) == 1:  # not in different calls of `fit`
        per_epoch = {member.name: member.steps_per_epoch for member in trainers}
        in_all = {member.name: member.total_steps for member in trainers}
        for steps, unit in ((per_epoch, " per epoch"), (in_all, "")):
            if groups := _group_names(steps):
                return f"the tasks train unequal steps{unit}: {groups}"
    last = {member.name: member.step for member in core}
    places = {
        failure.task: failure.place
        + ("" if (step := last.get(failure.task)) is None else f" after step {step:,}")
        for failure in failures
        if failure.place
    }
    is_apart = len({failure.place for failure in failures if failure.place}) > 1
    groups = _group_names(places) if is_apart else ""
    return f"the tasks were at different lines: {groups}" if groups else ""


def _group_names(values: Mapping[str, int | str | None]) -> str:
    """Return ``30 in worker:0, worker:2; 20 in worker:1``, or "" unless two values are known."""
    tasks = defaultdict[int | str, list[str]](list)
    for task, value in values.items():
        if value is not None:
            tasks[value].append(task)
    groups = [f"{value} in {join_first(names)}" for value, names in tasks.items()]
    return "; ".join(groups) if len(groups) > 1 else ""


def _failed_alike(cause: Failure, others: Sequence[Failure]) -> list[str]:
    """Return the tasks that failed by themselves just like `cause`: usually a shared mistake."""

    def likeness(failure: Failure) -> tuple[object, ...]:
        return (failure.kind, failure.signature or (failure.exit_code, failure.signal))

    alike = [other.task for other in others if likeness(other) == likeness(cause)]
    return [] if cause.is_collateral else list(dict.fromkeys(alike))


def _facts(cause: Failure, *, also: list[str]) -> dict[str, Any]:
    raised = cause.exception
    facts = {
        "task": cause.task,
        "node": cause.node or None,
        "attempt": cause.attempt,
        "kind": str(cause.kind),
        "reason": cause.reason + (f"\nthe same on {', '.join(also)}" if also else ""),
        "exit_code": cause.exit_code,
        "signal": cause.signal,
        "exception": raised and raised.exception,
        "file": raised and raised.file,
        "line": raised and raised.line,
        "hint": cause.hint,
        "docs": cause.docs,
        "also": also or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


CAUSE_WAIT_S = 12.0
"""The time to wait for the cause of a collateral failure: TensorFlow's heartbeat limit is 10 s."""
LAST_WORD_S = 3.0
"""The time that a chief whose tuners have all failed gets to report a reason; it checks every
second (tfcluster_workers/hooks/tuner_hooks.py)."""
FROZEN_S = 10.0
"""The time that a task may be stopped (SIGSTOP): as long as its peers tolerate it."""
_MORE_TIME_TO_EVALUATE = (
    "Give it more time: --set supervision.finish_grace_s=SECONDS. An Estimator's evaluator waits"
    " 120 s before its first evaluation and 600 s between two; EvalSpec(start_delay_secs=0,"
    " throttle_secs=10) makes it evaluate sooner"
)
_MORE_TIME_WITHOUT_HOOKS = (
    "Without hooks tfcluster cannot see what they did; if they still worked, give them more time:"
    " --set supervision.finish_grace_s=SECONDS"
)


@dataclass(frozen=True, slots=True)
class Blame:
    """The running tasks to blame, each with the reason, and what follows."""

    kind: Kind
    blamed: Sequence[tuple[Member, str]]
    why_end: str
    """The reason that is recorded for every task stopped because of it."""
    wants_stacks: bool = False
    """The stacks of all tasks are written to the logs before anything is stopped."""
    outcome: Outcome | None = None
    """The outcome of the run; None leaves it to the restart policy."""


def blame_survivors(core: Sequence[Member], *, is_part: bool) -> Blame:
    """Blame the tasks that still run after all others failed as a consequence.

    Where only a part of the gang runs here (`is_part`) the cause is elsewhere: no task is blamed.
    """
    if is_part:
        return Blame(Kind.LATE, [], "a task elsewhere failed")
    description = "it did not end while the others failed because of it: hung or cut off"
    late = [
        (member, description) for member in core if member.is_running and not member.restarts_alone
    ]
    return Blame(Kind.LATE, late, "it outlived the others' failure")


def leaves_preempted(core: Sequence[Member]) -> bool:
    """Return whether the gang is leaving because of a preemption: running tasks may be saving.

    PreemptionCheckpointHandler has all workers save at the same step, then each exits by itself
    (tensorflow/python/distribute/failure_handling/failure_handling.py).
    """
    kinds = {member.failure.kind for member in core if member.failure is not None}
    rest = [member for member in core if member.is_running]
    preempted = Kind.PREEMPTED in kinds and kinds <= {Kind.PREEMPTED, Kind.COLLATERAL}
    return preempted and any(member.saves_on_sigterm for member in rest)


def blame_frozen(member: Member) -> Blame:
    """Blame `member`, which a signal has stopped for `FROZEN_S`."""
    description = f"stopped by {signal_name(member.frozen_by or 0)} for {FROZEN_S:.0f} s"
    return Blame(Kind.FROZEN, [(member, description)], "another task was stopped")


def warn_about_late(
    late: Sequence[Member], grace_s: float, last_step: int | None, where: Mapping[str, str]
) -> list[str]:
    """Return warnings about the tasks that are stopped although they have not failed.

    `where`: task → the line of its script that it was at, as far as it is known.
    """
    missed = {member.name: _not_evaluated(member, last_step) for member in late}
    warnings = [
        f"{name} was stopped {grace_s:g} s after the chief: it had {description}."
        f" {_MORE_TIME_TO_EVALUATE}"
        for name, description in missed.items()
        if description
    ]
    if others := [member for member in late if not missed[member.name]]:
        names = ", ".join(
            f"{member.name} (in {place})" if (place := where.get(member.name)) else member.name
            for member in others
        )
        warning = f"{names} did not end within {grace_s:g} s after the chief: stopped"
        if not all(member.is_hooked for member in others):
            warning += f". {_MORE_TIME_WITHOUT_HOOKS}"
        warnings.append(warning)
    return warnings


def _not_evaluated(member: Member, last_step: int | None) -> str:
    """Return what an evaluator has not evaluated; an empty string where nothing is known."""
    if member.is_core or not member.is_hooked:
        return ""
    if not member.has_evaluated:
        return "evaluated nothing"
    done = member.evaluated_step
    if done is None or last_step is None or done >= last_step:
        return ""
    return f"not evaluated the last checkpoint, of step {last_step:,}, only step {done:,}"


def blame_deserted_chief(core: Sequence[Member]) -> Blame:
    """Blame a chief that runs on after all tasks it works with have ended for good.

    Where those failed, they are to blame and not the chief.
    """
    failed = any(member.restarts_alone and member.failure is not None for member in core)
    description = "it still ran after all tasks it works with had ended"
    remaining = [(m, description) for m in core if m.is_running and not m.serves and not failed]
    why = "all tasks that the chief works with have ended"
    return Blame(Kind.LATE, remaining, why, outcome=Outcome(Status.FAILED, 1))


def deserted_grace_s(plan: Plan, core: Sequence[Member]) -> float:
    """Return how many seconds a chief without tasks to work with gets to end by itself.

    Where all its workers have failed for good that is `LAST_WORD_S` at most if it would wait for
    them for ever: for its tuners (keras-tuner#254), or for servers that it has not met yet.
    """
    grace_s = plan.supervision.finish_grace_s
    has_lost_all = all(member.failure is not None for member in core if member.restarts_alone)
    waits = plan.kind == "tuner" or any(m.waits_for_peers for m in core if not m.restarts_alone)
    return min(LAST_WORD_S, grace_s) if waits and has_lost_all else grace_s


def find_missing(core: Sequence[Member], elsewhere: Sequence[str]) -> list[Member]:
    """Return the tasks that others wait for.

    Where all wait, none is missing: they cannot reach each other, and all are returned.
    `elsewhere`: the tasks that are not started from here and cannot be reached, with the reason.
    """
    missing = [m for m in core if not m.waits_for_peers and not m.has_joined]
    return missing or [m for m in core if m.waits_for_peers and not elsewhere]


def blame_missing(
    core: Sequence[Member],
    deadline_s: float,
    last_lines: Mapping[str, str],
    now: float,
    elsewhere: Sequence[str],
) -> Blame:
    """Blame the tasks that others wait for (`find_missing`), each with its age and last line."""
    named = [
        (member, _describe_absence(member, last_lines.get(member.name, ""), now))
        for member in find_missing(core, elsewhere)
    ]
    lines = [f"{member.name} {description}" for member, description in named] + [*elsewhere]
    why = f"the tasks did not find each other within {deadline_s:g} s"
    error = DeadlineError(
        f"{why}:" + "".join(f"\n  {line}" for line in lines),
        fix="see the stacks of all tasks in their logs; "
        "to wait longer: --set supervision.start_deadline_s=SECONDS",
    )
    return Blame(Kind.LATE, named, why, wants_stacks=True, outcome=Outcome.of(error))


def _describe_absence(member: Member, last_line: str, now: float) -> str:
    if member.waits_for_peers:
        return "waits for its peers and cannot reach them"
    if (ended := member.exit) is not None:
        by = signal_name(ended.signal) if ended.signal else f"exit code {ended.exit_code}"
        state = f"ended with {by} before it joined"
    elif member.started_at is None:
        state = "was not started"
    else:
        state = f"has not joined, {now - member.started_at:.0f} s after its start"
    if member.frozen_by is not None:
        state += f", stopped by {signal_name(member.frozen_by)}"
    return state + (f'; its last line: "{last_line}"' if last_line else "; it has written nothing")


def blame_stalled(core: Sequence[Member], silent_s: float, stall: Stall | None) -> Blame:
    """Blame the task that the others wait for (`explain_stall`), else the one furthest behind."""
    running = [member for member in core if member.is_running]
    if stopped := [member for member in running if member.frozen_by is not None]:
        by = signal_name(stopped[0].frozen_by or 0)
        why = f"stopped by {by}, and all others wait for it"
        return Blame(Kind.FROZEN, [(stopped[0], why)], why)
    causes = stall.causes if stall is not None else ()
    named = [member for member in running if member.name in causes]
    last = min(named or running, key=lambda member: member.advance)
    steps = ", ".join(f"{m.id} at step {m.step}" for m in running if m.step is not None)
    description = f"no progress and no output of any task for {silent_s:.0f} s ({steps})"
    if stall is not None:
        description += f": {stall.what}"
    why = f"no task reported anything for {silent_s:.0f} s"
    return Blame(Kind.STALLED, [(last, description)], why)


def run_deadline_outcome(deadline_s: float, stall: str, run_id: str) -> Outcome:
    """Return the outcome of a run whose deadline has passed, perhaps while it stalled."""
    error = DeadlineError(
        f"the run took longer than supervision.run_deadline_s = {deadline_s:g} s"
        + (f"; {stall}" if stall else ""),
        fix="for a longer one: --set supervision.run_deadline_s=SECONDS; "
        f"to continue from its newest checkpoint: `tfcluster up --resume {run_id}`",
    )
    return Outcome.of(error)


def outcome_of_start(loss: Failure, why: str) -> Outcome:
    """Return the outcome of a run that lost a node before its tasks; `why` it ends may be empty."""
    error = NodeLostError(
        f"node {loss.node} was lost before the tasks started: {loss.description}"
        + (f" ({why})" if why else ""),
        fix=loss.hint or "",
    )
    return Outcome.of(error)


def outcome_of(cause: Failure, why: str, plan: Plan, run_id: str) -> Outcome:
    """Return the outcome of a run that `cause` has ended; `why` it is not restarted."""
    match cause.kind:
        case Kind.NODE_LOST:
            error: TfclusterError = NodeLostError(
                f"node {cause.node} is lost: {cause.description}; its tasks were stopped ({why})",
                fix="to continue from the newest gathered checkpoint:"
                f" `tfcluster up --resume {run_id}`",
            )
        case Kind.LINK_LOST:
            error = NodeLostError(
                f"{cause.description} ({why})",
                fix="check the network between the hosts; then continue from the newest gathered"
                f" checkpoint: `tfcluster up --resume {run_id}`",
            )
        case Kind.START_FAILED:
            error = SetupError(
                f"{cause.task} cannot start: {cause.description}",
                fix="`tfcluster plan --task` shows its command",
            )
        case Kind.COLLATERAL if plan.joins and plan.elsewhere:
            error = CollateralError(
                "the tasks here failed as a consequence: "
                f"{_name_first_failed(plan.elsewhere)}, on another machine",
                fix="see the output on that machine; then start all of them again",
            )
        case Kind.STALLED:
            error = DeadlineError(
                f"the run stalled: {cause.description} ({why})",
                fix="see the stacks of all tasks in their logs",
            )
        case _:
            return Outcome(Status.FAILED, 1)
    return Outcome.of(error)
