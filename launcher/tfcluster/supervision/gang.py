"""Keeps the tasks of a run with their failures (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tfcluster.agent import catalogue as msg
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.rundir.events import TaskExited
from tfcluster.supervision.decisions import TaskEnd
from tfcluster.supervision.failure import Failure, Kind, explain_missing_peers
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
        self._has_trained = self._has_started = False
        self.number = 0
        """The gang's present attempt; a task that restarts alone may be in a later one."""
        self.failures: list[Failure] = []
        """Failures of this attempt, in order of arrival, without those in `task_failures`."""
        self.task_failures: list[Failure] = []
        """Failures of tasks that restart alone and have not been restarted since."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, task: str | None, attempt: int | None = None) -> Member | None:
        """Return the member called `task`, or None if `attempt` is not its present one."""
        member = self._members.get(task or "")
        return member if member is None or attempt in (None, member.attempt) else None

    def enlist(self, members: Iterable[TaskId], number: int) -> list[TaskId]:
        """Begin attempt `number` of `members`; return the tasks to start.

        An evaluator that runs, or has ended for good, stays in its attempt.
        """
        self.number, self._has_started = number, self.has_started
        requested = set(members)
        enlisted: dict[str, Member] = {}
        to_start = []
        for task in self._plan.tasks:
            if task.id not in requested:
                continue
            member = self._members[str(task.id)]
            must_start = member.is_lost or member.is_restart_due or member.is_to_start
            if number == 1 or task.id.job != "evaluator" or must_start:
                self._drop_failures(member)
                member = member_of(self._plan, task, number)
                to_start.append(task.id)
            enlisted[str(task.id)] = member
        self._members = enlisted
        self.member_counts = MemberCounts(self)
        self.failures = []
        return to_start

    def renew(self, member: Member) -> Member:
        """Replace `member` by its next attempt, and return that."""
        self._drop_failures(member)
        renewed = member_of(self._plan, self._plan.task(member.id), member.attempt + 1)
        renewed.serves = member.serves
        self._members[str(member.id)] = renewed
        self.member_counts.count(renewed)
        return renewed

    @property
    def has_started(self) -> bool:
        """True once any task has run, in this attempt or in an earlier one."""
        return self._has_started or any(member.is_started for member in self)

    @property
    def attempt(self) -> int:
        """The highest attempt number of any member."""
        return max(member.attempt for member in self)

    def running(self) -> list[Member]:
        return self.member_counts.members(lambda standing: standing.is_running)

    def core(self) -> list[Member]:
        """Return all members except evaluators, which only follow the checkpoints."""
        return [member for member in self if member.id.job != "evaluator"]

    def idle(self) -> list[Member]:
        """Return the running tasks that must be stopped once the chief has ended.

        These are tuners that wait for the chief, and all servers once no worker trains any more.
        """
        needs_servers = any(
            standing.is_running
            and standing.is_core
            and not (standing.serves or standing.waits_for_chief)
            for standing in self.member_counts.standings()
        )
        return self.member_counts.members(
            lambda standing: (
                standing.is_running
                and not standing.is_stopping
                and (standing.waits_for_chief or (standing.serves and not needs_servers))
            )
        )

    def unfinished(self) -> list[Member]:
        """Return the workers that still run after the chief and are known to work independently.

        Workers that train in step with the chief lose nothing; what a task without hooks does is
        not known; the chief has recorded a tuner's trials.
        """
        return [
            member
            for member in self.core()
            if member.is_running
            and member.is_hooked
            and not (member.serves or member.searches or member.trains_in_step)
        ]

    def satisfied(self, last_step: int | None) -> list[Member]:
        """Return the running evaluators that have evaluated the last checkpoint.

        Some of them would wait for a further one for ever.
        """
        evaluators = self.member_counts.members(
            lambda standing: (
                standing.is_running and not standing.is_core and not standing.is_stopping
            )
        )
        return [
            member
            for member in evaluators
            if last_step is not None
            and member.evaluated_step is not None
            and member.evaluated_step >= last_step
        ]

    def ends(self, chief: TaskId) -> list[TaskEnd]:
        """Return the end of the chief, and of one member of each standing: enough for `judge`."""
        member = self._members.get(str(chief))
        return [*([member.end()] if member is not None else ()), *self.member_counts.ends()]

    def lose_node(self, node: str, reason: str) -> list[Member]:
        """Mark all tasks of `node` that have not ended as lost, and return them."""
        lost = [member for member in self if member.node == node and not member.is_over]
        for member in lost:
            member.is_lost = True
            self._note(member, member.fails(observed=Kind.NODE_LOST, description=reason))
        return lost

    def note_report(self, member: Member, report: msg.TaskReport, now: float) -> None:
        """Note a task's report about itself."""
        member.note_report(report, now)
        self._has_trained |= member.has_trained
        self._settings.note(report)

    def unread_settings(self) -> str | None:
        """Return a warning about settings that no task has read although some trained, or None."""
        has_trained = self._has_trained or any(member.end().ok for member in self)
        return self._settings.warning() if has_trained else None

    def note_exit(
        self, member: Member, event: TaskExited, *, error: Mapping[str, Any] | None, last_lines: str
    ) -> None:
        """Note the end of a task; `error` is the exception it reported, if any."""
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
        facts = {"error": error, "last_lines": last_lines, "out_of_memory": event.out_of_memory}
        failure = member.fails(**facts)
        if failure.is_collateral and (peers := self._finished_peers(member)):
            description = explain_missing_peers(peers, failure)
            failure = member.fails(**facts, observed=Kind.PERMANENT, description=description)
        self._note(member, failure)

    def _finished_peers(self, chief: Member) -> list[str]:
        """Return the peers of `chief` if it is the chief and all of them have ended with 0."""
        if self._plan.kind != "training":
            return []
        if chief.id != chief_among(self._plan, (member.id for member in self)):
            return []
        trainers = [m for m in self if m.id.job in TRAINERS and not m.restarts_alone]
        peers = [member for member in trainers if member is not chief]
        return [str(member.id) for member in peers] if all(m.end().ok for m in peers) else []

    def attributed(self, event: TaskExited, error: Mapping[str, Any] | None) -> TaskExited:
        """Return `event`, with `ended_by="itself"` where the task was already failing by itself.

        Such a task raised its own exception before its agent stopped it.
        """
        member = self.get(event.task, event.attempt)
        if member is None or event.ended_by != "tfcluster" or not event.exit_code:
            return event
        is_own = self._fails_by_itself(member, error, event.exit_code)
        return replace(event, ended_by="itself") if is_own else event

    def _fails_by_itself(
        self, member: Member, error: Mapping[str, Any] | None, exit_code: int | None = None
    ) -> bool:
        """Return whether a task that was asked to stop would have failed anyway.

        This is so where it reported an exception before, where `error` is the root cause's own
        exception, and where both reject the arguments that they share.
        """
        if member.raised is not None:
            return True
        cause = root_cause(self.failures or self.task_failures)
        if cause is None or cause.is_collateral:
            return False
        if error is None:
            return cause.refused_arguments is not None and cause.exit_code == exit_code
        return Failure(str(member.id), None, None, error=error).signature == cause.signature

    def blame(self, member: Member, kind: Kind, description: str) -> None:
        """Note a failure that tfcluster itself observed; the task must be stopped.

        A task that is late because it has raised an exception fails with that exception.
        """
        if kind is Kind.LATE and member.raised is not None:
            self._note(member, member.fails(error=member.raised))
        else:
            self._note(member, member.fails(observed=kind, description=description))

    def _drop_failures(self, member: Member) -> None:
        """Drop the failures of a task that is restarted: they no longer decide the outcome."""
        failures = self.task_failures
        self.task_failures = [failure for failure in failures if failure.task != str(member.id)]

    def _note(self, member: Member, failure: Failure) -> None:
        (self.task_failures if member.restarts_alone else self.failures).append(failure)
