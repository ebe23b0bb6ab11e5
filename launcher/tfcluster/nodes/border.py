"""The border of a node: which messages its agent may send, about which tasks and how many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tfcluster.agent import budgets
from tfcluster.agent.budgets import Allowance
from tfcluster.agent.protocol import ProtocolError
from tfcluster.nodes.reports import STEPS
from tfcluster.wire import messages


class NodeBorder:
    """The check of a node's messages against its tasks and orders.

    One serves all agents of a node: a later agent may send logs of what an earlier one started.
    """

    def __init__(
        self, tasks: Collection[str], clock: Callable[[], float], by_hand: Collection[str] = ()
    ) -> None:
        """Prepare the check; `tasks` are the node's, without those that are started `by_hand`."""
        self._tasks, self._by_hand, self._clock = tasks, by_hand, clock
        per_s = budgets.MESSAGES_PER_S * max(1, len(tasks))
        self._allowance = Allowance(budgets.MESSAGES_AT_ONCE, per_s, clock())
        self._ordered: set[tuple[str, int]] = set()

    def note_order(self, order: Mapping[str, Any]) -> None:
        """Note the attempts of the tasks that the node is ordered to start."""
        if order["type"] == "start":
            self._ordered |= {(task["task"], order["attempt"]) for task in order["tasks"]}

    def check(self, message: Mapping[str, Any]) -> None:
        """Raise ProtocolError for a message that the node may not send.

        That is: of another node's task, of an attempt that was not ordered, or more messages than
        its tasks can cause.
        """
        messages.check_owner(message, self._tasks, STEPS, by_hand=self._by_hand)
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
