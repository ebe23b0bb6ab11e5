"""What the supervisor wants done, collected in order; the one place where tasks are told to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tfcluster.run import events as ev
from tfcluster.run.actions import Action, DumpStacks, Record, StopTasks
from tfcluster.run.events import Event
from tfcluster.run.gang import by_node, longest_grace_s, stops
from tfcluster.run.member import Member

AGENT_SLACK_S: Final = 15.0
"""An agent that has not reported the end of its tasks so long after the grace is itself lost."""


class Orders:
    """`most_s`: the spec's ``grace_s``, the longest any task gets between SIGTERM and SIGKILL."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._actions: list[Action] = []

    def take(self) -> list[Action]:
        """What has come together; it is gone here then."""
        actions, self._actions = self._actions, []
        return actions

    def add(self, action: Action) -> None:
        self._actions.append(action)

    def record(self, event: Event) -> None:
        self.add(Record(event))

    def stop(self, members: Sequence[Member], why: str, now: float, grace_s: float | None) -> None:
        """End `members`; without `grace_s` each gets as long as it can use."""
        for order in stops(members, grace_s, most_s=self._most_s):
            self.add(StopTasks(order.node, tuple(order.tasks), order.grace_s, why))
        for member in members:
            grace = member.stop_grace_s(self._most_s) if grace_s is None else grace_s
            answer_by = now + grace + AGENT_SLACK_S
            if member.is_stopping and member.answer_by is not None:
                answer_by = min(answer_by, member.answer_by)  # asking again gives no more time
            member.is_stopping, member.answer_by = True, answer_by
            self.record(ev.TaskStopping(task=str(member.id), attempt=member.attempt, why=why))

    def longest_grace_s(self, members: Sequence[Member], grace_s: float | None) -> float:
        """How long `stop` would give one of `members` at most, seconds."""
        return longest_grace_s(stops(members, grace_s, most_s=self._most_s))

    def dump_stacks(self, members: Sequence[Member]) -> None:
        """Of those that have our boot: to others SIGUSR1 would be death."""
        for node, tasks in by_node(members, lambda member: member.is_hooked).items():
            self.add(DumpStacks(node, tuple(tasks)))
