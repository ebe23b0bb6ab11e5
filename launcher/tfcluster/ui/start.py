"""The start panel: the tasks, Python, ports and folders of a run; pure functions of its plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from operator import itemgetter

from tfcluster.errors import join_first
from tfcluster.plan.context import LOCAL
from tfcluster.plan.plan import Plan, TaskPlan
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.history import format_resume
from tfcluster.ui.plan_view import (
    describe_ports,
    format_interpreter,
    format_numbers,
    format_strategy,
    start_line,
)
from tfcluster.ui.render import Facts, Grid, Panel, Part, Verbatim

_MAX_TASKS = 16


def start_panel(
    plan: Plan,
    paths: RunPaths,
    ports: Mapping[str, int] | None = None,
    *,
    resumes: tuple[str, int | None, str | None] | None = None,
) -> Panel:
    """Return the panel of a run that starts: Python, tasks, open ports, notes, run folder.

    `ports` maps task → reserved port, where the plan left the port to be chosen; `resumes` is the
    run to resume from, its step, and the name of its checkpoint.
    """
    ports = ports or {}
    pairs = [("image", ", ".join(plan.images))] if plan.images else []
    pairs += [*_list_pythons(plan), ("workdir", describe_workdir(plan))]
    pairs.append(("strategy", format_strategy(plan)))
    cluster = [task for task in plan.listening if task.in_cluster]
    if listening := [ports.get(str(task.id), task.port) for task in cluster]:
        pairs.append(("open ports", describe_ports(plan, listening)))
    if plan.joins and plan.elsewhere:
        others = [f"{task.id} at {task.address}" for task in plan.elsewhere]
        pairs.append(("elsewhere", join_first(others, _MAX_TASKS)))
    pairs.append(("folder", str(paths.root)))
    if resumes is not None:
        pairs.append(("resumes", format_resume(*resumes)))
    parts: list[Part] = [Facts(tuple(pairs)), _task_grid(plan, ports)]
    parts += _manual_starts(plan, paths, ports)
    parts += [f"note: {note}" for note in plan.notes]
    return Panel(paths.run_id, tuple(parts))


def describe_workdir(plan: Plan) -> str:
    """Return the folder of the code on this machine, and where copies of it are used."""
    if all(node.backend == "local" for node in plan.nodes):
        return ", ".join(sorted({node.workdir for node in plan.nodes}))
    where = "in each container" if plan.images else "on each host that does not share it"
    return f"{plan.workdir}, a copy {where}"


def _list_pythons(plan: Plan) -> list[tuple[str, str]]:
    several = len({node.interpreter.path for node in plan.nodes if node.interpreter}) > 1
    pairs = []
    for node in plan.nodes:
        if node.interpreter is not None:
            name = f"python on {node.name}" if several else "python"
            pairs.append((name, format_interpreter(node.interpreter)))
    return pairs if several else pairs[:1]


def _manual_starts(plan: Plan, paths: RunPaths, ports: Mapping[str, int]) -> list[Part]:
    """Return the command for each task that the user starts by hand (``--except``)."""
    parts: list[Part] = []
    for task in plan.by_hand:
        port = ports.get(str(task.id), task.port)
        parts.append(f"start {task.id} by hand, at {task.host}:{port}:")
        if task.node == LOCAL:
            exports = f'eval "$(tfcluster env {paths.run_id[-4:]} {task.id})"'
            parts.append(Verbatim((f"({exports} && {start_line(task)})",)))
        else:
            command = f"tfcluster env {plan.spec_path or 'SPEC'} {task.id}"
            parts.append(
                f"on {task.host}, `{command}` prints its environment and the command to start it"
            )
    return parts


def _task_grid(plan: Plan, ports: Mapping[str, int]) -> Part:
    if len(plan.tasks) > _MAX_TASKS:
        counts = Counter(task.node for task in plan.tasks)
        by_node = {"node": itemgetter(0), "tasks": itemgetter(1)}
        return Grid.of([(node.name, counts[node.name]) for node in plan.nodes], by_node, ["tasks"])
    columns: dict[str, Callable[[TaskPlan], object]] = {
        "task": lambda task: task.id,
        "node": lambda task: task.node,
        "address": lambda task: f"{task.host}:{ports.get(str(task.id), task.port) or '?'}",
        "cores": lambda task: format_numbers(task.cores),
        "gpus": lambda task: format_numbers(task.gpus),
    }
    return Grid.of(plan.tasks, columns)
