"""Orders to the agents, built from a plan, and `Answers`, which waits for their replies."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tfcluster.agent import catalogue as msg
from tfcluster.agent.message_fields import replace
from tfcluster.agent.node import probe
from tfcluster.backends import bundle
from tfcluster.errors import (
    NodeLostError,
    PortInUseError,
    PrepareError,
    SetupError,
    join_first,
)
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.probed_resources import AssignedResources
from tfcluster.nodes.reports import PREFLIGHT, PREPARE
from tfcluster.nodes.sites import Site
from tfcluster.plans import remote_paths, trackers
from tfcluster.plans.plan import Command, EnvVar, NodePlan, Plan, TaskId
from tfcluster.plans.preloading import PreloadPlan, preload_on
from tfcluster.plans.secrets import MIN_LENGTH
from tfcluster.plans.tf_config import SOURCE, Attempt, environment, place_of
from tfcluster.rundir import chaos
from tfcluster.rundir.chaos import Fault
from tfcluster.rundir.task_logs import last_line

ANSWER_S: Final = 60.0
"""Time after which an agent that has not answered an order counts as broken."""
SHOWN_AFTER_S: Final = 3.0
"""Time after which `status` shows that an answer is waited for."""


PORT_REPLIES: Final = (msg.PortsHeld, msg.PortTaken)


def hold_ports(plan: Plan, node: str) -> msg.HoldPorts:
    """Have the node's agent hold the ports of its tasks for the whole run; 0 lets it choose.

    Ports of tasks that are started by hand are held, too: their tasks can still bind them.
    """
    tasks = [task for task in (*plan.tasks, *plan.by_hand) if task.node == node]
    ports = [
        msg.PortRequest(
            task=str(task.id),
            host=task.host,
            port=task.port or 0,
            reuses_address=plan.strategy == "torch",
        )
        for task in tasks
    ]
    among = [] if plan.node(node).capabilities.has_own_network else list(plan.port_range)
    return msg.HoldPorts(ports=ports, among=among, interface=plan.interface)


def at_interface(plan: Plan, hub: Hub, nodes: Iterable[str]) -> Plan:
    """Return the plan with the nodes' addresses on the interface that the spec names.

    Raises SetupError for a node that has no such interface.
    """
    hosts = {}
    for node in nodes:
        if (held := hub.answer(node, msg.PortsHeld)) is None:
            continue
        if held.host is not None:
            hosts[node] = held.host
        elif plan.interface is not None:
            interfaces = join_first(held.interfaces or ()) or "none"
            raise SetupError(
                f"has no interface or address {plan.interface}; it has {interfaces}",
                fix="set runtime.interface to one that all nodes have, or leave it out",
                node=node,
            )
    return plan.at(hosts)


def port_error(taken: msg.PortTaken) -> PortInUseError:
    place = f"{taken.host}:{taken.port}" if taken.port else taken.host
    where = f"{place} ({taken.task})"
    return PortInUseError(
        where,
        pid=taken.pid,
        run_id=taken.run_id,
        command=taken.command,
        is_range=taken.port == 0,
    )


def held_ports(hub: Hub, nodes: Iterable[str]) -> dict[TaskId, int]:
    """Return the ports that the agents of `nodes` hold, as they answered."""
    replies = (hub.answer(node, msg.PortsHeld) for node in nodes)
    held = (reply.ports for reply in replies if reply is not None)
    return {TaskId.parse(task): port for ports in held for task, port in ports.items()}


def start(
    attempt: Attempt,
    site: Site,
    *,
    holds_ports: bool,
    only: Iterable[TaskId],
    restored_step: int | None,
    faults: Sequence[Fault],
    proxy_env: Mapping[str, str],
    assigned: Mapping[TaskId, AssignedResources],
    tracker_group: str | None,
) -> msg.Start:
    """Start those of the tasks `only` that belong to the node.

    `proxy_env`: keeps gRPC off the node's proxies; `assigned`: resources from the node's probe;
    `tracker_group`: the group in experiment trackers, None for tasks that are in none.
    """
    plan, paths = attempt.plan, site.paths
    preloaded = preload_on(plan, site.node)
    tasks = []
    for task in (plan.task(task_id) for task_id in only):
        if task.node != site.node:
            continue
        extra = environment(
            attempt,
            task.id,
            run_id=site.run_id,
            checkpoint_dir=str(paths.task_checkpoints(task.id)),
            tensorboard_dir=str(paths.tensorboard(task.id)),
            tuner_dir=str(paths.tuner),
            restored_step=restored_step,
            holds_ports=holds_ports,
            has_cluster=False,
        )
        extra += tuple(EnvVar(name, value, SOURCE) for name, value in proxy_env.items())
        if tracker_group is not None and plan.node(site.node).trackers:
            extra += trackers.environment(plan, task.id, run_id=site.run_id, group=tracker_group)
        if faults:
            extra += chaos.environment(task.command, faults, task.id, attempt.number)
        share = assigned.get(task.id, AssignedResources((), task.cores))
        log, command = paths.task_log(task.id, attempt.number), site.command(task.command)
        order = _task_order(str(task.id), command, log, share.env + extra)
        is_fork = preloaded is not None and str(task.id) in preloaded.tasks
        cores = None if share.cores is None else list(share.cores)
        place = place_of(attempt, task.id) if attempt.has_tf_config(task.id) else None
        tasks.append(replace(order, cores=cores, preload=is_fork, place=place))
    cluster = attempt.cluster.addresses if attempt.forms_cluster else {}
    return msg.Start(attempt=attempt.number, tasks=tasks, cluster=dict(cluster))


def preload(imports: PreloadPlan, node: NodePlan, site: Site) -> msg.Preload:
    """Have the node's agent start the process that imports for its tasks."""
    command, warm = site.command(imports.command), node.warm and node.warm.key
    # The clean-up after this run must not find a preloader that also serves other runs.
    mark = {"TFCLUSTER_WARM": warm} if warm else {"TFCLUSTER_RUN_ID": site.run_id}
    env = {var.name: var.value for var in command.env} | mark
    process = msg.Process(argv=command.argv, env=env, unset=command.unset)
    text = json.dumps([[*command.argv], env, [*command.unset]], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return msg.Preload(key=warm or key, process=process)


def start_prepare(command: Command, site: Site) -> msg.Start:
    """Run a node's prepare step, as attempt 0."""
    extra = (EnvVar("TFCLUSTER_RUN_ID", site.run_id, SOURCE),)
    log = site.paths.step_log(PREPARE, site.node)
    order = _task_order(PREPARE, site.command(command), log, extra)
    return msg.Start(attempt=0, tasks=[order])


def boot_path(site: Site, digest: str) -> str:
    """Return the path of `tfcluster_workers.boot` in commands of a node; `digest`: its bundle's."""
    folder = bundle.workers_folder()
    if site.is_remote:
        folder = Path(f"{remote_paths.CACHE}/bundles/{digest}/workers/tfcluster_workers")
    return str(folder / "boot.py")


def start_probe(
    step: str, plan: Plan, site: Site, order: Mapping[str, Any], digest: str
) -> msg.Start:
    """Run `agent.node.probe` on a node, with its tasks' Python, as attempt 0.

    `step`: `PREFLIGHT`, with the tasks' variables, or `LINKS`, which only dials the tasks of other
    nodes. `digest`: that of the bundle, which holds the module on a remote node.
    """
    like = Command((), (), "/")
    if step == PREFLIGHT:
        like = next(task.command for task in plan.tasks if task.node == site.node)
        workers = None if site.is_remote else str(bundle.workers_folder().parent)
        order = {**order, "workers": workers}
    script = str(probe.__file__)
    if site.is_remote:
        file = "tfcluster/agent/node/probe.py"
        script = f"{remote_paths.CACHE}/bundles/{digest}/agent/{file}"
    argv = (plan.node(site.node).python, script, json.dumps(order))
    command = site.command(dataclasses.replace(like, argv=argv, cwd="/"))
    log = site.paths.step_log(step, site.node)
    return msg.Start(attempt=0, tasks=[_task_order(step, command, log, ())])


def check_prepared(node: str, reply: msg.TaskMessage, log: Path) -> None:
    """Raise PrepareError unless the prepare step ended with exit code 0."""
    if isinstance(reply, msg.StartFailed):
        raise PrepareError(
            f"prepare cannot start on {node}: {reply.error}",
            fix="correct job.prepare in the spec, or skip it with --no-prepare",
        )
    if isinstance(reply, msg.TaskExited) and reply.exit_code != 0:
        end = f"signal {reply.signal}" if reply.signal else f"exit code {reply.exit_code}"
        last = last_line(log)
        output = f"; its last line: {last}" if last else ""
        raise PrepareError(
            f"prepare failed on {node} with {end}; no task was started{output}",
            fix=f"its output is in {log}",
        )


def _task_order(name: str, command: Command, log: Path, extra: Iterable[EnvVar]) -> msg.TaskOrder:
    return msg.TaskOrder(
        task=name,
        argv=command.argv,
        env={var.name: var.value for var in (*command.env, *extra)},
        unset=command.unset,
        cwd=command.cwd,
        log=str(log),
        secrets=[v.name for v in command.env if v.secret and len(v.value) >= MIN_LENGTH],
    )


class Until(Protocol):
    """A function that handles inputs until a condition holds; raises when the run is to end."""

    def __call__(
        self, condition: Callable[[], bool], *, at: float | None = None
    ) -> Awaitable[None]:
        """Wait for `condition`; it is also checked at the moment `at`, on the loop's clock."""
        ...


@dataclass(frozen=True, slots=True)
class Answers:
    """A wait for answers of the agents that `hub` reaches."""

    hub: Hub
    until: Until
    wait_for: Callable[[str | None], None] = lambda what: None
    """Called with what a long wait is for, and with None when it is over."""

    async def require(
        self,
        nodes: Sequence[str],
        *kinds: type[msg.Report],
        what: str,
        step: str | None = None,
        work_s: float | None = 0.0,
        is_lost: Callable[[str], bool] = lambda node: False,
    ) -> None:
        """Wait like `missing`; raise NodeLostError if a node has not answered in time."""
        if silent := await self.missing(
            nodes, *kinds, what=what, step=step, work_s=work_s, is_lost=is_lost
        ):
            raise NodeLostError(
                f"{', '.join(silent)}: the agent was asked {what}, and does not answer",
                fix="check that machine: is it overloaded, out of memory, or is a disk dead?",
            )

    async def missing(
        self,
        nodes: Sequence[str],
        *kinds: type[msg.Report],
        what: str,
        step: str | None = None,
        work_s: float | None = 0.0,
        is_lost: Callable[[str], bool] = lambda node: False,
    ) -> list[str]:
        """Wait for a message of one of `kinds` from all `nodes`; return the nodes without one.

        `what`: what they were asked to do, ``to …``; `work_s`: how many seconds that may take,
        None for no limit. A node that `is_lost` is not waited for.
        """

        def silent() -> list[str]:
            waiting = (node for node in nodes if self.hub.answer(node, *kinds, step=step) is None)
            return [node for node in waiting if not is_lost(node)]

        begun = asyncio.get_running_loop().time()
        await self._until(lambda: not silent(), begun + SHOWN_AFTER_S)
        if late := silent():
            self.wait_for(f"{', '.join(late)} {what}")
            at = None if work_s is None else begun + work_s + ANSWER_S
            await self._until(lambda: not silent(), at)
            self.wait_for(None)
        return silent()

    async def _until(self, condition: Callable[[], bool], at: float | None) -> None:
        now = asyncio.get_running_loop().time
        await self.until(lambda: condition() or (at is not None and now() >= at), at=at)
