"""Counts the members of a gang by how they stand, so that no event has to look at all of them.

A thousand tasks tell of as many starts, reports and ends; whoever looked at every member after
each of them would look a million times. But a thousand members share a few standings, and what an
event means for the run depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from tfcluster.supervision.decisions import TaskEnd
from tfcluster.supervision.member import Member


class Standing(NamedTuple):
    """All of a member that decides how the gang goes on."""

    job: str
    end: tuple[bool, bool, bool, bool]
    """Of its `TaskEnd`: running, ok, ended_by_us, collateral."""
    serves: bool
    alone: bool
    is_running: bool
    is_awaited: bool
    is_to_start: bool
    is_due_again: bool
    is_stopping: bool
    is_frozen: bool
    waits: bool
    has_searched: bool
    answer_by: float | None
    """Of members that were ordered together, the same."""

    @property
    def is_core(self) -> bool:
        """See `Gang.core`."""
        return self.job != "evaluator"

    @property
    def waits_for_chief(self) -> bool:
        """A tuner that asks for work."""
        return self.alone and self.waits

    @property
    def lives(self) -> bool:
        """It runs, or its process may live already."""
        return self.is_running or self.is_awaited


class MemberCounts:
    """The members of one gang; each tells it of every change of its own."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._moved: dict[str, Member] = {}
        self._standing: dict[str, Standing] = {}
        self._by_standing: dict[Standing, dict[str, Member]] = {}
        self._waiting: dict[str, Member] = {}
        """For their peers; who has waited longest comes first."""
        self._place: dict[str, int] = {}
        for member in members:
            self.count(member)

    def count(self, member: Member) -> None:
        """`member` is in, in the place of the one of its name."""
        name = str(member.id)
        self._place.setdefault(name, len(self._place))
        member.told = self._moved
        self._moved[name] = member

    def standings(self) -> Collection[Standing]:
        """Those that there are, each once."""
        self._settle()
        return self._by_standing.keys()

    def ends(self) -> list[TaskEnd]:
        """Of each standing one member's: they differ in nothing but their names."""
        self._settle()
        return [next(iter(members.values())).end() for members in self._by_standing.values()]

    def members(self, fits: Callable[[Standing], bool]) -> list[Member]:
        """Those that stand so, in the plan's order."""
        self._settle()
        found = [
            (self._place[name], member)
            for standing, members in self._by_standing.items()
            if fits(standing)
            for name, member in members.items()
        ]
        return [member for _, member in sorted(found, key=lambda pair: pair[0])]

    def waits_since(self) -> float | None:
        """Since when the one of the gang waits that has waited longest for its peers."""
        self._settle()
        return next((member.waits_since for member in self._waiting.values()), None)

    def _settle(self) -> None:
        """See where those stand now that have changed."""
        for name, member in self._moved.items():
            self._leave(name)
            standing = self._standing[name] = standing_of(member)
            self._by_standing.setdefault(standing, {})[name] = member
            if standing.is_running and standing.waits and standing.is_core:
                if self._waiting.get(name) is not member:
                    self._waiting.pop(name, None)  # one of an earlier attempt
                    self._waiting[name] = member
            else:
                self._waiting.pop(name, None)
        self._moved.clear()

    def _leave(self, name: str) -> None:
        before = self._standing.get(name)
        if before is not None:
            del self._by_standing[before][name]
            if not self._by_standing[before]:
                del self._by_standing[before]


def standing_of(member: Member) -> Standing:
    end = member.end()
    running, awaited = member.is_running, member.is_awaited
    return Standing(
        job=member.id.job,
        end=(end.running, end.ok, end.ended_by_us, end.collateral),
        serves=member.serves,
        alone=member.alone,
        is_running=running,
        is_awaited=awaited,
        is_to_start=member.is_to_start,
        is_due_again=member.is_due_again,
        is_stopping=member.is_stopping,
        is_frozen=member.frozen_by is not None,
        waits=member.waits_for_peers,
        has_searched=member.has_searched,
        answer_by=member.answer_by if running or awaited else None,
    )
