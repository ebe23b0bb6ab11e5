"""The border of a node: which messages its agent may send, about which tasks and how many."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tfcluster.agent import budgets
from tfcluster.agent import catalogue as msg
from tfcluster.agent.budgets import Allowance
from tfcluster.agent.message_fields import shorten
from tfcluster.agent.protocol import ProtocolError
from tfcluster.nodes.reports import STEPS
from tfcluster.wire.messages import Log


class NodeBorder:
    """The check of a node's messages against its tasks and orders.

    One serves all agents of a node: a later agent may send logs of what an earlier one started.
    """

    def __init__(
        self, tasks: Collection[str], clock: Callable[[], float], by_hand: Collection[str]
    ) -> None:
        """Prepare the check.

        `tasks` are the node's, without those that are started `by_hand`, about which the agent may
        report ports only. Any node may report the prepare step and the probes.
        """
        self._tasks, self._with_ports, self._clock = {*tasks, *STEPS}, {*tasks, *by_hand}, clock
        per_s = budgets.MESSAGES_PER_S * max(1, len(tasks))
        self._allowance = Allowance(budgets.MESSAGES_AT_ONCE, per_s, clock())
        self._ordered: set[tuple[str, int]] = set()

    def note_order(self, order: msg.Order) -> None:
        """Note the attempts of the tasks that the node is ordered to start."""
        if isinstance(order, msg.Start):
            self._ordered |= {(task.task, order.attempt) for task in order.tasks}

    def check(self, report: msg.Report) -> None:
        """Raise ProtocolError for a message that the node may not send.

        That is: of another node's task, of an attempt that was not ordered, without a port of a
        task, or more messages than its tasks can cause.
        """
        match report:
            case msg.PortsHeld(ports=ports):
                self._check_tasks(report, ports, self._with_ports)
                if missing := self._with_ports - ports.keys():
                    raise ProtocolError(
                        f"a message 'ports_held' without {', '.join(sorted(missing))}"
                    )
            case msg.PortTaken(task=task):
                self._check_tasks(report, [task], self._with_ports)
            case msg.NodeUsage(tasks=used):
                self._check_tasks(report, [usage.task for usage in used], self._tasks - STEPS)
            case msg.TaskMessage(task=task, attempt=attempt):
                self._check_attempt(report, task, attempt)
            case msg.Unkillable(task=str(task), attempt=attempt):
                self._check_attempt(report, task, attempt)
            case Log(name=name):
                task, _, number = name.rpartition("/")
                is_number = number.isascii() and number.isdigit() and len(number) < 10
                self._check_attempt(report, task, int(number) if is_number else -1)
                return  # its bytes count
        self._allowance.spend(1, self._clock())
        if self._allowance.wait_s(self._clock()) > 0:
            raise ProtocolError(f"more than {budgets.MESSAGES_AT_ONCE:,} messages at once")

    def _check_tasks(
        self, report: msg.Report, named: Collection[str], allowed: Collection[str]
    ) -> None:
        for task in named:
            if task not in allowed:
                raise ProtocolError(
                    f"a message {report.type!r} about {shorten(task)}, which is not its task"
                )

    def _check_attempt(self, report: msg.Report, task: str, attempt: int | None) -> None:
        self._check_tasks(report, [task], self._tasks)
        if attempt is not None and (task, attempt) not in self._ordered:
            raise ProtocolError(
                f"a message {report.type!r} of {task}, attempt {attempt}, which was never started"
            )
