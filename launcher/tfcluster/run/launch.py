"""From a plan to the orders an agent gets, and from its answers to errors (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfcluster.agent import dial, probe
from tfcluster.errors import PortInUseError, PrepareError
from tfcluster.plan import remote, secrecy
from tfcluster.plan.attempt import Attempt, environment
from tfcluster.plan.plan import Command, EnvVar, Interpreter, NodePlan, Plan, TaskId
from tfcluster.plan.preloading import Preload, preload_on
from tfcluster.run import chaos as rehearsal
from tfcluster.run.chaos import Fault
from tfcluster.run.dealing import Dealt
from tfcluster.run.reports import LINKS, PREFLIGHT, PREPARE
from tfcluster.run.sites import Site

_BARE = Command((), (), "/")
_NOTHING: Mapping[str, str] = {}
_NOTHING_DEALT: Mapping[TaskId, Dealt] = {}


def hold_ports(plan: Plan, node: str) -> dict[str, Any]:
    """Have the node's agent hold the ports of its tasks for the whole run; 0 lets it choose. One
    that is started by hand can bind its own, as ours do."""
    wanted = [
        {"task": str(task.id), "host": task.host, "port": task.port}
        for task in (*plan.tasks, *plan.by_hand)
        if task.node == node
    ]
    return {"type": "hold_ports", "ports": wanted}


def port_error(reply: Mapping[str, Any]) -> PortInUseError:
    return PortInUseError(
        f"{reply['host']}:{reply['port']} ({reply['task']})",
        pid=reply.get("pid"),
        run_id=reply.get("run_id"),
        command=reply.get("command"),
    )


def attempt_of(
    plan: Plan, number: int, members: Iterable[TaskId], held: Iterable[Mapping[str, Any]]
) -> Attempt:
    """An attempt on the ports that the agents reported as held."""
    ports = {TaskId.parse(task): port for reply in held for task, port in reply["ports"].items()}
    return Attempt(plan, number, tuple(members), ports)


def start(
    attempt: Attempt,
    site: Site,
    *,
    holds_ports: bool,
    only: Iterable[TaskId] | None = None,
    restored_step: int | None = None,
    chaos: Sequence[Fault] = (),
    guards: Mapping[str, str] = _NOTHING,
    dealt: Mapping[TaskId, Dealt] = _NOTHING_DEALT,
) -> dict[str, Any]:
    """Start the attempt's tasks of one node, or `only` some; their logs lie at its site. `guards`:
    variables that the node's own surroundings ask for; `dealt`: what the plan could not divide."""
    plan, paths = attempt.plan, site.paths
    ahead = preload_on(plan, site.node)
    tasks = []
    for task_id in attempt.members if only is None else only:
        task = plan.task(task_id)
        if task.node != site.node:
            continue
        ours = environment(
            attempt,
            task_id,
            run_id=site.run_id,
            checkpoint_dir=str(paths.task_checkpoints(task_id)),
            tensorboard_dir=str(paths.tensorboard(task_id)),
            tuner_dir=str(paths.tuner),
            restored_step=restored_step,
            holds_ports=holds_ports,
        )
        ours += tuple(EnvVar(name, value, "tfcluster") for name, value in guards.items())
        ours += rehearsal.environment(task.command, chaos, task_id, attempt.number)
        share = dealt.get(task_id, Dealt((), task.cores))
        log = paths.task_log(task_id, attempt.number)
        order = _order(str(task_id), site.command(task.command), log, share.env + ours)
        is_fork = ahead is not None and str(task_id) in ahead.tasks
        tasks.append(order | {"cores": share.cores, "preload": is_fork})
    return {"type": "start", "attempt": attempt.number, "tasks": tasks}


def preload(ahead: Preload, node: NodePlan, site: Site) -> dict[str, Any]:
    """Have the node's agent start the process that imports for its tasks."""
    key = node.warm.key if node.warm is not None else None
    # Where it serves other runs, too, whoever cleans up after this one must not find it.
    mark = "TFCLUSTER_WARM" if key is not None else "TFCLUSTER_RUN_ID"
    ours = (EnvVar(mark, key or site.run_id, "tfcluster"),)
    return {"type": "preload", "key": key, **_process(site.command(ahead.command), ours)}


def start_prepare(command: Command, site: Site) -> dict[str, Any]:
    """Run a node's prepare step, as attempt 0."""
    ours = (EnvVar("TFCLUSTER_RUN_ID", site.run_id, "tfcluster"),)
    log = site.paths.prepare_log(site.node)
    order = _order(PREPARE, site.command(command), log, ours)
    return {"type": "start", "attempt": 0, "tasks": [order]}


def start_probe(plan: Plan, site: Site, order: Mapping[str, Any], digest: str) -> dict[str, Any]:
    """Look at a node with its tasks' Python and variables (`agent.probe`), as attempt 0."""
    task = next(task for task in plan.tasks if task.node == site.node)
    interpreter = plan.node(site.node).interpreter
    return _start_look(PREFLIGHT, probe.__file__, interpreter, site, order, digest, task.command)


def start_dial(
    interpreter: Interpreter | None, site: Site, order: Mapping[str, Any], digest: str
) -> dict[str, Any]:
    """Look at the lines from a node to the others (`agent.dial`), as attempt 0."""
    return _start_look(LINKS, dial.__file__, interpreter, site, order, digest)


def _start_look(
    step: str,
    script: str,
    interpreter: Interpreter | None,
    site: Site,
    order: Mapping[str, Any],
    digest: str,
    like: Command = _BARE,
) -> dict[str, Any]:
    """With the variables of `like`."""
    python = interpreter.path if interpreter is not None else "python3"
    if site.is_remote:
        bundled = f"{remote.CACHE}/bundles/{digest}/agent/tfcluster/agent"
        script = f"{bundled}/{script.rpartition('/')[2]}"
    command = site.command(replace(like, argv=(python, script, json.dumps(order)), cwd="/"))
    log = site.paths.step_log(step, site.node)
    return {"type": "start", "attempt": 0, "tasks": [_order(step, command, log, ())]}


def check_prepared(node: str, reply: Mapping[str, Any], log: Path) -> None:
    """Raises PrepareError unless the prepare step ended with 0."""
    if reply["type"] == "start_failed":
        raise PrepareError(
            f"prepare cannot start on {node}: {reply['error']}",
            cure="correct job.prepare in the spec, or leave it out with --no-prepare",
        )
    if reply["exit_code"] != 0:
        signal = reply.get("signal")
        end = f"signal {signal}" if signal else f"exit code {reply['exit_code']}"
        said = f"; its last line: {last}" if (last := _last_line(log)) else ""
        raise PrepareError(
            f"prepare failed on {node} with {end}; no task was started{said}",
            cure=f"its output is in {log}",
        )


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace")[-4096:].split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _order(name: str, command: Command, log: Path, ours: Iterable[EnvVar]) -> dict[str, Any]:
    secrets = [v.name for v in command.env if v.secret and len(v.value) >= secrecy.SHORTEST]
    veiled = {"secrets": secrets} if secrets else {}
    where = {"cwd": command.cwd, "log": str(log)}
    return veiled | {"task": name, **_process(command, ours), **where}


def _process(command: Command, ours: Iterable[EnvVar]) -> dict[str, Any]:
    env = {var.name: var.value for var in (*command.env, *ours)}
    return {"argv": list(command.argv), "env": env, "unset": list(command.unset)}
