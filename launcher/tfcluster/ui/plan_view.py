"""How a plan looks before anything is started: a table of tasks, or one task in full."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfcluster.errors import TfclusterError
from tfcluster.plan.attempt import preview
from tfcluster.plan.plan import Command, EnvVar, Interpreter, Plan, TaskId, TaskPlan
from tfcluster.plan.serialize import command_to_json, plan_to_json
from tfcluster.plan.surroundings import LOCAL
from tfcluster.ui.ports import who_listens
from tfcluster.ui.render import Facts, Grid, Part, part_lines

_LABELS = {"tensorflow": "TensorFlow", "keras": "Keras", "tf-keras": "tf_keras"}


def format_plan(plan: Plan, obstacles: Sequence[TfclusterError], *, width: int) -> list[str]:
    """The whole plan, no line wider than `width` except for words that are copied by hand."""
    parts: list[Part] = [Facts(_facts(plan)), "", _task_grid(plan)]
    if plan.notes or obstacles:
        parts.append("")
    parts += [f"note: {note}" for note in plan.notes]
    parts += [f"this would stop `up`: {obstacle}" for obstacle in obstacles]
    return [line for part in parts for line in part_lines(part, width)]


def format_task(plan: Plan, task_id: TaskId) -> list[str]:
    """The exact command and environment of one task; every line can be pasted into a shell."""
    task = plan.task(task_id)
    lines = [
        f"# {task_id} on {task.node}, {_address(task)}",
        f"# starts from the environment of {_where(task)}",
        f"cd {shlex.quote(task.command.cwd)}",
    ]
    if task.command.unset:
        lines.append(f"unset {' '.join(task.command.unset)}")
    lines += [_assignment(var) for var in all_variables(plan, task_id)]
    return [*lines, shlex.join(task.command.argv)]


def task_json(plan: Plan, task_id: TaskId) -> dict[str, Any]:
    """One task as ``plan --task --json`` prints it: with the variables only an attempt knows."""
    task = plan.task(task_id)
    env = all_variables(plan, task_id)
    command = Command(task.command.argv, env, task.command.cwd, task.command.unset)
    place = {"task": str(task_id), "node": task.node, "address": task.address}
    return place | {"gpus": task.gpus, "cores": task.cores} | command_to_json(command)


def plan_json(plan: Plan, obstacles: Iterable[TfclusterError]) -> dict[str, Any]:
    """The plan as ``plan --json`` prints it."""
    return plan_to_json(plan) | {"obstacles": [str(obstacle) for obstacle in obstacles]}


def all_variables(plan: Plan, task_id: TaskId) -> tuple[EnvVar, ...]:
    """By name: the plan's variables and, above them, those of an attempt."""
    found = {var.name: var for var in plan.task(task_id).command.env}
    found |= {var.name: var for var in preview(plan, task_id)}
    return tuple(found[name] for name in sorted(found))


def format_exports(
    plan: Plan, task_id: TaskId, env: Iterable[EnvVar], *, known: Mapping[str, str]
) -> list[str]:
    """Lines for ``eval`` in a shell that has `known`: no secret, no name of another run."""
    lines = [f"unset {' '.join(plan.task(task_id).command.unset)}"]
    for var in env:
        if not var.secret:
            lines.append(f"export {var.name}={shlex.quote(var.value)}")
        elif known.get(var.name) != var.value:
            lines.append(f"# {var.name} is secret and not shown ({var.source}): export it yourself")
    return lines


def _assignment(var: EnvVar) -> str:
    hidden = "# " if var.secret else ""
    return f"{hidden}export {var.name}={shlex.quote(var.shown)}  # {var.source}"


def _facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    pairs = [("name", plan.name)]
    if plan.spec_path:
        pairs.append(("spec", plan.spec_path))
    pairs.append(("strategy", _strategy(plan)))
    if plan.listening:
        pairs.append(("open ports", who_listens(plan)))
    for workdir in dict.fromkeys(node.workdir for node in plan.nodes):
        pairs.append(("workdir", workdir))
    for node in plan.nodes:
        if node.interpreter is not None:
            name = "python" if len(plan.nodes) == 1 else f"python on {node.name}"
            pairs.append((name, format_interpreter(node.interpreter)))
    if plan.tasks:
        pairs.append(("command", shlex.join(plan.tasks[0].command.argv)))
    for command in list(plan.prepare.values())[:1]:
        pairs.append(("prepare", shlex.join(command.argv)))
    return tuple(pairs)


def format_interpreter(python: Interpreter) -> str:
    """Path and why in one line, versions below it."""
    versions = [f"Python {python.version}"] if python.version else []
    versions += [f"{_LABELS[n]} {python.packages[n]}" for n in _LABELS if n in python.packages]
    line = f"{python.path} ({python.why})"
    return f"{line}\n{', '.join(versions)}" if versions else line


def _strategy(plan: Plan) -> str:
    if plan.kind == "plain":
        return "none: plain tasks form no cluster"
    return ", ".join([plan.strategy, *(f"{name} {value}" for name, value in plan.settings.items())])


def _task_grid(plan: Plan) -> Grid:
    headers = ("task", "node", "address", "cores", "threads", "gpus", "env")
    rows = tuple(_row(plan, task) for task in plan.tasks)
    return Grid(headers, rows, frozenset({"threads", "env"})).without_empty_columns()


def _row(plan: Plan, task: TaskPlan) -> tuple[str, ...]:
    threads = [v.value for v in task.command.env if v.name == "TF_NUM_INTRAOP_THREADS"]
    return (
        str(task.id),
        task.node,
        _address(task),
        _numbers(task.cores),
        "".join(threads),
        _numbers(task.gpus),
        str(len(all_variables(plan, task.id))),
    )


def _address(task: TaskPlan) -> str:
    return task.address if task.port else f"{task.host}, port chosen at start"


def _where(task: TaskPlan) -> str:
    return "this shell" if task.node == LOCAL else f"a login on {task.node}"


def _numbers(values: Sequence[int] | None) -> str:
    if values is None:
        return ""
    return ",".join(map(str, values)) or "none"
