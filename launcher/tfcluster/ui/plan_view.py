"""Formats a plan: as a table, as the start panel, as one task in full, as shell lines, as JSON."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfcluster import kinds
from tfcluster.control_characters import ANY_CONTROL
from tfcluster.errors import TfclusterError, join_first
from tfcluster.plans import remote_paths
from tfcluster.plans.context import LOCAL
from tfcluster.plans.plan import (
    LABELS,
    Command,
    EnvVar,
    Interpreter,
    Plan,
    TaskId,
    TaskPlan,
)
from tfcluster.plans.tf_config import preview
from tfcluster.rundir.paths import RunPaths
from tfcluster.typed_json import object_to_json
from tfcluster.ui.formats import keep_whole, plural
from tfcluster.ui.history import format_resume
from tfcluster.ui.lines import sanitize_text
from tfcluster.ui.render import Facts, Grid, Panel, Part, Verbatim, part_lines

_PLACEHOLDERS = re.compile(
    rf"(^~(?=/|$)|{re.escape(remote_paths.CACHE)}|{re.escape(remote_paths.RUN)})"
)
_MAX_LISTED = 16
"""Tasks or ports that are listed one by one."""
_MAX_NAMES = 3
"""Nodes or tasks that are named in the label of a row they share."""


def quote(word: str) -> str:
    """Quote `word` for a shell, with control characters (but tab and newline) escaped."""
    if not ANY_CONTROL.search(word):
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{ANY_CONTROL.sub(_as_bytes, escaped)}'"


def join(words: Iterable[str]) -> str:
    """Join `words` to a shell command, like `shlex.join` with `quote`."""
    return " ".join(map(quote, words))


def shell_line(command: Command, *, is_remote: bool) -> str:
    """Return the command as a shell line; on another machine, tfcluster's paths are that one's."""
    program, *words = command.argv
    quoted = [_quote_path(program, is_remote=is_remote)]
    for word in words:
        is_path = is_remote and remote_paths.is_tfcluster_path(word, command)
        quoted.append(_quote_path(word, is_remote=is_path))
    return " ".join(quoted)


def start_line(task: TaskPlan) -> str:
    """Return the shell line that starts a task in its folder."""
    is_remote = task.node != LOCAL
    folder = _quote_path(task.command.cwd, is_remote=is_remote)
    return f"cd {folder} && {shell_line(task.command, is_remote=is_remote)}"


def describe_listeners(plan: Plan, *, where: str = "a task's machine") -> str:
    """Return which servers a run opens, and who can reach them."""
    if (exposure := kinds.get(plan.nodes[0].backend).exposure) is not None:
        return exposure
    if plan.kind == "tuner":
        return f"KerasTuner's chief listens on {plan.listening[0].host}, without a password"
    return f"{plan.library} listens on every address of {where}, without a password"


def describe_ports(plan: Plan, ports: Sequence[int]) -> str:
    """Return the open ports in one line.

    `ports` are the ports of the tasks that listen, 0 for a port to be chosen.
    """
    known = sorted({port for port in ports if port})
    if all(node.has_private_network or node.network == "simulated" for node in plan.nodes):
        return "none: the network is private to the tasks of this run"
    if not known:
        shown = f"{plural(len(ports), 'port')}, chosen at start"
    elif len(known) > _MAX_LISTED:
        shown = f"{len(known)} ports, {known[0]} to {known[-1]}"
    else:
        shown = ", ".join(map(str, known))
    is_local = all(node.is_here for node in plan.nodes)
    return f"{shown}: {describe_listeners(plan, where='this machine' if is_local else 'its host')}"


def format_plan(plan: Plan, obstacles: Sequence[TfclusterError], *, width: int) -> list[str]:
    """Return the whole plan as lines; only words that cannot be broken are wider than `width`."""
    parts: list[Part] = plan_parts(plan)
    if plan.notes or obstacles:
        parts.append("")
    parts += [f"note: {note}" for note in plan.notes]
    parts += [f"problem that would stop `up`: {obstacle}" for obstacle in obstacles]
    return [line for part in parts for line in part_lines(part, width)]


def plan_parts(plan: Plan) -> list[Part]:
    """Return the facts of a plan and the table of its tasks."""
    return [_facts(plan), "", _task_grid(plan)]


def start_panel(
    plan: Plan,
    paths: RunPaths,
    *,
    resumes: tuple[str, int | None, str | None] | None = None,
) -> Panel:
    """Return the panel of a run that starts: Python, tasks, open ports, notes, run folder.

    `resumes` is the run to resume from, its step, and the name of its checkpoint.
    """
    listening = [t.port for t in plan.listening if t.in_cluster or t.id.serves_data]
    others = [f"{task.id} at {task.address}" for task in plan.elsewhere if plan.joins]
    facts = Facts.of(
        ("image", ", ".join(plan.images)),
        *_roles(plan),
        *_pythons(plan),
        ("workdir", _workdir_and_copies(plan)),
        ("strategy", format_strategy(plan)),
        ("open ports", describe_ports(plan, listening) if listening else None),
        ("elsewhere", join_first(others, _MAX_LISTED) if others else None),
        *_user_defaults(plan),
        ("folder", keep_whole(str(paths.root))),
        ("resumes", format_resume(*resumes) if resumes else None),
    )
    parts: list[Part] = [facts, _start_grid(plan)]
    parts += _manual_starts(plan, paths)
    parts += [f"note: {note}" for note in plan.notes]
    return Panel(paths.run_id, tuple(parts))


def format_task(plan: Plan, task_id: TaskId) -> list[str]:
    """Return the exact command and environment of one task; every line can be pasted in a shell."""
    task = plan.task(task_id)
    lines = [
        f"# {_comment(f'{task_id} on {task.node}, {_address(task)}')}",
        f"# starts from the environment of {_comment(_base_environment(plan, task))}",
    ]
    if task.command.unset:
        lines.append(f"unset {' '.join(task.command.unset)}")
    is_remote = task.node != LOCAL
    lines += [_assignment(var, is_remote=is_remote) for var in all_variables(plan, task_id)]
    lines.append(f"cd {_quote_path(task.command.cwd, is_remote=is_remote)}")
    return [*lines, shell_line(task.command, is_remote=is_remote)]


def task_json(plan: Plan, task_id: TaskId) -> dict[str, Any]:
    """Return one task as ``plan --task --json`` prints it, with the variables of an attempt."""
    task = plan.task(task_id)
    env = all_variables(plan, task_id)
    command = Command(task.command.argv, env, task.command.cwd, task.command.unset)
    place = {"task": str(task_id), "node": task.node, "address": task.address}
    return place | {"gpus": task.gpus, "cores": task.cores} | object_to_json(command)


def plan_json(plan: Plan, obstacles: Iterable[TfclusterError]) -> dict[str, Any]:
    """Return the plan as ``plan --json`` prints it."""
    return object_to_json(plan) | {"obstacles": [str(obstacle) for obstacle in obstacles]}


def all_variables(plan: Plan, task_id: TaskId) -> tuple[EnvVar, ...]:
    """Return a task's variables sorted by name; an attempt's override the plan's."""
    variables = {var.name: var for var in plan.task(task_id).command.env}
    variables |= {var.name: var for var in preview(plan, task_id)}
    return tuple(variables[name] for name in sorted(variables))


