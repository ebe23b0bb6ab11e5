"""How a plan looks before anything is started: a table of tasks, or one task in full."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfcluster.errors import TfclusterError
from tfcluster.plan import remote_paths
from tfcluster.plan.attempt import preview
from tfcluster.plan.context import LOCAL
from tfcluster.plan.plan import (
    Command,
    EnvVar,
    Interpreter,
    Plan,
    TaskId,
    TaskPlan,
    command_to_json,
    plan_to_json,
)
from tfcluster.ui.formats import plural
from tfcluster.ui.lines import harmless_text
from tfcluster.ui.render import Facts, Grid, Part, part_lines

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_NAMES = re.compile(rf"(^~(?=/|$)|{re.escape(remote_paths.CACHE)}|{re.escape(remote_paths.RUN)})")


def quote(word: str) -> str:
    """`word` for a shell, without a control character but tab and newline."""
    if not _CONTROLS.search(word):
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_CONTROLS.sub(_as_bytes, escaped)}'"


def join(words: Iterable[str]) -> str:
    """As `shlex.join`."""
    return " ".join(map(quote, words))


def comment(text: str) -> str:
    """`text` after a ``#``, on one line."""
    return harmless_text(text).replace("\n", " ")


def _as_bytes(match: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in match[0].encode())


def shell_line(command: Command, *, is_remote: bool) -> str:
    """The command; of another machine's the paths that we made are its own."""
    program, *words = command.argv
    shown = [_there(program) if is_remote else quote(program)]
    for word in words:
        is_path = is_remote and remote_paths.is_tfcluster_path(word, command)
        shown.append(_there(word) if is_path else quote(word))
    return " ".join(shown)


def start(task: TaskPlan) -> str:
    """The line that starts a task in its folder."""
    far = task.node != LOCAL
    where = folder(task.command.cwd, is_remote=far)
    return f"cd {where} && {shell_line(task.command, is_remote=far)}"


def folder(path: str, *, is_remote: bool) -> str:
    return _there(path) if is_remote else quote(path)


def shell_value(var: EnvVar, *, is_remote: bool) -> str:
    is_path = var.source.endswith(("tfcluster", ".data_dir"))
    return _there(var.shown) if is_remote and is_path and not var.secret else quote(var.shown)


def _there(path: str) -> str:
    """Quoted, but for the names that the node's shell is to fill in: its home, and the run."""
    pieces = [piece for piece in _NAMES.split(path) if piece]
    return "".join(map(_piece, pieces)) or "''"


def _piece(text: str) -> str:
    if text == remote_paths.RUN:
        return f'"{text}"'
    if text == "~":
        return '"$HOME"'
    return f'"$HOME"{remote_paths.CACHE[1:]}' if text == remote_paths.CACHE else quote(text)


_MOST_LISTED = 16


def who_listens(plan: Plan, *, where: str = "a task's machine") -> str:
    """Which servers a run opens, and to whom."""
    if all(node.container is not None for node in plan.nodes):
        return (
            "TensorFlow listens in the containers, without a password: no port is published, and"
            " besides the run's own containers only the daemon's machine itself reaches them"
        )
    if plan.kind == "tuner":
        return f"KerasTuner's chief listens on {plan.listening[0].host}, without a password"
    return f"TensorFlow listens on every address of {where}, without a password"


def open_ports(plan: Plan, ports: Sequence[int]) -> str:
    """One line for the start panel; `ports` of the tasks that listen, 0: still to be chosen."""
    known = sorted({port for port in ports if port})
    if all(node.network == "private" and node.container is None for node in plan.nodes):
        return "none: the network is private, only the tasks of this run are in it"
    if not known:
        shown = f"{plural(len(ports), 'port')}, chosen at the start"
    elif len(known) > _MOST_LISTED:
        shown = f"{len(known)} ports, {known[0]} to {known[-1]}"
    else:
        shown = ", ".join(map(str, known))
    here = all(node.backend == "local" for node in plan.nodes)
    return f"{shown}: {who_listens(plan, where='this machine' if here else 'its host')}"


