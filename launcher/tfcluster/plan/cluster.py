"""The spec's three ways to write a cluster, read as one list of tasks with their places."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tfcluster.plan.placement import place
from tfcluster.plan.plan import JOB_NAMES, TaskId
from tfcluster.plan.resources import Gpus

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec


@dataclass(frozen=True, slots=True)
class Seat:
    """One task of the spec and where it sits; port 0 is to be chosen."""

    id: TaskId
    host: str
    port: int
    node: str
    backend: str
    gpus: Gpus = None
    env: Mapping[str, str | None] = field(default_factory=dict)


def seats(spec: ClusterSpec, own: Collection[str]) -> tuple[Seat, ...]:
    """Every task in the order of tables; `own`: this machine's addresses and names."""
    return tuple(_seats(spec, own))


def hosts_of(all_seats: Collection[Seat]) -> tuple[str, ...]:
    """Host parts, each once, in order."""
    return tuple(dict.fromkeys(seat.host for seat in all_seats))


def by_node(all_seats: Collection[Seat]) -> dict[str, tuple[Seat, ...]]:
    """Node name → its tasks, in order."""
    names = dict.fromkeys(seat.node for seat in all_seats)
    return {name: tuple(s for s in all_seats if s.node == name) for name in names}


def _seats(spec: ClusterSpec, own: Collection[str]) -> Iterator[Seat]:
    for job in JOB_NAMES:
        listed = spec.cluster.get(job, 0)
        if isinstance(listed, int):
            here = place("127.0.0.1", backend=spec.runtime.backend, own=own)
            for index in range(listed):
                yield Seat(TaskId(job, index), "127.0.0.1", 0, here.node, here.backend)
            continue
        for index, task in enumerate(listed):
            at = place(task.host, backend=spec.runtime.backend, own=own)
            seat = Seat(TaskId(job, index), task.host, task.port, at.node, at.backend)
            yield replace(seat, gpus=task.gpus, env=task.env)
