"""What tfcluster itself has seen go wrong, in words, and how the run then ends (pure)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Final

from tfcluster.errors import DeadlineError, NodeLostError, SurroundingsError, TfclusterError
from tfcluster.run.ending import Outcome
from tfcluster.run.events import Status
from tfcluster.run.failure import Failure, Kind
from tfcluster.run.gang import Member
from tfcluster.run.restart import GiveUp

OUTLIVED: Final = "it did not end while the others failed because of it: hung or cut off"
DESERTED: Final = "it went on although all that it works with had ended"


def frozen(number: int, seconds: float) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"stopped by {name} for {seconds:.0f} s"


def who_is_missing(
    gang: Sequence[Member], last_line: Callable[[Member], str], now: float
) -> list[tuple[Member, str]]:
    """The tasks that others wait for, each with its age and last line.

    Where all wait, nobody is missing: they cannot reach each other, and all are named.
    """
    missing = [m for m in gang if not m.waits_for_peers and not m.has_joined]
    waiting = [m for m in gang if m.waits_for_peers]
    return [(member, _not_there(member, last_line(member), now)) for member in missing or waiting]


def _not_there(member: Member, last_line: str, now: float) -> str:
    if member.waits_for_peers:
        return f"{member.id} waits for its peers and does not reach them"
    if member.exit is not None:
        code = member.exit.exit_code
        end = f"exit {code}" if code is not None else f"signal {member.exit.signal}"
        state = f"ended with {end} before it joined"
    elif member.started_at is None:
        state = "was not started"
    else:
        state = f"has not joined, {now - member.started_at:.0f} s after its start"
    if member.frozen_by is not None:
        state += f", stopped by {signal.Signals(member.frozen_by).name}"
    said = f'; its last line: "{last_line}"' if last_line else "; it has written nothing"
    return f"{member.id} {state}{said}"


def start_error(missing: Sequence[str], deadline_s: float) -> DeadlineError:
    listed = "".join(f"\n  {words}" for words in missing)
    return DeadlineError(
        f"the tasks did not find each other within {deadline_s:g} s:{listed}",
        cure="the stacks of all tasks are in their logs; "
        "a longer wait: --set supervision.start_deadline_s=SECONDS",
    )


def run_error(deadline_s: float) -> DeadlineError:
    return DeadlineError(
        f"the run took longer than supervision.run_deadline_s = {deadline_s:g} s",
        cure="a longer one: --set supervision.run_deadline_s=SECONDS; "
        "go on from its newest checkpoint: `tfcluster up --resume RUN`",
    )


def who_stalled(gang: Sequence[Member], silent_s: float) -> tuple[Member, str]:
    """The task to name for a silence: the one that is furthest behind, and where all are."""
    running = [member for member in gang if member.is_running]
    last = min(running, key=lambda m: (m.step if m.step is not None else -1, m.heard_at or 0.0))
    steps = ", ".join(f"{m.id} at step {m.step}" for m in running if m.step is not None)
    return last, f"no progress and no output of any task for {silent_s:.0f} s ({steps})"


def outcome_of(cause: Failure, why: GiveUp) -> Outcome:
    """How a run ends that `cause` has ended for good."""
    error: TfclusterError | None = None
    status = Status.FAILED
    match cause.kind:
        case Kind.NODE_LOST:
            error = NodeLostError(
                f"node {cause.node} is lost: {cause.words}; its tasks were ended ({why.why})",
                cure="the summary says what was gathered; go on from it: `tfcluster up --resume`",
            )
        case Kind.START_FAILED:
            error = SurroundingsError(
                f"{cause.task} cannot start: {cause.words}",
                cure="`tfcluster plan --task` shows its command",
            )
        case Kind.STALLED:
            status = Status.TIMED_OUT
            error = DeadlineError(
                f"the run stalled: {cause.words} ({why.why})",
                cure="the stacks of all tasks are in their logs",
            )
    return Outcome(status, error.exit_code if error else 1, error)
