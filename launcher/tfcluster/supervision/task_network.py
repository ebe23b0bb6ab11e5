"""Finds the host that the others cannot reach, from what the nodes report of each other (pure).

TensorFlow reports a cut link like a dead peer: every task blames another, in messages that name no
host. So once tasks fail that way, the agents, which the coordinator still reaches by ssh, dial
each other's task ports, and the host that cannot be reached is named. Where the link works again
by then, the host is the one of the task whose heartbeats TensorFlow missed
(coordination_service.cc).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tfcluster.agent import foreign_json
from tfcluster.plans.plan import Plan, TaskId, TaskPlan
from tfcluster.supervision.failure import Failure

_ALL_OF = 64
"""Up to this many tasks, every node dials every task: a firewall may block only some ports."""


@dataclass(frozen=True, slots=True)
class DialPlan:
    """The plan of which node dials which task, at which port."""

    dialled: Mapping[str, Sequence[TaskPlan]]
    """Node → the tasks of other nodes that it dials."""
    callers: Mapping[TaskId, Sequence[str]]
    """Task → the nodes that dial it."""
    ports: Mapping[TaskId, int]

    def of(self, node: str) -> list[dict[str, Any]]:
        """Return what `agent.node.probe` is to dial on `node`."""
        return [
            {
                "node": task.node,
                "task": str(task.id),
                "host": task.bare_host,
                "port": self.ports[task.id],
            }
            for task in self.dialled[node]
        ]


def plan_dials(plan: Plan, nodes: Sequence[str], ports: Mapping[TaskId, int]) -> DialPlan:
    """Plan that each of `nodes` dials the tasks of the others whose `ports` are known."""
    on: dict[str, list[TaskPlan]] = defaultdict(list)
    for task in plan.tasks:
        if task.id in ports:
            on[task.node].append(task)
    dialled: dict[str, list[TaskPlan]] = {name: [] for name in nodes}
    callers: dict[TaskId, list[str]] = {task: [] for task in ports}
    for target, tasks in on.items():
        others = [name for name in nodes if name != target]
        share = len(tasks) if len(ports) <= _ALL_OF else ceil(len(tasks) / max(1, len(others)))
        for place, caller in enumerate(others):
            for number in range(place * share, (place + 1) * share):
                task = tasks[number % len(tasks)]
                dialled[caller].append(task)
                callers[task.id].append(caller)
    return DialPlan(dialled, callers, ports)


PATIENCE_S = 4.0
"""The time nodes keep dialling: the third packet of a connection goes out after three seconds."""
ANSWER_S = 12.0
"""The time the coordinator waits for their reports."""
_TASK = r"/job:(\w+)/replica:\d+/task:(\d+)"
_MISSED_HEARTBEAT = re.compile(
    rf"{_TASK} heartbeat timeout|stopped sending heartbeats\):\s*{_TASK}"
)


@dataclass(frozen=True, slots=True)
class Cut:
    """A failed connection: node `source` cannot reach `task` on node `target`."""

    source: str
    target: str
    task: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source} cannot connect to {self.task} on {self.target} ({self.reason})"


def can_break(plan: Plan) -> bool:
    """Return whether tasks of the run reach each other over a network."""
    return len(plan.nodes) > 1 and not all(node.is_here for node in plan.nodes)


def order_for(node: str, dial_plan: DialPlan, attempt: int) -> dict[str, Any]:
    """Return the order for `agent.node.probe` on `node` after a failure."""
    return {"attempt": attempt, "others": dial_plan.of(node), "patience_s": PATIENCE_S}


def parse_report(node: str, line: str, *, attempt: int) -> tuple[Cut, ...]:
    """Parse the report of `node`; empty where it belongs to another attempt or is malformed."""
    try:
        data = foreign_json.parse_json_object(line)
        if data["attempt"] != attempt:
            return ()
        rows = data["cut"]
        return tuple(Cut(node, str(to), str(task), str(reason)) for to, task, _, _, reason in rows)
    except (ValueError, KeyError, TypeError):
        return ()


def find_lost_links(cuts: Iterable[Cut], *, chief_node: str) -> dict[str, str]:
    """Return the fewest nodes whose lost links explain all of `cuts`: node → description.

    Of two nodes that cannot reach each other it is the one without the chief, whose process leads
    the others (TensorFlow's coordination service).
    """
    remaining, lost = list(cuts), dict[str, str]()
    while remaining:
        pairs = {(cut.source, cut.target) for cut in remaining}
        count = Counter(node for pair in pairs for node in pair)
        node = max(count, key=lambda name: (count[name], name != chief_node, name))
        lost[node] = _describe_lost_link(
            node, [cut for cut in remaining if node in (cut.source, cut.target)]
        )
        remaining = [cut for cut in remaining if node not in (cut.source, cut.target)]
    return lost


def _describe_lost_link(node: str, cuts: Sequence[Cut]) -> str:
    """Return the description of a lost link, with the first cut of up to three pairs of nodes."""
    pairs = {frozenset((cut.source, cut.target)): cut for cut in reversed(cuts)}
    shown = [str(cut) for cut in list(pairs.values())[::-1][:3]]
    more = f", and {len(pairs) - 3} other hosts" if len(pairs) > 3 else ""
    return f"link to host {node} lost: {'; '.join(shown)}{more}"


def find_missed_heartbeats(failures: Iterable[Failure], nodes: Mapping[str, str]) -> dict[str, str]:
    """Return the hosts whose tasks' heartbeats another host missed, as TensorFlow reports them.

    The result is that of `find_lost_links`. `nodes`: task → its node.
    """
    lost: dict[str, str] = {}
    for failure in failures:
        here = nodes.get(failure.task)
        text = f"{failure.last_lines}\n{(failure.error or {}).get('message', '')}"
        for groups in _MISSED_HEARTBEAT.findall(text):
            task = ":".join(filter(None, groups))
            node = nodes.get(task)
            if node is not None and node not in (here, *lost):
                lost[node] = (
                    f"link to host {node} lost: {here} got no heartbeat of {task} for TensorFlow's"
                    " 10 s; now it answers again"
                )
    return lost
