"""Which node dials which task, when nodes look whether they reach each other (pure).

Every node at every task would be 49,000 connections for a thousand tasks on fifty nodes. What is
to be found is a line that is cut and a port that is closed: so in a large run each node dials each
other one, each port is dialled by some other node, and no more than that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfcluster.plan.plan import Plan, TaskId, TaskPlan

_ALL_OF = 64
"""Of so many tasks each is dialled by every other node: a firewall may let one pass and not all."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Who dials whom, and where."""

    dialled: Mapping[str, Sequence[TaskPlan]]
    """Node → tasks of other nodes."""
    callers: Mapping[TaskId, Sequence[str]]
    """The same, from the other end."""
    ports: Mapping[TaskId, int]

    def of(self, node: str) -> list[dict[str, Any]]:
        """What `agent.probe` and `agent.dial` are told to dial there."""
        return [
            {
                "node": task.node,
                "task": str(task.id),
                "host": task.host.strip("[]"),
                "port": self.ports[task.id],
            }
            for task in self.dialled[node]
        ]


def between(plan: Plan, nodes: Sequence[str], ports: Mapping[TaskId, int]) -> Calls:
    """`nodes` dial the tasks of which `ports` are known, each those of the others."""
    on: dict[str, list[TaskPlan]] = defaultdict(list)
    for task in plan.tasks:
        if task.id in ports:
            on[task.node].append(task)
    dialled: dict[str, list[TaskPlan]] = {name: [] for name in nodes}
    callers: dict[TaskId, list[str]] = {task: [] for task in ports}
    for target, its in on.items():
        others = [name for name in nodes if name != target]
        share = len(its) if len(ports) <= _ALL_OF else -(-len(its) // max(1, len(others)))
        for place, caller in enumerate(others):
            for number in range(place * share, (place + 1) * share):
                task = its[number % len(its)]
                dialled[caller].append(task)
                callers[task.id].append(caller)
    return Calls(dialled, callers, ports)