def format_exports(
    plan: Plan, task_id: TaskId, env: Iterable[EnvVar], *, known: Mapping[str, str]
) -> list[str]:
    """Return lines for ``eval`` in a shell with the variables `known`.

    They hold no secret, and unset what another run may have set.
    """
    task = plan.task(task_id)
    lines = [f"unset {' '.join(task.command.unset)}"]
    for var in env:
        if not var.secret:
            lines.append(f"export {var.name}={_shell_value(var, is_remote=task.node != LOCAL)}")
        elif known.get(var.name) != var.value:
            note = f"{var.name} is secret and not shown ({var.source}): export it yourself"
            lines.append(f"# {_comment(note)}")
    return [*lines, f"# start it: {start_line(task)}"]


def format_interpreter(python: Interpreter, *, strategy: str) -> str:
    """Return a Python's path and why it was chosen, and its versions on a second line.

    JAX and torch are shown if `strategy` is theirs.
    """
    versions = [f"Python {python.version}"] if python.version else []
    shown = [p for p in LABELS if p not in ("jax", "torch") or p == strategy]
    versions += [f"{LABELS[p]} {python.packages[p]}" for p in shown if p in python.packages]
    line = f"{keep_whole(python.path)} ({python.why})"
    return f"{line}\n{', '.join(versions)}" if versions else line


