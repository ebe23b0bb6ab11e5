"""All-reduces of 64 MB between the workers of a plan, for `doctor --deep`: which ones, and results.

The workers measure them with TensorFlow's own collectives (`tfcluster_workers.all_reduce`),
one after the other: each link alone, then the ring of all workers, with each communication.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

from tfcluster.errors import join_first
from tfcluster.plans.plan import Plan, TaskId, TaskPlan
from tfcluster.plans.resources import shared_gpus

BYTES: Final = 64_000_000
BUDGET_S: Final = 240.0
"""Time after which no further all-reduce begins."""
TIMEOUT_S: Final = 120.0
"""Time for one all-reduce: 64 MB at 4 Mbit/s."""
_MOST_LINKS: Final = 28
"""The links of 8 workers; of more workers only those are measured that the ring uses."""
_MOST_NEIGHBOURS: Final = 64


@dataclass(frozen=True, slots=True)
class AllReduce:
    """One measured all-reduce, in which each worker has `bytes`."""

    communication: str
    workers: tuple[str, ...]
    nodes: tuple[str, ...]
    """The nodes of `workers`."""
    seconds: float
    bytes: int = BYTES

    @property
    def gb_per_s(self) -> float:
        """The algorithm bandwidth: bytes by time (nccl-tests, PERFORMANCE.md)."""
        return self.bytes / self.seconds / 1e9

    @property
    def link_gb_per_s(self) -> float:
        """The bus bandwidth: what each link of a ring carries, 2(n-1)/n of the bytes by time."""
        return self.gb_per_s * 2 * (len(self.workers) - 1) / len(self.workers)

    def to_json(self) -> dict[str, Any]:
        return {
            "communication": self.communication,
            "workers": list(self.workers),
            "nodes": list(self.nodes),
            "seconds": self.seconds,
            "bytes": self.bytes,
            "gb_per_s": round(self.gb_per_s, 4),
            "link_gb_per_s": round(self.link_gb_per_s, 4),
        }


def slowest_links(found: Sequence[AllReduce]) -> Mapping[str, AllReduce]:
    """Return communication → its slowest link, an all-reduce of two workers."""
    by_name: dict[str, list[AllReduce]] = {}
    for one in found:
        if len(one.workers) == 2:
            by_name.setdefault(one.communication, []).append(one)
    return {name: max(links, key=lambda link: link.seconds) for name, links in by_name.items()}


def why_not(plan: Plan, devices: Mapping[str, Sequence[str]]) -> str:
    """Return why the workers of `plan` cannot run an all-reduce; empty if they can.

    `devices`: node → what TensorFlow registers there, where it could be imported.
    """
    if plan.kind != "training":
        return f"a job of kind {plan.kind} has none"
    if plan.strategy != "multi_worker_mirrored":
        return f"strategy {plan.strategy} has none over the tasks"
    if len(workers_of(plan)) < 2:
        return "there is one worker"
    without = [worker.node for worker in workers_of(plan) if worker.node not in devices]
    return f"TensorFlow was not imported on {join_first(without)}" if without else ""


def workers_of(plan: Plan) -> list[TaskPlan]:
    """Return the tasks that sum their gradients, in TensorFlow's order."""
    tasks = (task for task in plan.tasks if task.id.job in ("chief", "worker"))
    return sorted(tasks, key=lambda task: task.id)


def links_of(plan: Plan) -> tuple[list[tuple[TaskId, TaskId]], str]:
    """Return the links to measure, and a sentence about those that are left out.

    A link is between the first workers of two nodes; on one node, between any two of its workers.
    """
    first: dict[str, TaskId] = {}
    for worker in workers_of(plan):
        first.setdefault(worker.node, worker.id)
    ends = list(first.values()) if len(first) > 1 else [worker.id for worker in workers_of(plan)]
    links = list(combinations(ends, 2))
    if len(links) <= _MOST_LINKS:
        return links, ""
    ring = list(zip(ends, [*ends[1:], ends[0]], strict=True))[:_MOST_NEIGHBOURS]
    left_out = f"Only {len(ring)} of {len(links):,} links were measured: neighbours in the ring"
    return ring, left_out


def communications(plan: Plan, devices: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the communications that apply; `devices`: node → what TensorFlow registers there.

    NCCL needs a GPU for each worker, which no other one uses.
    """
    by_node: dict[str, list[TaskPlan]] = {}
    for worker in workers_of(plan):
        by_node.setdefault(worker.node, []).append(worker)
    has_gpus = all("GPU" in devices.get(node, ()) for node in by_node)
    shares = any(shared_gpus([task.gpus for task in tasks]) for tasks in by_node.values())
    return ("RING", "NCCL") if has_gpus and not shares else ("RING",)


def order_of(plan: Plan, names: Sequence[str]) -> str:
    """Return the order to the workers' program, in JSON; `names`: the communications."""
    links, _ = links_of(plan)
    everyone = [str(worker.id) for worker in workers_of(plan)]
    groups = [*(list(map(str, link)) for link in links), *([everyone] if everyone[2:] else [])]
    return json.dumps(
        {
            "groups": groups,
            "communications": names,
            "bytes": BYTES,
            "device": "GPU" if "NCCL" in names else "CPU",
            "timeout_s": TIMEOUT_S,
            "budget_s": BUDGET_S,
        }
    )


def gang_of(plan: Plan, order: str, boots: Mapping[str, str]) -> Plan:
    """Return `plan` with only its workers, which measure; `boots`: node → the path of boot there.

    They run in no folder of the job: a node may not have the code.
    """
    tasks = []
    for task in workers_of(plan):
        python = plan.node(task.node).python
        argv = (python, boots[task.node], "module", "tfcluster_workers.all_reduce", order)
        tasks.append(replace(task, command=replace(task.command, argv=argv, cwd="/")))
    return replace(plan, tasks=tuple(tasks), preload=(), settings={})
