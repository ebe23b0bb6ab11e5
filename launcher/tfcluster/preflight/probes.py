"""Has the agents of all nodes look at them, and at each other, before anything is started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfcluster.agent.net import ports
from tfcluster.agent.node import limits, machine
from tfcluster.backends import bundle
from tfcluster.nodes import orders
from tfcluster.nodes.hub import Hub, Message
from tfcluster.nodes.orders import ANSWER_S, Answers, Until, port_error
from tfcluster.nodes.probe_answers import ProbeAnswer, folders_of, order_for, read, script_of
from tfcluster.nodes.reports import LINKS, PREFLIGHT
from tfcluster.nodes.task_reports import last_text
from tfcluster.plan.environment import proxy_guards
from tfcluster.plan.placement import is_loopback
from tfcluster.plan.plan import NodePlan, Plan, TaskId, TaskPlan
from tfcluster.preflight import rules
from tfcluster.preflight.rules import Finding, Needs, PreflightReport
from tfcluster.rundir.paths import RunPaths
from tfcluster.supervision import connectivity
from tfcluster.supervision.connectivity import DialPlan, between

_ANSWERS = (f"{PREFLIGHT} task_exited", f"{PREFLIGHT} start_failed")
LOOK_S = 60.0
"""For a Python to start there, on a slow file server maybe, and for all that it looks at."""


@dataclass(frozen=True, slots=True)
class NodeProbes:
    """The one look at nodes whose agents have been reached. What is known of one that has gone
    since, a failed start, is its answer."""

    plan: Plan
    paths: RunPaths
    hub: Hub
    until: Until

    async def look(
        self, nodes: Sequence[str], ports: Mapping[TaskId, int], *, deep: bool = False
    ) -> PreflightReport:
        """At `nodes` all at once; `ports` are those that their agents hold."""
        made = await asyncio.to_thread(bundle.build)
        calls = between(self.plan, nodes, ports)
        for name in nodes:
            site = self.hub.site(name)
            order = order_for(self.plan, site, calls, deep=deep)
            self.hub.send(name, orders.start_probe(self.plan, site, order, made.digest))
        await self._hear(nodes, LOOK_S + (machine.IMPORT_S if deep else 0.0))
        seen: list[ProbeAnswer] = []
        silent: list[Finding] = []
        for name in nodes:
            found = self._heard(name, calls)
            if isinstance(found, ProbeAnswer):
                seen.append(found)
            else:
                silent.append(found)
        needs = rules.needs_of(self.plan, await asyncio.to_thread(self._script_here))
        findings = rules.judge(seen, needs, silent={finding.node for finding in silent})
        look = PreflightReport(tuple(nodes), tuple(seen), findings)
        return look.with_more(silent)

    async def _hear(self, nodes: Sequence[str], work_s: float) -> None:
        """Until all `nodes` have answered; that one does not is a finding."""
        answers = Answers(self.hub, self.until)
        what = "to look at itself"
        for node in await answers.missing(nodes, *_ANSWERS, what=what, work_s=work_s):
            error = f"no answer for {work_s + ANSWER_S:.0f} s"
            self.hub.keep(node, {"type": "start_failed", "task": PREFLIGHT, "error": error})

    def _heard(self, node: str, calls: DialPlan) -> ProbeAnswer | Finding:
        log = self.paths.step_log(PREFLIGHT, node)
        lines = last_text(log).splitlines()
        mine = [port for task, port in calls.ports.items() if self.plan.task(task).node == node]
        peers = len(calls.dialled[node])
        try:
            # It goes on listening for the others: its line came when it came.
            now = log.stat().st_mtime
            return read(lines[-1] if lines else "", now=now, ports=mine, peers=peers)
        except (ValueError, OSError):
            reply = self.hub.answer(node, _ANSWERS) or {}
            said = lines[-1] if lines else reply.get("error", "it said nothing")
            fix = f"runtime.hosts.{node}.python names its Python (3.9 or newer)"
            return Finding(node, "Python", f"it cannot be looked at: {said}", fix)

    def _script_here(self) -> str | None:
        command = self.plan.tasks[0].command
        if (script := script_of(command)) is None:
            return None
        return machine.sha256(str(Path(self.plan.workdir) / Path(script).relative_to(command.cwd)))


def guards(plan: Plan, one: ProbeAnswer) -> dict[str, str]:
    """What keeps gRPC between the tasks of a node off the proxies that were seen there."""
    return proxy_guards({}, one.proxies, _hosts(plan))


def guards_unseen(plan: Plan) -> dict[str, str]:
    """The same for a node that nobody has looked at: read by gRPC alone."""
    return {"no_grpc_proxy": ",".join(_hosts(plan))}


def _hosts(plan: Plan) -> list[str]:
    return sorted({task.host.strip("[]") for task in plan.tasks})


_LOOK_EVERY_S = 0.1
_SURVEY_ANSWERS = (f"{LINKS} task_exited", f"{LINKS} start_failed")


@dataclass(frozen=True, slots=True)
class ReachabilityCheck:
    """The lines between the nodes of one run."""

    plan: Plan
    paths: RunPaths
    hub: Hub

    async def look(self, attempt: int, *, is_over: Callable[[], bool]) -> dict[str, str]:
        """Node → how it is cut off, see `links.lost`. Nodes that do not answer in time, and all
        that is still awaited when the run `is_over`, are left out."""
        made = await asyncio.to_thread(bundle.build)
        names = [node.name for node in self.plan.nodes]
        held = (self.hub.answer(name, ["ports_held"]) for name in names)
        self._ask(names, attempt, filter(None, held), made.digest)
        loop = asyncio.get_running_loop()
        until = loop.time() + connectivity.ANSWER_S
        while loop.time() < until and not is_over():
            if all(self.hub.answer(name, _SURVEY_ANSWERS) is not None for name in names):
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        cuts = [cut for name in names for cut in self._found(name, attempt)]
        return connectivity.find_lost_links(cuts, chief_node=self.plan.task(self.plan.chief).node)

    def _ask(
        self, names: Sequence[str], attempt: int, held: Iterable[Message], digest: str
    ) -> None:
        ports = orders.attempt_of(self.plan, attempt, (), held).ports
        calls = between(self.plan, names, ports)
        for name in names:
            order = connectivity.order_for(name, calls, attempt)
            python, site = self.plan.node(name).interpreter, self.hub.site(name)
            self.hub.forget(name, *_SURVEY_ANSWERS)
            self.hub.send(name, orders.start_dial(python, site, order, digest))
        self.hub.put(lambda: None)  # wakes the loop, which sends

    def _found(self, node: str, attempt: int) -> Iterable[connectivity.Cut]:
        lines = last_text(self.paths.step_log(LINKS, node)).splitlines()
        return connectivity.parse_report(node, lines[-1], attempt=attempt) if lines else ()


def probe_this_node(plan: Plan) -> PreflightReport:
    """Before `up`: its agent holds the ports, and the plan has looked at Python and script."""
    seen = tuple(_seen(plan, node) for node in plan.nodes)
    needs = replace(_needs(plan), tensorflow=False)
    return PreflightReport(tuple(one.node for one in seen), seen, rules.judge(seen, needs))


def probe_this_node_longer(
    plan: Plan, *, folder: Path, locks: Path, deep: bool = False
) -> PreflightReport:
    """For `doctor`: also whether each port is free, and what else a person may want to know.

    `folder`: below which runs' files will lie; `locks`: those of ports that other runs hold;
    `deep`: TensorFlow is imported, which takes seconds.
    """
    seen = tuple(_seen_longer(plan, node, folder, deep=deep) for node in plan.nodes)
    found = (*rules.judge(seen, _needs(plan)), *_taken(plan, locks))
    return PreflightReport(tuple(one.node for one in seen), seen, ()).with_more(found)


def facts(node: str, folder: Path) -> ProbeAnswer:
    """Of the machine, whatever Python its tasks have; `folder`: on whose disk runs lie."""
    names, trouble = machine.gpus()
    return ProbeAnswer(
        node=node,
        gpus=tuple(names),
        gpu_trouble=trouble,
        free_bytes=machine.free_bytes(str(folder)),
        cores=limits.usable(),
        shm_bytes=machine.free_bytes("/dev/shm") if os.path.isdir("/dev/shm") else None,
        port_range=tuple(machine.port_range()),
        proxies=machine.proxies(os.environ),
    )


def _needs(plan: Plan) -> Needs:
    """GPUs, script and Estimator the plan has checked itself."""
    needs = rules.needs_of(plan)
    return Needs(tensorflow=needs.tensorflow, gang=needs.gang, writes=needs.writes)


def _seen(plan: Plan, node: NodePlan, seen: ProbeAnswer | None = None) -> ProbeAnswer:
    tasks = [task for task in plan.listening if task.node == node.name]
    python = node.interpreter
    return replace(
        seen or ProbeAnswer(node.name),
        python=(python.version or "") if python else "",
        packages=dict(python.packages) if python else {},
        executable=python.path if python else "",
        strange_names=_strange_names(tasks),
        unwritable=machine.unwritable(folders_of(plan, node.name)),
        ports=tuple(task.port for task in tasks if task.port),
    )


def _seen_longer(plan: Plan, node: NodePlan, folder: Path, *, deep: bool) -> ProbeAnswer:
    seen = _seen(plan, node, facts(node.name, folder))
    imported = machine.tensorflow_imported(seen.executable) if deep and seen.executable else None
    return replace(seen, imported=imported)


def _strange_names(tasks: list[TaskPlan]) -> list[str]:
    """An address of this machine needs no look-up, which may take seconds."""
    hosts = dict.fromkeys(task.host for task in tasks if not is_loopback(task.host))
    return [host for host in hosts if not machine.is_own(host)]


def _taken(plan: Plan, locks: Path) -> Iterator[Finding]:
    for task in plan.tasks:
        fixed = task.port and plan.kind != "plain"
        if fixed and (holder := ports.taken_by(task.port, str(locks))) is not None:
            wanted = {"host": task.host, "port": task.port, "task": str(task.id)}
            error = port_error({**wanted, **holder})
            yield Finding(task.node, "ports", error.message, error.fix)
