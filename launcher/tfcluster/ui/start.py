"""The start panel: what is being started, and what a user should know of it before; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfcluster.plan.context import LOCAL
from tfcluster.plan.plan import Interpreter, Plan
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui import plan_view
from tfcluster.ui.history import resumed
from tfcluster.ui.plan_view import open_ports
from tfcluster.ui.render import Facts, Grid, Panel, Part, Verbatim

_TASKS_LISTED = 16
_PACKAGE_NAMES = {"tensorflow": "TensorFlow", "keras": "Keras", "tf-keras": "tf_keras"}


def start_panel(
    plan: Plan,
    paths: RunPaths,
    ports: Mapping[str, int] | None = None,
    *,
    resumes: tuple[str, int | None, str | None] | None = None,
) -> Panel:
    """What is being started: which Python and why, tasks, open ports, notes, the run's folder.

    `ports` maps task → held port, where the plan left it to be chosen; `resumes` is the run
    that this one begins with, its step, else the name of its checkpoint.
    """
    held = ports or {}
    pairs = [("image", ", ".join(plan.images))] if plan.images else []
    pairs += [*_pythons(plan), ("workdir", workdir(plan))]
    pairs.append(("strategy", _strategy(plan)))
    cluster = [task for task in plan.listening if task.in_cluster]
    if listening := [held.get(str(task.id), task.port) for task in cluster]:
        pairs.append(("open ports", open_ports(plan, listening)))
    if plan.joins and plan.elsewhere:
        pairs.append(("elsewhere", _elsewhere(plan)))
    pairs.append(("folder", str(paths.root)))
    if resumes is not None:
        pairs.append(("resumes", resumed(*resumes)))
    parts: list[Part] = [Facts(tuple(pairs)), _task_grid(plan, held), *_by_hand(plan, paths, held)]
    parts += [f"note: {note}" for note in plan.notes]
    return Panel(paths.run_id, tuple(parts))


def workdir(plan: Plan) -> str:
    """The folder of the code here; other hosts run in copies of it."""
    if all(node.backend == "local" for node in plan.nodes):
        return _joined({node.workdir for node in plan.nodes})
    where = "in each container" if plan.images else "on each host that does not share it"
    return f"{plan.workdir}, a copy {where}"


def _pythons(plan: Plan) -> list[tuple[str, str]]:
    several = len({node.interpreter.path for node in plan.nodes if node.interpreter}) > 1
    pairs = []
    for node in plan.nodes:
        if node.interpreter is not None:
            name = f"python on {node.name}" if several else "python"
            pairs.append((name, _python(node.interpreter)))
    return pairs if several else pairs[:1]


def _python(interpreter: Interpreter) -> str:
    versions = [f"Python {interpreter.version}"] if interpreter.version else []
    versions += [
        f"{shown} {interpreter.packages[name]}"
        for name, shown in _PACKAGE_NAMES.items()
        if name in interpreter.packages
    ]
    text = f"{interpreter.path} ({interpreter.why})"
    return f"{text}\n{', '.join(versions)}" if versions else text


def _strategy(plan: Plan) -> str:
    settings = [f"{name} {value}" for name, value in plan.settings.items()]
    return ", ".join([plan.strategy, *settings])


def _elsewhere(plan: Plan) -> str:
    """The tasks that are not started from here."""
    shown = [f"{task.id} at {task.address}" for task in plan.elsewhere[:_TASKS_LISTED]]
    return ", ".join(shown) + (", …" if len(plan.elsewhere) > len(shown) else "")


def _by_hand(plan: Plan, paths: RunPaths, held: Mapping[str, int]) -> list[Part]:
    """What its user types to start each task that is left to be started by hand."""
    parts: list[Part] = []
    for task in plan.by_hand:
        port = held.get(str(task.id), task.port)
        parts.append(f"{task.id} is yours to start, at {task.host}:{port}:")
        if task.node == LOCAL:
            exports = f'eval "$(tfcluster env {paths.run_id[-4:]} {task.id})"'
            parts.append(Verbatim((f"({exports} && {plan_view.start(task)})",)))
        else:
            spec = plan.spec_path or "SPEC"
            line = f"tfcluster env {spec} {task.id}"
            parts.append(
                f"on {task.host}, `{line}` prints its environment and the line to start it"
            )
    return parts


def _task_grid(plan: Plan, held: Mapping[str, int]) -> Part:
    if len(plan.tasks) > _TASKS_LISTED:
        rows = [
            (node.name, str(sum(task.node == node.name for task in plan.tasks)))
            for node in plan.nodes
        ]
        return Grid(("node", "tasks"), tuple(rows), frozenset({"tasks"}))
    return Grid(
        ("task", "node", "address", "cores", "gpus"),
        tuple(
            (
                str(task.id),
                task.node,
                f"{task.host}:{held.get(str(task.id), task.port) or '?'}",
                _numbers(task.cores),
                _numbers(task.gpus),
            )
            for task in plan.tasks
        ),
    ).without_empty_columns()


def _numbers(values: Sequence[int] | None) -> str:
    return "" if values is None else ",".join(map(str, values)) or "none"


def _joined(values: set[str]) -> str:
    return ", ".join(sorted(values))