def format_strategy(plan: Plan) -> str:
    """Return the strategy and its settings: ``multi_worker_mirrored, communication RING``."""
    return ", ".join([plan.strategy, *(f"{name} {value}" for name, value in plan.settings.items())])


def format_numbers(values: Sequence[object] | None) -> str:
    """Return ``0,1``, "none" for an empty list, and an empty string if the values are not known."""
    return "" if values is None else ",".join(map(str, values)) or "none"


def _comment(text: str) -> str:
    return sanitize_text(text).replace("\n", " ")


def _as_bytes(match: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in match[0].encode())


def _shell_value(var: EnvVar, *, is_remote: bool) -> str:
    is_path = var.origin is not None and not var.secret
    return _quote_path(var.shown, is_remote=is_remote and is_path)


def _quote_path(path: str, *, is_remote: bool) -> str:
    """Quote a path; on a remote node, its shell fills in its home and the run."""
    if not is_remote:
        return quote(path)
    pieces = [piece for piece in _PLACEHOLDERS.split(path) if piece]
    return "".join(map(_quote_piece, pieces)) or "''"


def _quote_piece(text: str) -> str:
    if text == remote_paths.RUN:
        return f'"{text}"'
    if text == "~":
        return '"$HOME"'
    return f'"$HOME"{remote_paths.CACHE[1:]}' if text == remote_paths.CACHE else quote(text)


def _assignment(var: EnvVar, *, is_remote: bool) -> str:
    hidden = "# " if var.secret else ""
    value, source = _shell_value(var, is_remote=is_remote), _comment(var.source)
    return f"{hidden}export {var.name}={value}  # {source}"


def _facts(plan: Plan) -> Facts:
    is_plain = plan.kind == "plain"
    return Facts.of(
        ("name", plan.name),
        ("spec", keep_whole(plan.spec_path or "")),
        ("strategy", "none: plain tasks form no cluster" if is_plain else format_strategy(plan)),
        ("open ports", describe_listeners(plan) if plan.listening else None),
        ("image", ", ".join(plan.images)),
        *_roles(plan),
        *_workdirs(plan),
        *_pythons(plan),
        *_commands(plan),
        *(("prepare", keep_whole(join(c.argv))) for c in list(plan.prepare.values())[:1]),
        *_user_defaults(plan),
    )


