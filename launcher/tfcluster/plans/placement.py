"""The placement of tasks: node and backend of each, its container, and the tasks of this machine.

`place_tasks` reads the spec; `keep_tasks` and `exclude_tasks` reduce a plan to the tasks that
`tfcluster join` and `up --except` start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tfcluster import kinds
from tfcluster.errors import SetupError, UsageError, join_first
from tfcluster.plans import command
from tfcluster.plans.context import LOCAL, PlacedTask, PlanContext
from tfcluster.plans.job_facts import find_data_dir
from tfcluster.plans.plan import Container, Gpus, Plan, TaskId
from tfcluster.plans.resources import Share
from tfcluster.spec import JOBS
from tfcluster.spec.cluster import is_loopback, task_counts
from tfcluster.spec.sections import DEFAULT_IMAGE

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_FIXED_PORTS_FIX = 'write every address with its port, for example "10.0.0.1:2222"'


def is_local(host: str, local_addresses: Collection[str]) -> bool:
    """Return whether `host` is loopback or one of `local_addresses`."""
    bare = host.strip("[]")
    return bare in local_addresses or is_loopback(bare)


def place_tasks(spec: ClusterSpec, local_addresses: Collection[str]) -> tuple[PlacedTask, ...]:
    """Return every task of the spec with its node, in the order of `JOBS`.

    `local_addresses` are the addresses and names of this machine, here and below. A task keeps the
    port of a listed address in a container, too, which has all ports to itself.
    """
    backend, placed_tasks = spec.runtime.backend, list[PlacedTask]()
    numbers = kinds.Numbers(task_counts(spec.cluster), spec.runtime)
    for job in JOBS:
        listed = spec.cluster.get(job, 0)
        for index, entry in enumerate([None] * listed if isinstance(listed, int) else listed):
            task = TaskId(job, index)
            host = "127.0.0.1" if entry is None else entry.host
            name = kinds.resolve(backend, is_local=is_local(host, local_addresses))
            kind = kinds.get(name)
            number = numbers.next(kind, job)
            node, host = kind.place(task.file_name, number, host, spec.runtime)
            placed = PlacedTask(task, host, 0, node, name)
            if entry is not None:
                placed = replace(placed, port=entry.port, gpus=entry.gpus, env=entry.env)
            placed_tasks.append(placed)
    return tuple(placed_tasks)


def hosts_of(tasks: Collection[PlacedTask]) -> tuple[str, ...]:
    """Return the host parts of the addresses, each once, in order."""
    return tuple(dict.fromkeys(task.host for task in tasks))


def by_node(tasks: Collection[PlacedTask]) -> dict[str, tuple[PlacedTask, ...]]:
    """Return the tasks of each node, by its name, in order."""
    groups: dict[str, list[PlacedTask]] = {}
    for task in tasks:
        groups.setdefault(task.node, []).append(task)
    return {name: tuple(placed) for name, placed in groups.items()}


def by_machine(tasks: Collection[PlacedTask]) -> list[tuple[PlacedTask, ...]]:
    """Return groups of tasks that share cores and GPUs: a node's, or all of one machine's."""
    together = tuple(task for task in tasks if task.kind.capabilities.on_one_machine)
    nodes = by_node([task for task in tasks if not task.kind.capabilities.on_one_machine])
    return [*nodes.values(), *filter(None, [together])]


def find_task_gpus(tasks: Collection[PlacedTask], *, is_search: bool) -> dict[TaskId, Gpus]:
    """Return the GPUs of tasks that override `resources.gpus`; the chief of a search needs none."""
    chiefs: dict[TaskId, Gpus] = {
        task.id: 0 for task in tasks if is_search and task.id.job == "chief"
    }
    return chiefs | {task.id: task.gpus for task in tasks if task.gpus is not None}


def container(spec: ClusterSpec, context: PlanContext, task: PlacedTask, share: Share) -> Container:
    """Return the container of `task`, which may use `share` of the machine if it is this one."""
    image = task.kind.image(spec.runtime.of_role(task.id.job)) or DEFAULT_IMAGE
    if not task.kind.capabilities.on_one_machine:  # it sees no cores and folders that are known
        return Container(image=image, user=spec.runtime.user)
    resources, data = spec.resources, find_data_dir(spec, task.host)
    takes_all = share.gpus is None and "all" in (resources.gpus, task.gpus)
    return Container(
        image=image,
        cpus=resources.cpus,
        cores=share.cores,
        memory=resources.memory,
        gpus="all" if takes_all else share.gpus or None,
        data_dir=_mount(data and data[0], context),
        shared_dir=_mount(spec.checkpoints.dir, context),
        user=spec.runtime.user,
    )


def resolve_mount(path: str, context: PlanContext) -> str:
    """Return the absolute path of a folder of the spec: containers mount no others."""
    return command.resolve_storage(path, context.spec_dir, context.environ)


def find_task(tasks: Iterable[TaskId], name: str) -> TaskId:
    """Return the task called `name`; raises UsageError, with all names, for an unknown one."""
    names = [str(task) for task in tasks]
    try:
        task = TaskId.parse(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if str(task) not in names:
        raise UsageError(f"the plan has no task {task}", fix=f"use one of {join_first(names)}")
    return task


def local_tasks(
    tasks: Sequence[PlacedTask], local_addresses: Collection[str]
) -> tuple[TaskId, ...]:
    """Return the tasks at one of `local_addresses`, those on this machine.

    Raises SetupError if there is none.
    """
    started_here = tuple(task.id for task in tasks if is_local(task.host, local_addresses))
    if not started_here:
        mine = join_first(sorted(filter(_is_reachable, local_addresses)))
        listed = join_first(hosts_of(tasks))
        raise SetupError(
            f"no task is on this machine: it is {mine}, and the tasks are on {listed}",
            fix=f"name the task to start here: --task {tasks[-1].id}",
        )
    return started_here


def keep_tasks(plan: Plan, tasks: Collection[TaskId]) -> Plan:
    """Return `plan` with only `tasks` to start and without restarts, for `tfcluster join`.

    Raises UsageError if a port is chosen at the start: the other machines would not learn it.
    """
    if unknown := plan.without_port:
        message = f"join needs fixed ports in the spec: none for {join_first(unknown)}"
        raise UsageError(message, fix=_FIXED_PORTS_FIX)
    return replace(_split(plan, tasks), joins=True)


def exclude_tasks(plan: Plan, tasks: Collection[TaskId]) -> Plan:
    """Return `plan` without `tasks`, which the user starts by hand, and without restarts.

    Raises UsageError if no task remains, or if tfcluster cannot choose the port of a task.
    """
    remaining = tuple(task.id for task in plan.tasks if task.id not in tasks)
    excluded = tuple(task for task in plan.tasks if task.id in tasks)
    if not remaining:
        raise UsageError("--except leaves no task to start", fix="name fewer tasks")
    if in_made_nodes := [
        task for task in excluded if plan.node(task.node).capabilities.makes_nodes
    ]:
        backend = plan.node(in_made_nodes[0].node).backend
        raise UsageError(
            f"--except: {backend} makes the nodes, so no task can be started by hand",
            fix="run the tasks on this machine: --backend local",
        )
    reduced = _split(plan, remaining)
    nodes = {node.name for node in reduced.nodes}
    # Our agent holds a port for a task of its own node; it can only do so on this machine.
    without_agent = [t.id for t in excluded if t.node not in nodes or t.node != LOCAL]
    if without_agent and (unknown := plan.without_port):
        raise UsageError(
            f"--except {without_agent[0]} needs fixed ports in the spec: none for"
            f" {join_first(unknown)}",
            fix=_FIXED_PORTS_FIX,
        )
    return reduced


def _split(plan: Plan, tasks: Collection[TaskId]) -> Plan:
    """Return `plan` with `tasks` to start and all others elsewhere.

    Raises UsageError where the others would not learn the addresses of this start.
    """
    if plan.interface is not None:
        fix = "write the addresses of that network in the spec, without runtime.interface"
        raise UsageError("runtime.interface needs one start of all tasks", fix=fix)
    started = tuple(task for task in plan.tasks if task.id in tasks)
    nodes = {task.node for task in started}
    return replace(
        plan,
        tasks=started,
        elsewhere=tuple(task for task in plan.tasks if task.id not in tasks),
        nodes=tuple(node for node in plan.nodes if node.name in nodes),
        prepare={node: step for node, step in plan.prepare.items() if node in nodes},
        supervision=replace(plan.supervision, min_workers=None),
    )


def _mount(path: str | None, context: PlanContext) -> str | None:
    """Return the folder to mount, or None; a URL such as a bucket's is not mounted."""
    return None if path is None or "://" in path else resolve_mount(path, context)


def _is_reachable(address: str) -> bool:
    """Return whether other machines reach an address: neither loopback nor link-local."""
    return not (is_loopback(address) or address.startswith(("fe80:", "169.254.")))
