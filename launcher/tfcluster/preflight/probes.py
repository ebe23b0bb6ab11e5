"""Probes that check the nodes before a start, and the links between them after a failure."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tfcluster.agent import catalogue as msg
from tfcluster.agent.net import ports
from tfcluster.agent.node import machine
from tfcluster.backends import bundle
from tfcluster.nodes import orders, probed_resources
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.orders import ANSWER_S, Answers, port_error
from tfcluster.nodes.probe_answers import (
    ProbeAnswer,
    folders_of,
    probe_order,
    read_answer,
    script_of,
)
from tfcluster.nodes.reports import END_REPLIES, LINKS, PREFLIGHT
from tfcluster.plans.environment import proxy_guards
from tfcluster.plans.plan import NodePlan, Plan, TaskId, TaskPlan
from tfcluster.preflight import rules
from tfcluster.preflight.preflight_report import Finding, PreflightReport
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.task_logs import last_text
from tfcluster.spec.cluster import is_loopback
from tfcluster.supervision import task_network
from tfcluster.supervision.task_network import DialPlan, plan_dials

PROBE_S = 60.0
"""Time for a Python to start, maybe from a slow file server, and for all its checks."""
_POLL_S = 0.1


async def probe_nodes(
    plan: Plan,
    paths: RunPaths,
    answers: Answers,
    nodes: Sequence[str],
    ports: Mapping[TaskId, int],
    *,
    deep: bool = False,
    before: Sequence[ProbeAnswer] = (),
    shared: Sequence[str] = (),
) -> PreflightReport:
    """Have the agents of all `nodes` run their probes at once, and judge the results.

    `ports`: those that the agents hold; `deep`: import TensorFlow, which takes seconds; `before`:
    the answers of nodes that were probed before, with which the others are compared; `shared`:
    paths of this machine that they look for. A node that was lost after it was reached answers
    with a kept ``start_failed`` message.
    """
    hub, nodes = answers.hub, tuple(nodes)
    built = await asyncio.to_thread(bundle.build)
    dials = plan_dials(plan, nodes, ports)
    for name in nodes:
        order = probe_order(plan, hub.site(name), dials, deep=deep, shared=shared)
        hub.send(name, orders.start_probe(PREFLIGHT, plan, hub.site(name), order, built.digest))
    work_s = PROBE_S + (machine.IMPORT_S if deep else 0.0)
    what = "to run its checks"
    for name in await answers.missing(
        nodes, *END_REPLIES, what=what, step=PREFLIGHT, work_s=work_s
    ):
        error = f"no answer for {work_s + ANSWER_S:.0f} s"
        hub.keep(name, msg.StartFailed(task=PREFLIGHT, attempt=0, error=error))
    results = [_read_answer(plan, paths, hub, name, dials) for name in nodes]
    silent = [finding for finding in results if isinstance(finding, Finding)]
    seen = (*before, *(answer for answer in results if isinstance(answer, ProbeAnswer)))
    needs = rules.needs_of(plan, await asyncio.to_thread(_local_script_sha256, plan))
    findings = rules.judge(seen, needs, silent={finding.node for finding in silent})
    every = (*(answer.node for answer in before), *nodes)
    report = PreflightReport(every, seen, findings).with_more(silent)
    return report.with_more(_find_shared_gpus(plan, seen))


def _find_shared_gpus(plan: Plan, answers: Sequence[ProbeAnswer]) -> Iterator[Finding]:
    for answer in answers:
        if reason := probed_resources.explain_shared_gpus(plan, answer):
            fix = "use fewer tasks for each node, or --set resources.gpus=0 to train on the CPU"
            yield Finding(answer.node, "GPUs", reason, fix, is_fatal=False)


async def probe_shared_nodes(
    plan: Plan, paths: RunPaths, answers: Answers, nodes: Sequence[str]
) -> tuple[Sequence[ProbeAnswer], Sequence[Finding]]:
    """Find out what nodes with several tasks can divide among them, and check nothing else.

    Return the answers, and warnings about what is not divided.
    """
    report = await probe_nodes(plan, paths, answers, nodes, {})
    answered = {answer.node for answer in report.seen}
    undivided = [
        replace(f, what=f"its tasks share all cores and GPUs: {f.what}", is_fatal=False)
        for f in report.findings
        if f.node not in answered
    ]
    return report.seen, [*undivided, *_find_shared_gpus(plan, report.seen)]


def _read_answer(
    plan: Plan, paths: RunPaths, hub: Hub, node: str, dials: DialPlan
) -> ProbeAnswer | Finding:
    log = paths.step_log(PREFLIGHT, node)
    lines = last_text(log).splitlines()
    own_ports = [port for task, port in dials.ports.items() if plan.task(task).node == node]
    peers = len(dials.dialled[node])
    try:
        # The probe goes on listening for the others: the time of its line is the log's.
        now = log.stat().st_mtime
        return read_answer(lines[-1] if lines else "", now=now, ports=own_ports, peers=peers)
    except (ValueError, OSError):
        failed = hub.answer(node, msg.StartFailed, step=PREFLIGHT)
        reason = lines[-1] if lines else failed.error if failed else "it printed nothing"
        fix = f"set runtime.hosts.{node}.python to its Python (3.9 or newer)"
        return Finding(node, "Python", f"the checks could not run: {reason}", fix)


def _local_script_sha256(plan: Plan) -> str | None:
    command = plan.tasks[0].command
    if (script := script_of(command)) is None:
        return None
    return machine.sha256(str(Path(plan.workdir) / Path(script).relative_to(command.cwd)))


def proxy_env(plan: Plan, answer: ProbeAnswer) -> dict[str, str]:
    """Return variables that keep gRPC between the tasks off the proxies a node's probe found."""
    return proxy_guards({}, answer.proxies, _hosts(plan))


