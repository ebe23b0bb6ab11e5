"""What docker is told of one task: image, limits, and what it sees of the daemon's machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tfcluster.errors import SurroundingsError, UsageError
from tfcluster.plan import command
from tfcluster.plan.context import LOCAL, PlanContext
from tfcluster.plan.keras_settings import named_data_dir
from tfcluster.plan.plan import JOB_NAMES, Container, Gpus, Plan, TaskId
from tfcluster.plan.resources import Share
from tfcluster.spec.sections import DEFAULT_IMAGE

if TYPE_CHECKING:
    from tfcluster.spec.cluster import TaskEntry
    from tfcluster.spec.model import ClusterSpec

    pass


@dataclass(frozen=True, slots=True)
class Place:
    """A node by name, and the backend that reaches it."""

    node: str
    backend: str


DOCKER = "docker"
"""The backend whose nodes are made for one task each, and named after it."""


def place(host: str, *, backend: str, own: Collection[str]) -> Place:
    """`backend` as the spec says it (``auto`` …); `own`: this machine's addresses and names."""
    if backend == "local" or (backend == "auto" and is_here(host, own)):
        return Place(LOCAL, "local")
    return Place(host, "ssh" if backend == "auto" else backend)


def is_here(host: str, own: Collection[str]) -> bool:
    """Loopback, or one of this machine's own interfaces."""
    bare = host.strip("[]")
    return bare in own or is_loopback(bare)


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class PlacedTask:
    """One task of the spec and where it sits; port 0 is to be chosen."""

    id: TaskId
    host: str
    port: int
    node: str
    backend: str
    gpus: Gpus = None
    env: Mapping[str, str | None] = field(default_factory=dict)


def seats(spec: ClusterSpec, own: Collection[str]) -> tuple[PlacedTask, ...]:
    """Every task in the order of tables; `own`: this machine's addresses and names."""
    return tuple(_seats(spec, own))


def hosts_of(all_seats: Collection[PlacedTask]) -> tuple[str, ...]:
    """Host parts, each once, in order."""
    return tuple(dict.fromkeys(seat.host for seat in all_seats))


def by_node(all_seats: Collection[PlacedTask]) -> dict[str, tuple[PlacedTask, ...]]:
    """Node name → its tasks, in order."""
    names = dict.fromkeys(seat.node for seat in all_seats)
    return {name: tuple(s for s in all_seats if s.node == name) for name in names}


def by_machine(all_seats: Collection[PlacedTask]) -> list[tuple[PlacedTask, ...]]:
    """Tasks that share cores and GPUs: those of a node, and those in containers of one daemon."""
    nodes = by_node([seat for seat in all_seats if seat.backend != DOCKER])
    contained = tuple(seat for seat in all_seats if seat.backend == DOCKER)
    return [*nodes.values(), *filter(None, [contained])]


def shares_this_machine(seat: PlacedTask, context: PlanContext) -> bool:
    """Whether the cores and GPUs of a task are this machine's."""
    return seat.node == LOCAL or (seat.backend == DOCKER and context.docker_is_here)


def own_gpus(its_seats: Collection[PlacedTask], *, is_search: bool) -> dict[TaskId, Gpus]:
    """What single tasks want of a machine's GPUs, above what `resources.gpus` says for all."""
    # A tuner's chief only keeps the books of the search.
    books: dict[TaskId, Gpus] = {
        seat.id: 0 for seat in its_seats if is_search and seat.id.job == "chief"
    }
    return books | {seat.id: seat.gpus for seat in its_seats if seat.gpus is not None}


def _seats(spec: ClusterSpec, own: Collection[str]) -> Iterator[PlacedTask]:
    for job in JOB_NAMES:
        listed = spec.cluster.get(job, 0)
        if spec.runtime.backend == DOCKER:
            yield from _contained(job, listed)
            continue
        if isinstance(listed, int):
            here = place("127.0.0.1", backend=spec.runtime.backend, own=own)
            for index in range(listed):
                yield PlacedTask(TaskId(job, index), "127.0.0.1", 0, here.node, here.backend)
            continue
        for index, task in enumerate(listed):
            at = place(task.host, backend=spec.runtime.backend, own=own)
            seat = PlacedTask(TaskId(job, index), task.host, task.port, at.node, at.backend)
            yield replace(seat, gpus=task.gpus, env=task.env)


def _contained(job: str, listed: int | Sequence[TaskEntry]) -> Iterator[PlacedTask]:
    """Each in a container with the task's own name as host name; of a written address the port
    stays, which in there is nobody else's."""
    entries = [None] * listed if isinstance(listed, int) else listed
    for index, entry in enumerate(entries):
        task = TaskId(job, index)
        seat = PlacedTask(task, task.file_name, 0, task.file_name, DOCKER)
        if entry is not None:
            seat = replace(seat, port=entry.port, gpus=entry.gpus, env=entry.env)
        yield seat


