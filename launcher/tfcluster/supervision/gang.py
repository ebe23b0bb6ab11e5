"""The tasks of a run as the supervisor sees them: who runs, who may save, who has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfcluster.plan.plan import Plan, TaskId
from tfcluster.rundir.events import TaskExited
from tfcluster.supervision.decisions import TaskEnd
from tfcluster.supervision.failure import Failure, Kind, alone_with
from tfcluster.supervision.member import Member, SettingsRead, member_of
from tfcluster.supervision.member_counts import MemberCounts
from tfcluster.supervision.restart_policy import TRAINERS, chief_among
from tfcluster.supervision.verdicts import root_cause


class Gang:
    """The tasks of a run, in the plan's order, each in its newest attempt."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._members = {str(task.id): member_of(plan, task, 1) for task in plan.tasks}
        self.member_counts = MemberCounts(self)
        self._settings = SettingsRead(plan.settings)
        self._came_far = self._has_started = False
        self.number = 0
        """Of the attempt of those that stand and fall together."""
        self.failures: list[Failure] = []
        """Of this attempt of those that stand and fall together, in the order of arrival."""
        self.lone_failures: list[Failure] = []
        """Of those that restart alone and were not started again since."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, task: str | None, attempt: int | None = None) -> Member | None:
        """The member called `task`, unless the word is of an `attempt` that is past."""
        member = self._members.get(task) if task else None
        stale = member is not None and attempt is not None and attempt != member.attempt
        return None if stale else member

    def enlist(self, members: Iterable[TaskId], number: int) -> list[TaskId]:
        """A new attempt of `members`; returns those to start.

        An evaluator that runs, or has left, stays what it is.
        """
        self.number, self._has_started = number, self.has_started
        wanted = set(members)
        enlisted: dict[str, Member] = {}
        to_start = []
        for task in self._plan.tasks:
            if task.id not in wanted:
                continue
            member = self._members[str(task.id)]
            if number == 1 or task.id.job != "evaluator" or _wants_a_start(member):
                self._forget_failures(member)
                member = member_of(self._plan, task, number)
                to_start.append(task.id)
            enlisted[str(task.id)] = member
        self._members = enlisted
        self.member_counts = MemberCounts(self)
        self.failures = []
        return to_start

    def renew(self, member: Member) -> Member:
        """`member` in a further attempt of its own."""
        self._forget_failures(member)
        again = member_of(self._plan, self._plan.task(member.id), member.attempt + 1)
        again.serves = member.serves
        self._members[str(member.id)] = again
        self.member_counts.count(again)
        return again

    @property
    def has_started(self) -> bool:
        """Whether any task has run, in this attempt or in an earlier one."""
        return self._has_started or any(member.is_started for member in self)

    @property
    def attempt(self) -> int:
        """The highest number of any member's attempt."""
        return max(member.attempt for member in self)

    def running(self) -> list[Member]:
        return self.member_counts.members(lambda standing: standing.is_running)

    def core(self) -> list[Member]:
        """All that end when the gang does: an evaluator only follows the checkpoints."""
        return [member for member in self if member.id.job != "evaluator"]

    def idle(self) -> list[Member]:
        """Those that do not end by themselves once the chief has, and have not been told to: a
        tuner that waits for a chief, and all servers once no worker trains any more."""
        running = [one for one in self.member_counts.standings() if one.is_running and one.is_core]
        needs_servers = any(not (one.serves or one.waits_for_chief) for one in running)
        return self.member_counts.members(
            lambda one: (
                one.is_running
                and not one.is_stopping
                and (one.waits_for_chief or (one.serves and not needs_servers))
            )
        )

    def unfinished(self) -> list[Member]:
        """Workers that are known to work by themselves and run still, after the chief.

        Those that trained in step with it have lost nothing of the training; what a task without
        hooks does is not known; a tuner's trials are in the books of its chief.
        """
        return [
            member
            for member in self.core()
            if member.is_running
            and member.is_hooked
            and not (member.serves or member.searches or member.trains_in_step)
        ]

    def satisfied(self, last_step: int | None) -> list[Member]:
        """Running evaluators that have evaluated the last checkpoint: some would wait for ever."""
        evaluators = self.member_counts.members(
            lambda one: one.is_running and not one.is_core and not one.is_stopping
        )
        return [
            member
            for member in evaluators
            if last_step is not None
            and member.evaluated_step is not None
            and member.evaluated_step >= last_step
        ]

    def ends(self, chief: TaskId) -> list[TaskEnd]:
        """The chief's, and of all that stand alike one's: what they mean is the same."""
        led = self._members.get(str(chief))
        return [*([led.end()] if led is not None else ()), *self.member_counts.ends()]

    def lose_node(self, node: str, reason: str) -> None:
        """No word of the tasks of `node` will come any more."""
        for member in self:
            if member.node == node and not member.is_over:
                member.is_lost = True
                self._note(member, member.fails(observed=Kind.NODE_LOST, words=reason))

    def note_report(self, member: Member, report: Mapping[str, Any], now: float) -> None:
        """What a task says of itself."""
        member.note_report(report, now)
        self._came_far |= member.has_trained
        self._settings.note(report)

    def unread_settings(self) -> str | None:
        """A warning, where tasks came far enough to have read what the spec sets."""
        came_far = self._came_far or any(member.end().ok for member in self)
        return self._settings.warning() if came_far else None

    def note_exit(
        self,
        member: Member,
        event: TaskExited,
        *,
        error: Mapping[str, Any] | None,
        last_lines: str,
    ) -> None:
        """A task has ended; `error` is the exception it reported, if it did."""
        member.exit, member.frozen_by = event, None
        if member.failure is not None:
            return
        if event.ended_by == "tfcluster":
            if error is not None and self._fails_by_itself(member, error):
                self._note(member, member.fails(error=error, exit_code=None, signal=None))
            return
        if event.signal is None and member.verdict is not None:
            self.blame(member, Kind.PERMANENT, member.verdict)
            return
        if event.exit_code == 0:
            return
        said = {"error": error, "last_lines": last_lines, "out_of_memory": event.out_of_memory}
        failure = member.fails(**said)
        if failure.is_collateral and (peers := self._peers_that_left(member)):
            words = alone_with(peers, failure)
            failure = member.fails(**said, observed=Kind.PERMANENT, words=words)
        self._note(member, failure)

    def _peers_that_left(self, chief: Member) -> list[str]:
        """All that train with `chief`, where it is the chief and they have ended well before it."""
        trains = [member for member in self if member.id.job in TRAINERS and not member.alone]
        if self._plan.kind != "training" or chief.id != chief_among(
            self._plan, (member.id for member in self)
        ):
            return []
        peers = [member for member in trains if member is not chief]
        return [str(member.id) for member in peers] if all(m.end().ok for m in peers) else []

    def attributed(self, event: TaskExited, error: Mapping[str, Any] | None) -> TaskExited:
        """`event`, or with `ended_by` itself: the exit of a task that was on its way out because of
        an exception of its own when its agent was told to end it."""
        member = self.get(event.task, event.attempt)
        if member is None or event.ended_by != "tfcluster" or not event.exit_code:
            return event
        is_own = self._fails_by_itself(member, error, event.exit_code)
        return replace(event, ended_by="itself") if is_own else event

    def _fails_by_itself(
        self, member: Member, error: Mapping[str, Any] | None, exit_code: int | None = None
    ) -> bool:
        """Whether the end of a task that was asked to end is no consequence of that.

        It is none where its `error` came before, where that is the root cause's own exception, and
        where both refuse the arguments that they share.
        """
        if member.raised is not None:
            return True
        cause = root_cause(self.failures or self.lone_failures)
        if cause is None or cause.is_collateral:
            return False
        if error is None:
            return cause.refused_arguments is not None and cause.exit_code == exit_code
        return Failure(str(member.id), None, None, error=error).signature == cause.signature

    def blame(self, member: Member, kind: Kind, words: str) -> None:
        """What tfcluster itself has seen makes a living task the cause; it is to be ended.

        One that is late because it has raised an exception is to blame for that.
        """
        if kind is Kind.LATE and member.raised is not None:
            self._note(member, member.fails(error=member.raised))
        else:
            self._note(member, member.fails(observed=kind, words=words))

    def _forget_failures(self, member: Member) -> None:
        """It is started anew: they say nothing of how the run ends."""
        alone = self.lone_failures
        self.lone_failures = [one for one in alone if one.task != str(member.id)]

    def _note(self, member: Member, failure: Failure) -> None:
        (self.lone_failures if member.alone else self.failures).append(failure)


