"""Which of several failed tasks is the cause: the first whose failure is not a consequence.

When one worker dies, TensorFlow ends the others within seconds with errors of their own
(tensorflow/core: "Collective ops is aborted by", coordination-service heartbeats). Those are
*collateral*; what killed the first task is the *root cause*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfcluster.plan.plan import TaskPlan
from tfcluster.run.failure import Failure, Kind

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
