"""Probes that check the nodes before a start, and the links between them after a failure."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfcluster.agent import catalogue as msg
from tfcluster.agent.net import ports
from tfcluster.agent.node import limits, machine
from tfcluster.backends import bundle
from tfcluster.nodes import orders
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.orders import ANSWER_S, Answers, Until, port_error
from tfcluster.nodes.probe_answers import ProbeAnswer, folders_of, order_for, read, script_of
from tfcluster.nodes.reports import END_REPLIES, LINKS, PREFLIGHT
from tfcluster.nodes.task_reports import last_text
from tfcluster.plan.environment import proxy_guards
from tfcluster.plan.plan import NodePlan, Plan, TaskId, TaskPlan
from tfcluster.preflight import rules
from tfcluster.preflight.rules import Finding, Needs, PreflightReport
from tfcluster.rundir.paths import RunPaths
from tfcluster.spec.cluster import is_loopback
from tfcluster.supervision import connectivity
from tfcluster.supervision.connectivity import DialPlan, between

PROBE_S = 60.0
"""Time for a Python to start, maybe from a slow file server, and for all its checks."""
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class NodeProbes:
    """The probe of all nodes, by their agents.

    A node that was lost after it was reached answers with a kept ``start_failed`` message.
    """

    plan: Plan
    paths: RunPaths
    hub: Hub
    until: Until

    async def run(
        self, nodes: Sequence[str], ports: Mapping[TaskId, int], *, deep: bool = False
    ) -> PreflightReport:
        """Probe all `nodes` at once and judge their answers.

        `ports`: those that their agents hold; `deep`: import TensorFlow, which takes seconds.
        """
        built = await asyncio.to_thread(bundle.build)
        dials = between(self.plan, nodes, ports)
        for name in nodes:
            site = self.hub.site(name)
            order = order_for(self.plan, site, dials, deep=deep)
            self.hub.send(name, orders.start_probe(self.plan, site, order, built.digest))
        await self._await_answers(nodes, PROBE_S + (machine.IMPORT_S if deep else 0.0))
        answers: list[ProbeAnswer] = []
        silent: list[Finding] = []
        for name in nodes:
            found = self._answer_of(name, dials)
            if isinstance(found, ProbeAnswer):
                answers.append(found)
            else:
                silent.append(found)
        needs = rules.needs_of(self.plan, await asyncio.to_thread(self._local_script_sha256))
        findings = rules.judge(answers, needs, silent={finding.node for finding in silent})
        report = PreflightReport(tuple(nodes), tuple(answers), findings)
        return report.with_more(silent)

    async def _await_answers(self, nodes: Sequence[str], work_s: float) -> None:
        answers = Answers(self.hub, self.until)
        what = "to run its checks"
        for node in await answers.missing(
            nodes, *END_REPLIES, what=what, step=PREFLIGHT, work_s=work_s
        ):
            error = f"no answer for {work_s + ANSWER_S:.0f} s"
            self.hub.keep(node, msg.StartFailed(task=PREFLIGHT, attempt=0, error=error))

    def _answer_of(self, node: str, dials: DialPlan) -> ProbeAnswer | Finding:
        log = self.paths.step_log(PREFLIGHT, node)
        lines = last_text(log).splitlines()
        own_ports = [
            port for task, port in dials.ports.items() if self.plan.task(task).node == node
        ]
        peers = len(dials.dialled[node])
        try:
            # The probe goes on listening for the others: the time of its line is the log's.
            now = log.stat().st_mtime
            return read(lines[-1] if lines else "", now=now, ports=own_ports, peers=peers)
        except (ValueError, OSError):
            failed = self.hub.answer(node, msg.StartFailed, step=PREFLIGHT)
            why = lines[-1] if lines else failed.error if failed else "it printed nothing"
            fix = f"set runtime.hosts.{node}.python to its Python (3.9 or newer)"
            return Finding(node, "Python", f"the checks could not run: {why}", fix)

    def _local_script_sha256(self) -> str | None:
        command = self.plan.tasks[0].command
        if (script := script_of(command)) is None:
            return None
        return machine.sha256(str(Path(self.plan.workdir) / Path(script).relative_to(command.cwd)))


def proxy_env(plan: Plan, answer: ProbeAnswer) -> dict[str, str]:
    """Return variables that keep gRPC between the tasks off the proxies a node's probe found."""
    return proxy_guards({}, answer.proxies, _hosts(plan))


def default_proxy_env(plan: Plan) -> dict[str, str]:
    """Return the variables for a node that was not probed: one that only gRPC reads."""
    return {"no_grpc_proxy": ",".join(_hosts(plan))}


def _hosts(plan: Plan) -> list[str]:
    return sorted({task.host.strip("[]") for task in plan.tasks})


