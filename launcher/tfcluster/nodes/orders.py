"""From a plan to the orders an agent gets, and from its answers to errors (pure)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from tfcluster.agent.net import reachability
from tfcluster.agent.node import probe
from tfcluster.errors import NodeLostError, PortInUseError, PrepareError
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.nodes.remote_folders import Site
from tfcluster.nodes.reports import LINKS, PREFLIGHT, PREPARE
from tfcluster.plan import remote_paths
from tfcluster.plan import secrets as secrecy
from tfcluster.plan.attempt import Attempt, environment
from tfcluster.plan.plan import Command, EnvVar, Interpreter, NodePlan, Plan, TaskId, TaskPlan
from tfcluster.plan.preloading import Preload, preload_on
from tfcluster.plan.resources import (
    EVEN_SHARE,
    Cores,
    Share,
    background_tasks,
    gpu_env,
    shares,
    thread_env,
)
from tfcluster.rundir import chaos as rehearsal
from tfcluster.rundir.chaos import Fault


@dataclass(frozen=True, slots=True)
class AssignedResources:
    """Laid under what the plan says of a task."""

    env: tuple[EnvVar, ...]
    cores: tuple[int, ...] | None


def deal(plan: Plan, seen: ProbeAnswer) -> Mapping[TaskId, AssignedResources]:
    """Cores, threads and GPUs of the tasks of the node that was `seen`, where it has several.

    A container is one task's already. What the node's own environment says stays.
    """
    tasks = {task.id: task for task in plan.tasks if task.node == seen.node}
    if len(tasks) < 2 or plan.node(seen.node).container is not None or not seen.core_nodes:
        return {}
    first = next(iter(tasks.values()))
    theirs = set(seen.named) - {var.name for var in first.command.env}
    shows_some = seen.gpu_trouble or "CUDA_VISIBLE_DEVICES" in theirs
    dealt = plan.resources.gpus is None and not shows_some
    found = shares(
        list(tasks),
        plan.resources,
        cores=Cores(tuple(map(tuple, seen.core_nodes)), seen.core_limit),
        gpus=range(len(seen.gpus)) if dealt else None,
        task_gpus={task.id: task.gpus for task in tasks.values() if task.gpus is not None},
        background=background_tasks(list(tasks), is_search=plan.kind == "tuner"),
    )
    peers = sum(task.serves and task.id.job == "worker" for task in plan.tasks)
    return {
        task.id: AssignedResources(_env(task, found[task.id], theirs, peers), found[task.id].cores)
        for task in tasks.values()
    }


def _env(task: TaskPlan, share: Share, theirs: Collection[str], peers: int) -> tuple[EnvVar, ...]:
    """Only what neither the spec nor the node says."""
    threads = share.threads or 1
    values = [
        *(
            (name, value, EVEN_SHARE)
            for name, value in thread_env(threads, serving_peers=peers).items()
        ),
        *(
            (name, value, "resources.gpus")
            for name, value in gpu_env(share.gpus, shared=share.gpu_is_shared).items()
        ),
    ]
    known = {*theirs, *(var.name for var in task.command.env)}
    return tuple(EnvVar(*value) for value in values if value[0] not in known)


_BARE = Command((), (), "/")
_NOTHING: Mapping[str, str] = {}
_NOTHING_DEALT: Mapping[TaskId, AssignedResources] = {}


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
    dealt: Mapping[TaskId, AssignedResources] = _NOTHING_DEALT,
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
        share = dealt.get(task_id, AssignedResources((), task.cores))
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
    return _start_look(PREFLIGHT, probe, interpreter, site, order, digest, task.command)


def start_dial(
    interpreter: Interpreter | None, site: Site, order: Mapping[str, Any], digest: str
) -> dict[str, Any]:
    """Look at the lines from a node to the others (`agent.dial`), as attempt 0."""
    return _start_look(LINKS, reachability, interpreter, site, order, digest)


def _start_look(
    step: str,
    module: ModuleType,
    interpreter: Interpreter | None,
    site: Site,
    order: Mapping[str, Any],
    digest: str,
    like: Command = _BARE,
) -> dict[str, Any]:
    """With the variables of `like`."""
    python = interpreter.path if interpreter is not None else "python3"
    script = str(module.__file__)
    if site.is_remote:
        file = module.__name__.replace(".", "/") + ".py"
        script = f"{remote_paths.CACHE}/bundles/{digest}/agent/{file}"
    command = site.command(replace(like, argv=(python, script, json.dumps(order)), cwd="/"))
    log = site.paths.step_log(step, site.node)
    return {"type": "start", "attempt": 0, "tasks": [_order(step, command, log, ())]}


def check_prepared(node: str, reply: Mapping[str, Any], log: Path) -> None:
    """Raises PrepareError unless the prepare step ended with 0."""
    if reply["type"] == "start_failed":
        raise PrepareError(
            f"prepare cannot start on {node}: {reply['error']}",
            fix="correct job.prepare in the spec, or leave it out with --no-prepare",
        )
    if reply["exit_code"] != 0:
        signal = reply.get("signal")
        end = f"signal {signal}" if signal else f"exit code {reply['exit_code']}"
        said = f"; its last line: {last}" if (last := _last_line(log)) else ""
        raise PrepareError(
            f"prepare failed on {node} with {end}; no task was started{said}",
            fix=f"its output is in {log}",
        )


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace")[-4096:].split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _order(name: str, command: Command, log: Path, ours: Iterable[EnvVar]) -> dict[str, Any]:
    secrets = [v.name for v in command.env if v.secret and len(v.value) >= secrecy.MIN_LENGTH]
    masked = {"secrets": secrets} if secrets else {}
    where = {"cwd": command.cwd, "log": str(log)}
    return masked | {"task": name, **_process(command, ours), **where}


def _process(command: Command, ours: Iterable[EnvVar]) -> dict[str, Any]:
    env = {var.name: var.value for var in (*command.env, *ours)}
    return {"argv": list(command.argv), "env": env, "unset": list(command.unset)}


ANSWER_S: Final = 60.0
"""An agent that has not answered so long after an order does not work."""
SHOWN_AFTER_S: Final = 3.0
"""So long an answer may take before `status` says that it is waited for."""


class Until(Protocol):
    """Handles inputs until a condition holds; raises when the run is to end instead."""

    def __call__(
        self, condition: Callable[[], bool], *, at: float | None = None
    ) -> Awaitable[None]:
        """`at`: a moment at which the condition is to be looked at again."""
        ...


def never(node: str) -> bool:
    """No node is lost that is not noticed otherwise."""
    return False


@dataclass(frozen=True, slots=True)
class Answers:
    """Of the agents that `hub` reaches."""

    hub: Hub
    until: Until
    wait_for: Callable[[str | None], None] = lambda what: None
    """Told what is waited for, once that takes long; None: nothing any more."""

    async def require(
        self,
        nodes: Sequence[str],
        *kinds: str,
        what: str,
        work_s: float | None = 0.0,
        is_lost: Callable[[str], bool] = never,
    ) -> None:
        """As `missing`; raises NodeLostError where a node has not answered in time."""
        silent = await self.missing(nodes, *kinds, what=what, work_s=work_s, is_lost=is_lost)
        if silent:
            raise NodeLostError(
                f"{', '.join(silent)}: the agent was told {what}, and does not answer",
                fix="is that machine overloaded, out of memory, or is a disk of it dead?",
            )

    async def missing(
        self,
        nodes: Sequence[str],
        *kinds: str,
        what: str,
        work_s: float | None = 0.0,
        is_lost: Callable[[str], bool] = never,
    ) -> list[str]:
        """Wait for messages of one of `kinds` from all `nodes`; returns those that do not answer.

        `what` they were told, ``to …``; `work_s`: how long that itself may take; None: as long as
        it takes. A node that `is_lost` answers no more.
        """

        def silent() -> list[str]:
            waiting = (node for node in nodes if self.hub.answer(node, kinds) is None)
            return [node for node in waiting if not is_lost(node)]

        begun = asyncio.get_running_loop().time()
        await self._until(lambda: not silent(), begun + min(SHOWN_AFTER_S, ANSWER_S))
        if late := silent():
            self.wait_for(f"{', '.join(late)} {what}")
            at = None if work_s is None else begun + work_s + ANSWER_S
            await self._until(lambda: not silent(), at)
            self.wait_for(None)
        return silent()

    async def _until(self, condition: Callable[[], bool], at: float | None) -> None:
        now = asyncio.get_running_loop().time
        await self.until(lambda: condition() or (at is not None and now() >= at), at=at)