def container(spec: ClusterSpec, context: PlanContext, seat: PlacedTask, share: Share) -> Container:
    """The container of the task at `seat`, whose part of the machine is `share`."""
    wishes, data = spec.resources, named_data_dir(spec, seat.host)
    takes_all = share.gpus is None and "all" in (wishes.gpus, seat.gpus)
    return Container(
        image=spec.runtime.image or DEFAULT_IMAGE,
        cpus=wishes.cpus,
        cores=share.cores,
        memory=wishes.memory,
        gpus="all" if takes_all else share.gpus or None,
        data_dir=_mounted(data and data[0], context),
        shared_dir=_mounted(spec.checkpoints.dir, context),
        user=spec.runtime.user,
    )


def inside(share: Share) -> Share:
    """As the task sees it: docker numbers the GPUs of a container from 0."""
    return share if share.gpus is None else replace(share, gpus=tuple(range(len(share.gpus))))


def of_daemons_machine(path: str, context: PlanContext) -> str:
    """A folder as the spec names it; the daemon takes only absolute ones."""
    return command.storage(path, context.spec_dir, context.environ)


def _mounted(path: str | None, context: PlanContext) -> str | None:
    """What lies in a bucket is not."""
    return None if path is None or "://" in path else of_daemons_machine(path, context)


_SHOWN = 8


def named(tasks: Iterable[TaskId], name: str) -> TaskId:
    """The one of `tasks` called `name`; raises UsageError with the list of those there are."""
    names = [str(task) for task in tasks]
    try:
        task = TaskId.parse(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if str(task) not in names:
        raise UsageError(f"the plan has no task {task}", fix=f"one of {_some(names)}")
    return task


def mine(seats: Sequence[PlacedTask], own: Collection[str]) -> tuple[TaskId, ...]:
    """The tasks that sit at one of the `own` addresses and names of this machine.

    Raises SurroundingsError where none does.
    """
    found = tuple(seat.id for seat in seats if is_here(seat.host, own))
    if not found:
        here = _some(sorted(address for address in own if _is_told(address)))
        there = _some(list(dict.fromkeys(seat.host for seat in seats)))
        raise SurroundingsError(
            f"no task of the spec is this machine's: it is {here}, and the spec names {there}",
            fix=f"say which to start here: --task {seats[-1].id}",
        )
    return found


def part(plan: Plan, tasks: Collection[TaskId]) -> Plan:
    """`plan` with only `tasks` to start, which never starts anything again.

    Raises UsageError where a port is still to be chosen: the others would never hear of it.
    """
    unknown = [str(task.id) for task in plan.listening if task.port == 0]
    if unknown:
        raise UsageError(
            f"join needs ports that are fixed in the spec: {_some(unknown)} without one",
            fix='write every address with its port, for example "10.0.0.1:2222"',
        )
    ours = tuple(task for task in plan.tasks if task.id in tasks)
    nodes = {task.node for task in ours}
    return replace(
        plan,
        joins=True,
        tasks=ours,
        elsewhere=tuple(task for task in plan.tasks if task.id not in tasks),
        nodes=tuple(node for node in plan.nodes if node.name in nodes),
        prepare={node: step for node, step in plan.prepare.items() if node in nodes},
        supervision=replace(plan.supervision, min_workers=None),
    )


def apart(plan: Plan, tasks: Collection[TaskId]) -> Plan:
    """`plan` without `tasks`, which its user starts by hand; then nothing is started again.

    Raises UsageError where no task would be left, or where nobody could choose the port of one.
    """
    left = tuple(task for task in plan.tasks if task.id not in tasks)
    excepted = tuple(task for task in plan.tasks if task.id in tasks)
    if not left:
        raise UsageError("--except leaves no task to start", fix="leave one of them out")
    nodes = {task.node for task in left}
    if any(plan.node(task.node).container is not None for task in excepted):
        fix = "run them on this machine: --backend local"
        raise UsageError("--except: a task in a container cannot be started by hand", fix=fix)
    others = [str(task.id) for task in excepted if task.node not in nodes or task.node != LOCAL]
    unknown = [str(task.id) for task in plan.listening if task.port == 0]
    if others and unknown:
        raise UsageError(
            f"--except {others[0]} needs ports that are fixed in the spec: {_some(unknown)} without"
            " one",
            fix='write every address with its port, for example "10.0.0.1:2222"',
        )
    return replace(
        plan,
        tasks=left,
        elsewhere=excepted,
        nodes=tuple(node for node in plan.nodes if node.name in nodes),
        prepare={node: step for node, step in plan.prepare.items() if node in nodes},
        supervision=replace(plan.supervision, min_workers=None),
    )


def _is_told(address: str) -> bool:
    """Whether a spec could name it: others do not reach loopback, or a link's own addresses."""
    return not (is_loopback(address) or address.startswith(("fe80:", "169.254.")))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
