"""The border to one node: of whom it may speak, and how much; see also `backends.vetting`.

An agent of ours keeps to all of this. One that does not is not ours, or is broken: its node is
refused, with what it sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tfcluster.agent import budgets
from tfcluster.agent.allowance import Allowance
from tfcluster.agent.protocol import ProtocolError
from tfcluster.backends import vetting
from tfcluster.run.reports import STEPS


class Border:
    """Outlives the node's agents: what one of them was ordered, its logs may name later."""

    def __init__(
        self, tasks: Collection[str], clock: Callable[[], float], by_hand: Collection[str] = ()
    ) -> None:
        """`tasks`: the node's own, but for those that are started `by_hand`."""
        self._tasks, self._by_hand, self._clock = tasks, by_hand, clock
        per_s = budgets.MESSAGES_PER_S * max(1, len(tasks))
        self._allowance = Allowance(budgets.MESSAGES_AT_ONCE, per_s, clock())
        self._ordered: set[tuple[str, int]] = set()

    def note_order(self, order: Mapping[str, Any]) -> None:
        """What the node is told to do."""
        if order["type"] == "start":
            self._ordered |= {(task["task"], order["attempt"]) for task in order["tasks"]}

    def check(self, message: Mapping[str, Any]) -> None:
        """Raises ProtocolError for word of a task that is not the node's, of an attempt that was
        not ordered, and for more words than its tasks can have."""
        vetting.check_owner(message, self._tasks, STEPS, by_hand=self._by_hand)
        named = self._attempt_in(message)
        if named is not None and named not in self._ordered:
            task, attempt = named
            raise ProtocolError(
                f"a message {message['type']!r} of {task}, attempt {str(attempt)[:20]},"
                " which was never started"
            )
        if message["type"] != "log":
            self._allowance.spend(1, self._clock())
            if self._allowance.wait_s(self._clock()) > 0:
                most = budgets.MESSAGES_AT_ONCE
                raise ProtocolError(f"more than {most:,} messages at once")

    def _attempt_in(self, message: Mapping[str, Any]) -> tuple[str, int | None] | None:
        if message["type"] == "log":
            task, _, number = message["name"].rpartition("/")
            is_number = number.isascii() and number.isdigit() and len(number) < 10
            return task, int(number) if is_number else None
        if message.get("task") is None or "attempt" not in message:
            return None
        return message["task"], message["attempt"]