async def probe_links(
    plan: Plan, paths: RunPaths, hub: Hub, attempt: int, *, is_over: Callable[[], bool]
) -> dict[str, str]:
    """Have the nodes dial each other; return node → how it is cut off (`find_lost_links`).

    Nodes that do not answer in time, or before the run `is_over`, are left out.
    """
    built = await asyncio.to_thread(bundle.build)
    names = [node.name for node in plan.nodes]
    dials = between(plan, names, orders.held_ports(hub, names))
    for name in names:
        order = connectivity.order_for(name, dials, attempt)
        python = plan.node(name).interpreter
        hub.forget(name, *END_REPLIES, step=LINKS)
        hub.send(name, orders.start_dial(python, hub.site(name), order, built.digest))
    hub.put(lambda: None)  # wakes the loop, which sends
    loop = asyncio.get_running_loop()
    until = loop.time() + connectivity.ANSWER_S
    while loop.time() < until and not is_over():
        if all(hub.answer(name, *END_REPLIES, step=LINKS) is not None for name in names):
            break
        await asyncio.sleep(_POLL_S)
    cuts: list[connectivity.Cut] = []
    for name in names:
        if lines := last_text(paths.step_log(LINKS, name)).splitlines():
            cuts += connectivity.parse_report(name, lines[-1], attempt=attempt)
    return connectivity.find_lost_links(cuts, chief_node=plan.task(plan.chief).node)


def probe_this_node(plan: Plan) -> PreflightReport:
    """Check this machine for `up`.

    Ports are left to the agent, which holds them; Python and script were checked by the plan.
    """
    answers = tuple(_planned_answer(plan, node, ProbeAnswer(node.name)) for node in plan.nodes)
    needs = replace(_unplanned_needs(plan), tensorflow=False)
    nodes = tuple(answer.node for answer in answers)
    return PreflightReport(nodes, answers, rules.judge(answers, needs))


def probe_this_node_in_detail(
    plan: Plan, *, folder: Path, locks: Path, deep: bool = False
) -> PreflightReport:
    """Check this machine for `doctor`: also whether ports are free, and facts worth showing.

    `folder`: the parent of run folders; `locks`: the lock files of ports that other runs hold;
    `deep`: import TensorFlow, which takes seconds.
    """
    answers = tuple(_detailed_answer(plan, node, folder, deep=deep) for node in plan.nodes)
    findings = (*rules.judge(answers, _unplanned_needs(plan)), *_taken_ports(plan, locks))
    nodes = tuple(answer.node for answer in answers)
    return PreflightReport(nodes, answers, ()).with_more(findings)


def machine_facts(node: str, folder: Path) -> ProbeAnswer:
    """Return the facts of this machine, named `node`, that do not depend on a Python.

    `folder`: the parent of run folders, whose disk counts.
    """
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


def _unplanned_needs(plan: Plan) -> Needs:
    """Return the needs that the plan has not checked; it checks GPUs, script and Estimator."""
    return replace(rules.needs_of(plan), estimator=False, nccl={}, gpu_indexes={})


def _planned_answer(plan: Plan, node: NodePlan, facts: ProbeAnswer) -> ProbeAnswer:
    tasks = [task for task in plan.listening if task.node == node.name]
    python = node.interpreter
    return replace(
        facts,
        python=(python.version or "") if python else "",
        packages=dict(python.packages) if python else {},
        executable=python.path if python else "",
        strange_names=_foreign_names(tasks),
        unwritable=machine.unwritable(folders_of(plan, node.name)),
        ports=tuple(task.port for task in tasks if task.port),
    )


def _detailed_answer(plan: Plan, node: NodePlan, folder: Path, *, deep: bool) -> ProbeAnswer:
    answer = _planned_answer(plan, node, machine_facts(node.name, folder))
    if not deep or not answer.executable:
        return answer
    return replace(answer, imported=machine.import_tensorflow(answer.executable))


def _foreign_names(tasks: list[TaskPlan]) -> list[str]:
    """Return the tasks' hosts that are not this machine; for loopback without a name lookup."""
    hosts = dict.fromkeys(task.host for task in tasks if not is_loopback(task.host))
    return [host for host in hosts if not machine.is_local(host)]


def _taken_ports(plan: Plan, locks: Path) -> Iterator[Finding]:
    for task in plan.tasks:
        is_fixed = task.port and plan.kind != "plain"
        if is_fixed and (holder := ports.taken_by(task.port, str(locks))) is not None:
            taken = msg.PortTaken(task=str(task.id), host=task.host, port=task.port, **holder)
            yield taken_port(task.node, taken)


def taken_port(node: str, taken: msg.PortTaken) -> Finding:
    error = port_error(taken)
    return Finding(node, "ports", error.message, error.fix)
