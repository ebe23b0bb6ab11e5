"""The part of a cluster that one machine starts: its own tasks, and where the others are (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tfcluster.errors import SurroundingsError, UsageError
from tfcluster.plan.placement import is_here, is_loopback
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.plan.surroundings import LOCAL

if TYPE_CHECKING:
    from tfcluster.plan.cluster import Seat

_SHOWN = 8


def named(tasks: Iterable[TaskId], name: str) -> TaskId:
    """The one of `tasks` called `name`; raises UsageError with the list of those there are."""
    names = [str(task) for task in tasks]
    try:
        task = TaskId.parse(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if str(task) not in names:
        raise UsageError(f"the plan has no task {task}", cure=f"one of {_some(names)}")
    return task


def mine(seats: Sequence[Seat], own: Collection[str]) -> tuple[TaskId, ...]:
    """The tasks that sit at one of the `own` addresses and names of this machine.

    Raises SurroundingsError where none does.
    """
    found = tuple(seat.id for seat in seats if is_here(seat.host, own))
    if not found:
        here = _some(sorted(address for address in own if _is_told(address)))
        there = _some(list(dict.fromkeys(seat.host for seat in seats)))
        raise SurroundingsError(
            f"no task of the spec is this machine's: it is {here}, and the spec names {there}",
            cure=f"say which to start here: --task {seats[-1].id}",
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
            cure='write every address with its port, for example "10.0.0.1:2222"',
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
        raise UsageError("--except leaves no task to start", cure="leave one of them out")
    nodes = {task.node for task in left}
    if any(plan.node(task.node).container is not None for task in excepted):
        cure = "run them on this machine: --backend local"
        raise UsageError("--except: a task in a container cannot be started by hand", cure=cure)
    others = [str(task.id) for task in excepted if task.node not in nodes or task.node != LOCAL]
    unknown = [str(task.id) for task in plan.listening if task.port == 0]
    if others and unknown:
        raise UsageError(
            f"--except {others[0]} needs ports that are fixed in the spec: {_some(unknown)} without"
            " one",
            cure='write every address with its port, for example "10.0.0.1:2222"',
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
