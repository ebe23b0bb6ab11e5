"""Doubts: what a task, or its agent, has seen that makes its exit code 0 doubtful (pure).

A `Doubt` is about one of:

==========  ====================================================================================
``fit``     `fit` ended with an exception that the script caught, or with `sys.exit`; without an
            exception: the process ended inside of it (`os._exit`)
``child``   the child process that trained failed
``thread``  a thread that took part in the training ended with an exception
``exit``    a function of `atexit` failed
``data``    a dataset, or a training, had no element (`alerts.find_no_step`)
==========  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from tfcluster.agent import catalogue as msg
from tfcluster.errors import join_first
from tfcluster.supervision.failure import CIRCUMSTANCES, describe_exception
from tfcluster.supervision.known_errors import KnownError
from tfcluster.supervision.log_errors import exception_from_report, shorten
from tfcluster.supervision.member import Member

_MOST_NAMED = 3
"""The number of ended tasks that a reason lists."""


def warnings_about(member: Member) -> Iterator[str]:
    """Yield a warning for each doubt about a task that has ended with 0."""
    doubts = member.doubts
    if "fit" in doubts and "child" not in doubts:
        yield _warning(member, _describe_fit(member, doubts["fit"]))
    for about, sentence in _OTHERS.items():
        if about in doubts:
            yield _warning(member, sentence.format(_describe(doubts[about])))


_OTHERS = {
    "child": "the training in its child process failed: {}",
    "thread": "a thread that trained ended with {}",
    "exit": "a function of `atexit` failed: {}",
}


def _warning(member: Member, event: str) -> str:
    return f"{member.name}: it ended with exit code 0, although {event}"


def _describe_fit(member: Member, doubt: msg.Doubt) -> str:
    at = _steps_of(member)
    match doubt.exception:
        case None:
            return f"`fit` had not returned{at and f' ({at})'}"
        case "SystemExit":
            return f"the script left `fit` with sys.exit{at and f' at {at}'}{_place_of(doubt)}"
    return f"`fit` ended{at and f' at {at}'} with {_describe(doubt)}"


def _describe(doubt: msg.Doubt) -> str:
    raised = exception_from_report(vars(doubt))
    first_line = shorten(raised.message).partition("\n")[0].rstrip(": ")
    return describe_exception(replace(raised, message=first_line))


def _place_of(doubt: msg.Doubt) -> str:
    return "" if doubt.file is None else f" ({PurePath(doubt.file).name}:{doubt.line})"


def _steps_of(member: Member) -> str:
    """Return ``step 80 of 800``, or an empty string before the first step."""
    if member.step is None:
        return ""
    return f"step {member.step:,}" + (f" of {member.total_steps:,}" if member.total_steps else "")


def explain_lone_work(
    member: Member, finished: Sequence[Member], place: str, *, is_in_fit: bool = False
) -> tuple[Member, str, KnownError]:
    """Return who is to blame that `member` still needed the `finished` tasks, the reason, the hint.

    They have ended with 0, or left their scripts. To blame is the first of them that did so before
    its training was over, else `member` itself. The reason follows the name of that task, and does
    not repeat it.
    `place`: the file and line of the script where it needed them, or "". `is_in_fit`: `member`
    still runs, in `fit`.
    """
    where = f" ({place})" if place else ""
    for other in finished:
        if reason := _left_early(other, member, is_in_fit=is_in_fit):
            how = "left its script" if other.is_running else "ended with exit code 0"
            ended = f"{reason} and {how}; {member.name} waited for it{where}"
            return other, ended, CIRCUMSTANCES["ended_early"]
    names = join_first([other.name for other in finished], _MOST_NAMED)
    alone = CIRCUMSTANCES["chief_alone"]
    last = max((other.step for other in finished if other.step is not None), default=None)
    if member.step is not None and last is not None and (member.total_steps or member.step) > last:
        total = "" if member.total_steps is None else f" of {member.total_steps:,}"
        steps = f"step {member.step:,}{total} against {last:,}"
        return member, f"still trained{where} after {names} had ended: {steps}", alone
    reason = f"did alone what all workers must do{where}: {names} had ended before"
    return member, reason, alone


def _left_early(member: Member, waiting: Member, *, is_in_fit: bool) -> str:
    """Return how a task that has ended left the training; an empty string if it did its part."""
    if (doubt := member.doubts.get("fit")) is not None:
        at = _steps_of(member)
        how = {None: "", "SystemExit": " with sys.exit"}.get(doubt.exception)
        how = f" with {_describe(doubt)}" if how is None else how
        return f"left `fit`{at and f' at {at}'}{how}"
    still_trained = "fit" in waiting.doubts or (waiting.step or 0) > (member.step or 0)
    if not ((still_trained or is_in_fit) and member.is_hooked):
        return ""
    if member.step is None and member.way is None:
        return "did not train"
    if member.step is not None and member.step < (member.total_steps or 0):
        return f"stopped training at {_steps_of(member)}"
    return ""