def _roles(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield a row for each role whose nodes or pods differ from those of the others."""
    for role, settings in plan.roles.items():
        yield f"only {role}", settings


def _user_defaults(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield a row for each profile of the user's defaults, with the fields that it has set."""
    fields: dict[tuple[str, str], list[str]] = {}
    for default in plan.defaults:
        text = default.field if default.value is None else f"{default.field}={default.value}"
        fields.setdefault((default.profile, default.file), []).append(text)
    for (profile, file), texts in fields.items():
        yield f"profile {profile}", f"{', '.join(texts)} ({file})"


def _commands(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the command of most tasks, and the commands of tasks that differ with their names."""
    tasks: dict[str, list[TaskPlan]] = {}
    for task in plan.tasks:
        tasks.setdefault(_normalize_command(task), []).append(task)
    usual = max(tasks, key=lambda command: len(tasks[command]), default="")
    for command, same in tasks.items():
        names = join_first([task.id for task in same], _MAX_NAMES)
        label = "command" if command == usual else f"command of {names}"
        yield label, keep_whole(join(same[0].command.argv))


def _normalize_command(task: TaskPlan) -> str:
    """Return the command without its node's Python and folders, to compare tasks by it."""
    program, *words = task.command.argv
    name = re.sub(r"^python[\d.]*$", "python", program.rpartition("/")[2])
    boot = "/tfcluster_workers/boot.py"
    plain = ["" if word.endswith(boot) else word.removeprefix(task.command.cwd) for word in words]
    return join([name, *plain])


def _workdirs(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the folder on this machine, and one row for its copies on other machines."""
    remote = [node for node in plan.nodes if node.name != LOCAL]
    for workdir in dict.fromkeys(n.workdir for n in plan.nodes if n.name == LOCAL):
        yield "workdir", keep_whole(workdir)
    if remote and len(remote) == len(plan.nodes):
        yield "workdir", keep_whole(plan.workdir)
    placeholder = "NODE" if len(remote) > 1 else ""
    copies = (
        remote_paths.rename_node(node.workdir, node.name, placeholder or node.name)
        for node in remote
    )
    for copy in dict.fromkeys(copies):
        yield "its copy" if len(remote) == 1 else "its copies", keep_whole(copy)


def _pythons(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield each Python once, with the nodes that use it."""
    nodes: dict[str, list[str]] = {}
    for node in plan.nodes:
        if node.interpreter is not None:
            python = format_interpreter(node.interpreter, strategy=plan.strategy)
            nodes.setdefault(python, []).append(node.name)
    for python, names in nodes.items():
        yield "python" if len(nodes) == 1 else f"python on {join_first(names, _MAX_NAMES)}", python


def _task_grid(plan: Plan) -> Grid:
    def threads(task: TaskPlan) -> str:
        return "".join(v.value for v in task.command.env if v.name == "TF_NUM_INTRAOP_THREADS")

    of_attempt = {var.name for var in preview(plan, plan.tasks[0].id)}  # the same for all tasks

    def variables(task: TaskPlan) -> int:
        return len(of_attempt.union(var.name for var in task.command.env))

    columns = _TASK_COLUMNS | {"threads": threads, "variables": variables}
    return Grid.of(plan.tasks, columns, ("threads", "variables"))


def _workdir_and_copies(plan: Plan) -> str:
    """Return the folder of the code on this machine, and where copies of it are used."""
    if all(node.is_here for node in plan.nodes):
        return ", ".join(keep_whole(path) for path in sorted({n.workdir for n in plan.nodes}))
    where = "in each container" if plan.images else "on each host that does not share it"
    return f"{keep_whole(plan.workdir)}, a copy {where}"


def _manual_starts(plan: Plan, paths: RunPaths) -> list[Part]:
    """Return the command for each task that the user starts by hand (``--except``)."""
    parts: list[Part] = []
    for task in plan.by_hand:
        parts.append(f"start {task.id} by hand, at {task.address}:")
        if task.node == LOCAL:
            exports = f'eval "$(tfcluster env {paths.run_id[-4:]} {task.id})"'
            parts.append(Verbatim((f"({exports} && {start_line(task)})",)))
        else:
            command = f"tfcluster env {plan.spec_path or 'SPEC'} {task.id}"
            parts.append(
                f"on {task.host}, `{command}` prints its environment and the command to start it"
            )
    return parts


def _start_grid(plan: Plan) -> Grid:
    if len(plan.tasks) > _MAX_LISTED:
        counts = Counter(task.node for task in plan.tasks)
        rows = tuple((node.name, str(counts[node.name])) for node in plan.nodes)
        return Grid(("node", "tasks"), rows, frozenset({"tasks"}))
    address = {"address": lambda task: f"{task.host}:{task.port or '?'}"}
    return Grid.of(plan.tasks, _TASK_COLUMNS | address)


def _address(task: TaskPlan) -> str:
    if not task.host:
        return "chosen at start"
    return task.address if task.port else f"{task.host}, port chosen at start"


def _base_environment(plan: Plan, task: TaskPlan) -> str:
    if (container := plan.node(task.node).container) is not None:
        return f"the image {container.image}"
    return "this shell" if task.node == LOCAL else f"a login on {task.node}"


_TASK_COLUMNS: dict[str, Callable[[TaskPlan], object]] = {
    "task": lambda task: task.id,
    "node": lambda task: task.node,
    "address": _address,
    "cores": lambda task: format_numbers(task.cores),
    "gpus": lambda task: format_numbers(task.gpus),
}
