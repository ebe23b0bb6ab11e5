"""The spec's three ways to write a cluster, read as one list of tasks with their places."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tfcluster.plan.placement import DOCKER, place
from tfcluster.plan.plan import JOB_NAMES, Gpus, TaskId
from tfcluster.plan.surroundings import LOCAL, Surroundings

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec, TaskEntry


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


def by_machine(all_seats: Collection[Seat]) -> list[tuple[Seat, ...]]:
    """Tasks that share cores and GPUs: those of a node, and those in containers of one daemon."""
    nodes = by_node([seat for seat in all_seats if seat.backend != DOCKER])
    contained = tuple(seat for seat in all_seats if seat.backend == DOCKER)
    return [*nodes.values(), *filter(None, [contained])]


def is_here(seat: Seat, around: Surroundings) -> bool:
    """Whether the cores and GPUs of a task are this machine's."""
    return seat.node == LOCAL or (seat.backend == DOCKER and around.docker_is_here)


def own_gpus(its_seats: Collection[Seat], *, is_search: bool) -> dict[TaskId, Gpus]:
    """What single tasks want of a machine's GPUs, above what `resources.gpus` says for all."""
    # A tuner's chief only keeps the books of the search.
    books: dict[TaskId, Gpus] = {
        seat.id: 0 for seat in its_seats if is_search and seat.id.job == "chief"
    }
    return books | {seat.id: seat.gpus for seat in its_seats if seat.gpus is not None}


def _seats(spec: ClusterSpec, own: Collection[str]) -> Iterator[Seat]:
    for job in JOB_NAMES:
        listed = spec.cluster.get(job, 0)
        if spec.runtime.backend == DOCKER:
            yield from _contained(job, listed)
            continue
        if isinstance(listed, int):
            here = place("127.0.0.1", backend=spec.runtime.backend, own=own)
            for index in range(listed):
                yield Seat(TaskId(job, index), "127.0.0.1", 0, here.node, here.backend)
            continue
        for index, task in enumerate(listed):
            at = place(task.host, backend=spec.runtime.backend, own=own)
            seat = Seat(TaskId(job, index), task.host, task.port, at.node, at.backend)
            yield replace(seat, gpus=task.gpus, env=task.env)


def _contained(job: str, listed: int | Sequence[TaskEntry]) -> Iterator[Seat]:
    """Each in a container with the task's own name as host name; of a written address the port
    stays, which in there is nobody else's."""
    entries = [None] * listed if isinstance(listed, int) else listed
    for index, entry in enumerate(entries):
        task = TaskId(job, index)
        seat = Seat(task, task.file_name, 0, task.file_name, DOCKER)
        if entry is not None:
            seat = replace(seat, port=entry.port, gpus=entry.gpus, env=entry.env)
        yield seat
