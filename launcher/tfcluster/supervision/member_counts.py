"""Groups the members of a gang by their standing, so that no event needs a scan of all of them.

A thousand tasks report thousands of starts, reports and ends; scanning every member after each of
them would take a million steps. But a thousand members share a few standings, and the effect of an
event on the run depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from tfcluster.supervision.decisions import TaskEnd
from tfcluster.supervision.member import Member


class Standing(NamedTuple):
    """All facts about a member that decide how the gang goes on."""

    job: str
    end: tuple[bool, bool, bool, bool]
    """The fields running, ok, ended_by_us and collateral of its `TaskEnd`."""
    serves: bool
    restarts_alone: bool
    is_running: bool
    is_awaited: bool
    is_to_start: bool
    is_restart_due: bool
    is_stopping: bool
    is_frozen: bool
    waits: bool
    has_searched: bool
    answer_by: float | None
    """The moment of `Member.answer_by`, equal for members that were ordered together."""

    @property
    def is_core(self) -> bool:
        """True for the members of `Gang.core`."""
        return self.job != "evaluator"

    @property
    def waits_for_chief(self) -> bool:
        """True for a tuner that asks its chief for work."""
        return self.restarts_alone and self.waits

    @property
    def may_run(self) -> bool:
        """True if it runs, or its process may already run."""
        return self.is_running or self.is_awaited


class MemberCounts:
    """The members of one gang by standing; each adds itself to `_changed` when it changes."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._changed: dict[str, Member] = {}
        self._standing: dict[str, Standing] = {}
        self._by_standing: dict[Standing, dict[str, Member]] = {}
        self._waiting: dict[str, Member] = {}
        """The members that wait for their peers, the longest wait first."""
        self._place: dict[str, int] = {}
        for member in members:
            self.count(member)

    def count(self, member: Member) -> None:
        """Add `member`, replacing the one with its name."""
        name = str(member.id)
        self._place.setdefault(name, len(self._place))
        member.changed = self._changed
        self._changed[name] = member

    def standings(self) -> Collection[Standing]:
        """Return the distinct standings of all members."""
        self._update()
        return self._by_standing.keys()

    def ends(self) -> list[TaskEnd]:
        """Return the end of one member of each standing; the others differ only in their names."""
        self._update()
        return [next(iter(members.values())).end() for members in self._by_standing.values()]

    def members(self, fits: Callable[[Standing], bool]) -> list[Member]:
        """Return the members whose standing `fits`, in the plan's order."""
        self._update()
        found = [
            (self._place[name], member)
            for standing, members in self._by_standing.items()
            if fits(standing)
            for name, member in members.items()
        ]
        return [member for _, member in sorted(found, key=lambda pair: pair[0])]

    def waits_since(self) -> float | None:
        """Return since when a core member has waited for its peers, the longest wait, or None."""
        self._update()
        return next((member.waits_since for member in self._waiting.values()), None)

    def _update(self) -> None:
        for name, member in self._changed.items():
            if (before := self._standing.get(name)) is not None:
                del self._by_standing[before][name]
                if not self._by_standing[before]:
                    del self._by_standing[before]
            standing = self._standing[name] = standing_of(member)
            self._by_standing.setdefault(standing, {})[name] = member
            if standing.is_running and standing.waits and standing.is_core:
                if self._waiting.get(name) is not member:
                    self._waiting.pop(name, None)  # the member of an earlier attempt
                    self._waiting[name] = member
            else:
                self._waiting.pop(name, None)
        self._changed.clear()


def standing_of(member: Member) -> Standing:
    end = member.end()
    running, awaited = member.is_running, member.is_awaited
    return Standing(
        job=member.id.job,
        end=(end.running, end.ok, end.ended_by_us, end.collateral),
        serves=member.serves,
        restarts_alone=member.restarts_alone,
        is_running=running,
        is_awaited=awaited,
        is_to_start=member.is_to_start,
        is_restart_due=member.is_restart_due,
        is_stopping=member.is_stopping,
        is_frozen=member.frozen_by is not None,
        waits=member.waits_for_peers,
        has_searched=member.has_searched,
        answer_by=member.answer_by if running or awaited else None,
    )