_NAMED = 3
"""Nodes that share a row are named up to so many."""
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
        f"# {comment(f'{task_id} on {task.node}, {_address(task)}')}",
        f"# starts from the environment of {comment(_where(plan, task))}",
    ]
    if task.command.unset:
        lines.append(f"unset {' '.join(task.command.unset)}")
    far = task.node != LOCAL
    lines += [_assignment(var, is_remote=far) for var in all_variables(plan, task_id)]
    lines.append(f"cd {folder(task.command.cwd, is_remote=far)}")
    return [*lines, shell_line(task.command, is_remote=far)]


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
    task = plan.task(task_id)
    lines = [f"unset {' '.join(task.command.unset)}"]
    for var in env:
        if not var.secret:
            lines.append(f"export {var.name}={shell_value(var, is_remote=task.node != LOCAL)}")
        elif known.get(var.name) != var.value:
            why = f"{var.name} is secret and not shown ({var.source}): export it yourself"
            lines.append(f"# {comment(why)}")
    return [*lines, f"# start it: {start(task)}"]


def _assignment(var: EnvVar, *, is_remote: bool) -> str:
    hidden = "# " if var.secret else ""
    value, source = shell_value(var, is_remote=is_remote), comment(var.source)
    return f"{hidden}export {var.name}={value}  # {source}"


def _facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    pairs = [("name", plan.name)]
    if plan.spec_path:
        pairs.append(("spec", plan.spec_path))
    pairs.append(("strategy", _strategy(plan)))
    if plan.listening:
        pairs.append(("open ports", who_listens(plan)))
    if plan.images:
        pairs.append(("image", ", ".join(plan.images)))
    pairs += _workdirs(plan)
    pairs += _pythons(plan)
    pairs += _commands(plan)
    for command in list(plan.prepare.values())[:1]:
        pairs.append(("prepare", join(command.argv)))
    return tuple(pairs)


def _commands(plan: Plan) -> Iterator[tuple[str, str]]:
    """What most tasks run, and under their names what others do instead."""
    of_tasks: dict[str, list[str]] = {}
    for task in plan.tasks:
        of_tasks.setdefault(_command(task), []).append(str(task.id))
    usual = max(of_tasks, key=lambda argv: len(of_tasks[argv]), default="")
    for argv, names in of_tasks.items():
        some = ", ".join(names[:_NAMED]) + (
            f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
        )
        shown = join(next(t for t in plan.tasks if str(t.id) == names[0]).command.argv)
        yield "command" if argv == usual else f"command of {some}", shown


def _command(task: TaskPlan) -> str:
    """Equal for tasks that run the same, each with its own node's Python and folders."""
    program, *words = task.command.argv
    name = re.sub(r"^python[\d.]*$", "python", program.rpartition("/")[2])
    ours = "/tfcluster_workers/boot.py"
    plain = ["" if word.endswith(ours) else word.removeprefix(task.command.cwd) for word in words]
    return join([name, *plain])


def _workdirs(plan: Plan) -> Iterator[tuple[str, str]]:
    """The folder here, and the name of its copies on other machines, one row for all of them."""
    far = [node for node in plan.nodes if node.name != LOCAL]
    for workdir in dict.fromkeys(n.workdir for n in plan.nodes if n.name == LOCAL):
        yield "workdir", workdir
    if far and len(far) == len(plan.nodes):
        yield "workdir", plan.workdir
    own = "NODE" if len(far) > 1 else ""
    names = (remote_paths.rename_node(node.workdir, node.name, own or node.name) for node in far)
    for copy in dict.fromkeys(names):
        yield "its copy" if len(far) == 1 else "its copies", copy


def _pythons(plan: Plan) -> Iterator[tuple[str, str]]:
    """Equal ones in one row."""
    users: dict[str, list[str]] = {}
    for node in plan.nodes:
        if node.interpreter is not None:
            users.setdefault(format_interpreter(node.interpreter), []).append(node.name)
    for python, names in users.items():
        few = ", ".join(names[:_NAMED]) + (
            f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
        )
        yield "python" if len(users) == 1 else f"python on {few}", python


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


def _where(plan: Plan, task: TaskPlan) -> str:
    if (container := plan.node(task.node).container) is not None:
        return f"the image {container.image}"
    return "this shell" if task.node == LOCAL else f"a login on {task.node}"


def _numbers(values: Sequence[int] | None) -> str:
    if values is None:
        return ""
    return ",".join(map(str, values)) or "none"