def default_proxy_env(plan: Plan) -> dict[str, str]:
    """Return the variables for a node that was not probed: one that only gRPC reads."""
    return {"no_grpc_proxy": ",".join(_hosts(plan))}


def _hosts(plan: Plan) -> list[str]:
    return sorted({task.bare_host for task in plan.tasks})


async def probe_links(
    plan: Plan, paths: RunPaths, hub: Hub, attempt: int, *, is_over: Callable[[], bool]
) -> dict[str, str]:
    """Have the nodes dial each other; return node → how it is cut off (`find_lost_links`).

    Nodes that do not answer in time, or before the run `is_over`, are left out.
    """
    built = await asyncio.to_thread(bundle.build)
    names = [node.name for node in plan.nodes if hub.has_reached(node.name)]
    dials = plan_dials(plan, names, orders.held_ports(hub, names))
    for name in names:
        order = task_network.order_for(name, dials, attempt)
        hub.forget(name, *END_REPLIES, step=LINKS)
        hub.send(name, orders.start_probe(LINKS, plan, hub.site(name), order, built.digest))
    hub.wake()
    loop = asyncio.get_running_loop()
    until = loop.time() + task_network.ANSWER_S
    while loop.time() < until and not is_over():
        if all(hub.answer(name, *END_REPLIES, step=LINKS) is not None for name in names):
            break
        await asyncio.sleep(_POLL_S)
    cuts: list[task_network.Cut] = []
    for name in names:
        if lines := last_text(paths.step_log(LINKS, name)).splitlines():
            cuts += task_network.parse_report(name, lines[-1], attempt=attempt)
    return task_network.find_lost_links(cuts, chief_node=plan.task(plan.chief).node)


def probe_this_node(plan: Plan, nodes: Sequence[str]) -> PreflightReport:
    """Check this machine, which all of these nodes are, for `up`.

    Ports are left to the agent, which holds them; Python and script were checked by the plan.
    """
    answers = [_planned_answer(plan, plan.node(name), ProbeAnswer(name)) for name in nodes]
    return _report_of_this_machine(answers, plan)


def probe_this_node_in_detail(
    plan: Plan, *, folder: Path, locks: Path, deep: bool = False
) -> PreflightReport:
    """Check this machine for `doctor`: also whether ports are free, and facts worth showing.

    `folder`: the parent of run folders; `locks`: the lock files of ports that other runs hold;
    `deep`: import TensorFlow, which takes seconds.
    """
    answers = []
    for node in plan.nodes:
        answer = _planned_answer(plan, node, facts_of_this_machine(node.name, folder))
        if deep and answer.executable:
            answer = _with_import(answer, next(t for t in plan.tasks if t.node == node.name))
        answers.append(answer)
    return _report_of_this_machine(answers, plan).with_more(_taken_ports(plan, locks))


def _report_of_this_machine(answers: Sequence[ProbeAnswer], plan: Plan) -> PreflightReport:
    """Return the report without the packages that are missing, as `find_obstacles` names them."""
    return rules.report_of(answers, replace(rules.needs_of(plan), packages=()))


def _with_import(answer: ProbeAnswer, task: TaskPlan) -> ProbeAnswer:
    """Return `answer` with what TensorFlow finds in the environment of `task`."""
    env = {name: value for name, value in os.environ.items() if name not in task.command.unset}
    env |= {variable.name: variable.value for variable in task.command.env}
    workers = str(bundle.workers_folder().parent)
    return replace(
        answer,
        imported=machine.import_tensorflow(answer.executable, workers, env),
        named=[name for name in machine.SHARED_OUT if name in env],
        visible_gpus=machine.visible_gpus(env.get("CUDA_VISIBLE_DEVICES", "")),
    )


def facts_of_this_machine(node: str, folder: Path) -> ProbeAnswer:
    """Return the facts of this machine, named `node`, and of this Python.

    `folder`: the parent of run folders, whose disk counts.
    """
    return ProbeAnswer(node=node, **machine.facts({"folder": str(folder)}))


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


def _foreign_names(tasks: list[TaskPlan]) -> list[str]:
    """Return the tasks' hosts that are not this machine; for loopback without a name lookup."""
    hosts = dict.fromkeys(task.host for task in tasks if not is_loopback(task.host))
    return [host for host in hosts if not machine.is_local(host)]


def _taken_ports(plan: Plan, locks: Path) -> Iterator[Finding]:
    for task in plan.tasks:
        is_fixed = task.port and plan.kind != "plain"
        if is_fixed and (holder := ports.taken_by(task.port, str(locks))) is not None:
            taken = msg.PortTaken(task=str(task.id), host=task.host, port=task.port, **holder)
            yield port_finding(task.node, taken)


def port_finding(node: str, taken: msg.PortTaken) -> Finding:
    error = port_error(taken)
    return Finding(node, "ports", error.message, error.fix)