def _wants_a_start(evaluator: Member) -> bool:
    """Whether nothing of it runs or will, although it has not left for good."""
    return evaluator.is_lost or evaluator.is_due_again or evaluator.is_to_start


@dataclass(frozen=True, slots=True)
class StopOrder:
    """Tasks of one node that are stopped alike."""

    node: str
    grace_s: float
    tasks: list[str]


def stops(members: Iterable[Member], grace_s: float | None, *, most_s: float) -> list[StopOrder]:
    """How to stop `members`: with `grace_s`, else each with as much of `most_s` as it can use."""
    groups: dict[tuple[str, float], list[str]] = {}
    for member in members:
        grace = member.stop_grace_s(most_s) if grace_s is None else grace_s
        groups.setdefault((member.node, grace), []).append(str(member.id))
    return [StopOrder(node, grace, tasks) for (node, grace), tasks in groups.items()]


def longest_grace_s(orders: Iterable[StopOrder]) -> float:
    """Seconds after which none of the stopped tasks runs any more."""
    return max((order.grace_s for order in orders), default=0.0)


def by_node(members: Iterable[Member], fits: Callable[[Member], bool]) -> dict[str, list[str]]:
    """Node → names of its `members` for which `fits` holds."""
    found: dict[str, list[str]] = {}
    for member in members:
        if fits(member):
            found.setdefault(member.node, []).append(str(member.id))
    return found
