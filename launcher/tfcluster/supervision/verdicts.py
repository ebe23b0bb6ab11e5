"""Names the root cause of a failure, blames tasks that hang, and settles how the run ends (pure).

When one worker dies, TensorFlow ends the others within seconds with errors of their own
(tensorflow/core: "Collective ops is aborted by", coordination-service heartbeats). Those are
*collateral*; the first failure that is not collateral is the *root cause*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tfcluster.errors import (
    CollateralError,
    DeadlineError,
    NodeLostError,
    SurroundingsError,
    TfclusterError,
)
from tfcluster.plan.plan import Plan, TaskPlan
from tfcluster.rundir.states import Status
from tfcluster.supervision.decisions import Outcome
from tfcluster.supervision.failure import Failure, Kind, signal_name
from tfcluster.supervision.member import Member
from tfcluster.supervision.member_counts import MemberCounts
from tfcluster.supervision.restart_policy import GiveUp

__all__ = ["Failure", "Kind", "root_cause", "to_json"]

_NAMED = 8
"""Of the tasks elsewhere, how many are listed."""
_INFERRED = frozenset({Kind.LINK_LOST, Kind.LATE, Kind.STALLED})
"""Nothing but silence speaks against such a task, or against the line to it."""


def root_cause(failures: Sequence[Failure]) -> Failure | None:
    """The first of `failures`, in the order in which they arrived, that follows from no other.

    A task that failed by its own doing comes before a lost link, and that before one that was
    merely silent; where all are collateral it is the first of all, and None without failures.
    """
    own = [failure for failure in failures if not failure.is_collateral]
    certain = [failure for failure in own if failure.kind not in _INFERRED]
    links = [failure for failure in own if failure.kind is Kind.LINK_LOST]
    return next(iter([*certain, *links, *own, *failures]), None)


def to_json(
    failures: Sequence[Failure],
    elsewhere: Sequence[TaskPlan] = (),
    *,
    is_by_hand: bool = False,
) -> dict[str, Any] | None:
    """`root_cause`, `collateral` and `attempt` as the `diagnosis` event has them; None for none.

    Where all are collateral, and there are tasks `elsewhere`, one of those is the cause; it was
    started on another machine, or `is_by_hand`.
    """
    cause = root_cause(failures)
    if cause is None:
        return None
    if cause.is_collateral and elsewhere:
        root = {"task": "another machine", "reason": of_those(elsewhere)}
        if is_by_hand:
            name = str(elsewhere[0].id) if len(elsewhere) == 1 else "a task started by hand"
            reason = f"{of_those(elsewhere)}; its own terminal says why: it was started by hand"
            root = {"task": name, "reason": reason}
        return {
            "root_cause": root,
            "collateral": tuple(dict.fromkeys(failure.task for failure in failures)),
            "attempt": cause.attempt,
        }
    others = [failure for failure in failures if failure.task != cause.task]
    collateral = dict.fromkeys(f.task for f in others if f.is_collateral)
    return {
        "root_cause": _facts(cause, also=_also(cause, others)),
        "collateral": tuple(collateral),
        "attempt": cause.attempt,
    }


def of_those(elsewhere: Sequence[TaskPlan]) -> str:
    """Who failed, as far as can be known from here."""
    more = ", …" if len(elsewhere) > _NAMED else ""
    names = ", ".join(str(task.id) for task in elsewhere[:_NAMED]) + more
    return f"{'one of ' if len(elsewhere) > 1 else ''}{names} failed first"


def _also(cause: Failure, others: Sequence[Failure]) -> list[str]:
    """Tasks that failed by themselves just like `cause`: a mistake they share, as a rule."""
    if cause.is_collateral:
        return []
    return list(dict.fromkeys(f.task for f in others if _likeness(f) == _likeness(cause)))


def _likeness(failure: Failure) -> tuple[object, ...]:
    end = (failure.exit_code, failure.signal)
    return (failure.kind, failure.signature or end)


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
"""How long a collateral failure waits for its cause: TensorFlow's heartbeat time-out is 10 s."""
LAST_WORD_S = 3.0
"""A chief whose tuners have all failed may have a reason to tell: it looks for one every second
(tfcluster_workers/hooks/tuner_hooks.py)."""
FROZEN_S = 10.0
"""How long a task may be stopped (SIGSTOP): as long as its peers bear it."""
_TASKS_NAMED = 8
"""Of the tasks elsewhere, how many a message lists."""
_MORE_TIME_TO_EVALUATE = (
    "Give it longer: --set supervision.finish_grace_s=SECONDS. An Estimator's evaluator waits 120 s"
    " before its first evaluation and 600 s between two; EvalSpec(start_delay_secs=0,"
    " throttle_secs=10) makes it look sooner"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Living tasks that are to blame, each with what was seen of it."""

    kind: Kind
    blamed: Sequence[tuple[Member, str]]
    why_end: str
    """What is told to all that are ended because of it."""
    wants_stacks: bool = False
    """Where each thread of each task stands is written to the logs before anything is ended."""
    outcome: Outcome | None = None
    """How the run ends with it; None: that is for the restart policy to say."""


def outlived(core: Sequence[Member], *, is_part: bool = False) -> Verdict:
    """The others failed as a consequence and no cause came: whoever lives on is the cause.

    Of a gang of which only a part is here the cause is elsewhere, and nobody is blamed.
    """
    if is_part:
        return Verdict(Kind.LATE, [], "a task elsewhere failed")
    words = "it did not end while the others failed because of it: hung or cut off"
    late = [(member, words) for member in core if member.is_running and not member.alone]
    return Verdict(Kind.LATE, late, "it outlived the others' failure")


def leaves_preempted(core: Sequence[Member]) -> bool:
    """Whether the gang is on its way out, preempted: those that still run may be saving.

    PreemptionCheckpointHandler has all workers save at one step, then each leaves by itself
    (tensorflow/python/distribute/failure_handling/failure_handling.py).
    """
    kinds = {member.failure.kind for member in core if member.failure is not None}
    rest = [member for member in core if member.is_running]
    preempted = Kind.PREEMPTED in kinds and kinds <= {Kind.PREEMPTED, Kind.COLLATERAL}
    return preempted and any(member.saves_on_sigterm for member in rest)


def frozen(member: Member) -> Verdict:
    """A signal has stopped it, and it did not go on."""
    words = f"stopped by {signal_name(member.frozen_by or 0)} for {FROZEN_S:.0f} s"
    return Verdict(Kind.FROZEN, [(member, words)], "another task was stopped")


def suspects(gang: MemberCounts) -> list[Member]:
    """Those that are stopped while others fail because of somebody."""
    return gang.members(
        lambda one: (
            one.is_core and one.is_running and one.is_frozen and not (one.alone or one.is_stopping)
        )
    )


def ended_late(late: Sequence[Member], grace_s: float, last_step: int | None = None) -> list[str]:
    """Warnings that name tasks that are ended although nothing says that they failed."""
    found = {str(member.id): _not_evaluated(member, last_step) for member in late}
    said = [
        f"{name} was ended {grace_s:g} s after the chief: it had {words}. {_MORE_TIME_TO_EVALUATE}"
        for name, words in found.items()
        if words
    ]
    others = [member for member in late if not found[str(member.id)]]
    return [*said, *_merely_late(others, grace_s)]


def _merely_late(late: Sequence[Member], grace_s: float) -> list[str]:
    if not late:
        return []
    names = ", ".join(str(member.id) for member in late)
    said = f"{names} did not end within {grace_s:g} s after the chief: ended"
    if all(member.is_hooked for member in late):
        return [said]
    return [
        f"{said}. Without hooks tfcluster cannot see what they did; if they still worked, give them"
        " longer: --set supervision.finish_grace_s=SECONDS"
    ]


def _not_evaluated(member: Member, last_step: int | None) -> str:
    """What an evaluator has missed, as far as that is known."""
    if member.id.job != "evaluator" or not member.is_hooked:
        return ""
    if not member.has_evaluated:
        return "evaluated nothing"
    done = member.evaluated_step
    if done is None or last_step is None or done >= last_step:
        return ""
    return f"not evaluated the last checkpoint, of step {last_step:,}, only step {done:,}"


def deserted(core: Sequence[Member]) -> Verdict:
    """A chief that goes on although all that it works with have ended for good: where they
    failed, they are to blame."""
    failed = any(member.alone and member.failure is not None for member in core)
    words = "it went on although all that it works with had ended"
    left = [(m, words) for m in core if m.is_running and not m.serves and not failed]
    why = "nobody is left to work with the chief"
    return Verdict(Kind.LATE, left, why, outcome=Outcome(Status.FAILED, 1))


def longest_wait_s(plan: Plan, core: Sequence[Member]) -> float:
    """How long a deserted chief gets to end by itself: next to nothing where all its tuners have
    failed for good, as it would wait for them for ever (keras-tuner#254)."""
    grace_s = plan.supervision.finish_grace_s
    has_lost_all = all(member.failure is not None for member in core if member.alone)
    return min(LAST_WORD_S, grace_s) if plan.kind == "tuner" and has_lost_all else grace_s


def missing(
    core: Sequence[Member],
    deadline_s: float,
    last_line: Callable[[Member], str],
    now: float,
    elsewhere: Sequence[str] = (),
) -> Verdict:
    """The tasks that others wait for, each with its age and last line.

    Where all wait, nobody is missing: they cannot reach each other, and all are named.
    `elsewhere`: tasks that somebody else starts and that cannot be reached, and why not.
    """
    absent = [m for m in core if not m.waits_for_peers and not m.has_joined]
    absent = absent or [m for m in core if m.waits_for_peers and not elsewhere]
    named = [(member, _not_there(member, last_line(member), now)) for member in absent]
    all_words = [f"{member.id} {words}" for member, words in named] + [*elsewhere]
    listed = "".join(f"\n  {words}" for words in all_words)
    error = DeadlineError(
        f"the tasks did not find each other within {deadline_s:g} s:{listed}",
        fix="the stacks of all tasks are in their logs; "
        "a longer wait: --set supervision.start_deadline_s=SECONDS",
    )
    outcome = Outcome(Status.TIMED_OUT, error.exit_code, error)
    why = f"the tasks did not find each other within {deadline_s:g} s"
    return Verdict(Kind.LATE, named, why, wants_stacks=True, outcome=outcome)


def _not_there(member: Member, last_line: str, now: float) -> str:
    if member.waits_for_peers:
        return "waits for its peers and does not reach them"
    if (ended := member.exit) is not None:
        by = signal_name(ended.signal) if ended.signal else f"exit {ended.exit_code}"
        state = f"ended with {by} before it joined"
    elif member.started_at is None:
        state = "was not started"
    else:
        state = f"has not joined, {now - member.started_at:.0f} s after its start"
    if member.frozen_by is not None:
        state += f", stopped by {signal_name(member.frozen_by)}"
    said = f'; its last line: "{last_line}"' if last_line else "; it has written nothing"
    return state + said


def stalled(core: Sequence[Member], silent_s: float) -> Verdict:
    """Nothing is heard of anybody: named is one that is stopped, else who is furthest behind."""
    running = [member for member in core if member.is_running]
    if stopped := [member for member in running if member.frozen_by is not None]:
        words = f"stopped by {signal_name(stopped[0].frozen_by or 0)}, and all wait for it"
        return Verdict(Kind.FROZEN, [(stopped[0], words)], words, wants_stacks=True)
    last = min(running, key=lambda m: (m.step if m.step is not None else -1, m.heard_at or 0.0))
    steps = ", ".join(f"{m.id} at step {m.step}" for m in running if m.step is not None)
    words = f"no progress and no output of any task for {silent_s:.0f} s ({steps})"
    return Verdict(
        Kind.STALLED,
        [(last, words)],
        f"nothing was heard of any task for {silent_s:.0f} s",
        wants_stacks=True,
    )


def too_long(deadline_s: float) -> Outcome:
    """The run deadline has passed."""
    error = DeadlineError(
        f"the run took longer than supervision.run_deadline_s = {deadline_s:g} s",
        fix="a longer one: --set supervision.run_deadline_s=SECONDS; "
        "go on from its newest checkpoint: `tfcluster up --resume RUN`",
    )
    return Outcome(Status.TIMED_OUT, error.exit_code, error)


def outcome_of(cause: Failure, why: GiveUp, elsewhere: Sequence[TaskPlan] = ()) -> Outcome:
    """How a run ends that `cause` has ended for good; `elsewhere`: tasks that `join` has started on
    other machines."""
    error: TfclusterError | None = None
    status = Status.FAILED
    match cause.kind:
        case Kind.NODE_LOST:
            error = NodeLostError(
                f"node {cause.node} is lost: {cause.words}; its tasks were ended ({why.why})",
                fix="the summary says what was gathered; go on from it: `tfcluster up --resume`",
            )
        case Kind.LINK_LOST:
            error = NodeLostError(
                f"{cause.words} ({why.why})",
                fix="look at the network between the hosts; "
                "then go on from what was gathered: `tfcluster up --resume`",
            )
        case Kind.START_FAILED:
            error = SurroundingsError(
                f"{cause.task} cannot start: {cause.words}",
                fix="`tfcluster plan --task` shows its command",
            )
        case Kind.COLLATERAL if elsewhere:
            error = CollateralError(
                f"what failed here only followed: {of_those(elsewhere)}, on another machine",
                fix="what was started there says why; then start all of them again",
            )
        case Kind.STALLED:
            status = Status.TIMED_OUT
            error = DeadlineError(
                f"the run stalled: {cause.words} ({why.why})",
                fix="the stacks of all tasks are in their logs",
            )
    return Outcome(status, error.exit_code if error else 1, error)
