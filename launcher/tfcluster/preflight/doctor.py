"""The checks of `tfcluster doctor`: every node of a spec, or this machine, without a start."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tfcluster.agent import catalogue as msg
from tfcluster.agent.node import machine
from tfcluster.discovery import interpreters
from tfcluster.discovery.planning import Planned
from tfcluster.errors import InterpreterError, SetupError
from tfcluster.nodes import code_sync, orders
from tfcluster.nodes.hub import Hub, backend_of
from tfcluster.nodes.orders import ANSWER_S, PORT_REPLIES, Answers
from tfcluster.nodes.reports import PREFLIGHT, why_lost
from tfcluster.plan.context import LOCAL
from tfcluster.plan.plan import NodePlan, Plan
from tfcluster.preflight import probes, rules
from tfcluster.preflight.probes import NodeProbes
from tfcluster.preflight.rules import Finding, Needs, PreflightReport
from tfcluster.rundir import run_writer
from tfcluster.rundir.paths import RunPaths, home, runtime_dir
from tfcluster.rundir.registry import new_run_id

_LEASE_S = 10.0
_TURN_S = 0.5
_FIX = "log in there, check that its disk and memory are not full, and try again"


def examine(planned: Planned, *, deep: bool = False) -> PreflightReport:
    """Return what `up` would find before the start; an unreachable node is a finding.

    `deep`: import TensorFlow on each node, which takes seconds.
    """
    plan = planned.plan
    if any(node.backend != "local" for node in plan.nodes):
        run_writer.make_runtime_dir()
        with tempfile.TemporaryDirectory(prefix="tfcluster-doctor-") as scratch:
            report = asyncio.run(_examine(plan, Path(scratch), deep=deep))
    else:
        report = probes.probe_this_node_in_detail(
            plan, folder=home(), locks=runtime_dir() / "ports", deep=deep
        )
    return report.with_more(map(_obstacle_finding, planned.obstacles()))


def examine_this_machine(python: str | None = None, *, deep: bool = False) -> PreflightReport:
    """Return what a job in the current folder would find on this machine.

    Raises UsageError for a `python` that does not exist.
    """
    workdir = Path.cwd()
    found = interpreters.choose(python, "--python", base=workdir, workdir=workdir).result()
    answer = replace(
        probes.machine_facts(LOCAL, home()),
        python=found.version or "",
        packages=dict(found.packages),
        executable=found.path,
        imported=machine.import_tensorflow(found.path) if deep else None,
    )
    return PreflightReport((LOCAL,), (answer,), rules.judge([answer], Needs()))


def _obstacle_finding(error: SetupError) -> Finding:
    """Return the finding for an obstacle of the plan, on the machine that plans."""
    check = "TensorFlow" if isinstance(error, InterpreterError) else "spec"
    return Finding(LOCAL, check, error.message, error.fix)


async def _examine(plan: Plan, scratch: Path, *, deep: bool) -> PreflightReport:
    paths = RunPaths(scratch / new_run_id("doctor", time.time()))
    paths.logs.mkdir(parents=True)
    hub = Hub(backend_of, paths, lease_s=_LEASE_S)
    visit = _Visit(plan, paths, hub)
    async with asyncio.TaskGroup() as background:
        try:
            unreachable = await visit.connect_all(background)
            await code_sync.find_shared_workdirs(
                plan, hub, [plan.node(name) for name in visit.reached]
            )
            port_findings = await visit.hold_ports()
            node_probes = NodeProbes(plan, paths, hub, visit.until)
            held = orders.held_ports(hub, visit.connected)
            report = await node_probes.run(visit.connected, held, deep=deep)
        finally:
            await hub.close()
    names = tuple(node.name for node in plan.nodes)
    findings = [*unreachable, *port_findings]
    return PreflightReport(names, report.answers, report.findings).with_more(findings)


class _Visit:
    """The connections to the nodes' agents during an examination."""

    def __init__(self, plan: Plan, paths: RunPaths, hub: Hub) -> None:
        self._plan, self._paths, self._hub = plan, paths, hub
        self.reached: list[str] = []
        """Nodes whose agents were reached."""
        self._lost: dict[str, str] = {}
        """Reached nodes that were lost since → why."""

    @property
    def connected(self) -> list[str]:
        """Nodes that were reached and not lost since."""
        return [name for name in self.reached if name not in self._lost]

    async def until(self, condition: Callable[[], bool], *, at: float | None = None) -> None:
        """Handle inputs until `condition` holds; it is checked every half second."""
        while not condition():
            await self._hub.flush()
            await self._hub.turn(_TURN_S)

    async def connect_all(self, background: asyncio.TaskGroup) -> list[Finding]:
        """Connect to all nodes at once; return a finding for each that could not be reached."""
        nodes = self._plan.nodes
        errors = await asyncio.gather(
            *(self._connect(node, background) for node in nodes), return_exceptions=True
        )
        findings = []
        for node, error in zip(nodes, errors, strict=True):
            if isinstance(error, SetupError):
                what = error.message.removeprefix(f"{node.name} ")
                findings.append(Finding(node.name, "reach", what, error.fix))
            elif error is not None:
                raise error
            else:
                self.reached.append(node.name)
        return findings

    async def _connect(self, node: NodePlan, background: asyncio.TaskGroup) -> None:
        await self._hub.connect(
            node,
            self._paths.run_id,
            on_message=self._on_message,
            on_closed=self._lose,
            background=background,
            tasks=[str(task.id) for task in self._plan.tasks if task.node == node.name],
        )

    def _on_message(self, node: str, message: msg.Report) -> None:
        self._hub.keep(node, message)
        if (why := why_lost(message)) is not None:
            self._lose(node, why)

    def _lose(self, node: str, why: str) -> None:
        """Note that the node will not answer its probe."""
        if node not in self._lost:
            self._lost[node] = why
            self._hub.keep(node, msg.StartFailed(task=PREFLIGHT, attempt=0, error=why))

    async def hold_ports(self) -> list[Finding]:
        """Have the agents hold their ports; return findings for taken ports and lost nodes."""
        if self._plan.kind == "plain":
            return []
        for name in self.reached:
            self._hub.send(name, orders.hold_ports(self._plan, name))
        answers, is_lost = Answers(self._hub, self.until), self._lost.__contains__
        what = "to hold its ports"
        for name in await answers.missing(self.reached, *PORT_REPLIES, what=what, is_lost=is_lost):
            self._lose(name, f"its agent has not answered for {ANSWER_S:.0f} s")
        lost = [Finding(name, "reach", why, _FIX) for name, why in self._lost.items()]
        replies = ((name, self._hub.answer(name, msg.PortTaken)) for name in self.connected)
        return lost + [probes.taken_port(node, taken) for node, taken in replies if taken]
