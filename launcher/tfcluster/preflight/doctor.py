"""The checks of `tfcluster doctor`: every node of a spec, or this machine, without a start."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster import kinds
from tfcluster.agent import catalogue as msg
from tfcluster.agent import foreign_json
from tfcluster.agent.node import machine
from tfcluster.backends import bundle, jobs
from tfcluster.backends.base import Tell, ignore_event, open_nodes
from tfcluster.discovery import interpreters
from tfcluster.discovery.planning import Planned
from tfcluster.errors import InterpreterError, SetupError
from tfcluster.node_loss import NodeLoss
from tfcluster.nodes import orders, shared_workdirs
from tfcluster.nodes.hub import Hub, OpenNodes
from tfcluster.nodes.orders import ANSWER_S, PORT_REPLIES, Answers
from tfcluster.nodes.reports import PREFLIGHT, loss_of_node
from tfcluster.nodes.shared_workdirs import placed_mark
from tfcluster.plans.context import LOCAL
from tfcluster.plans.plan import NodePlan, Plan
from tfcluster.preflight import link_speed, probes, rules
from tfcluster.preflight.link_speed import Measurement
from tfcluster.preflight.preflight_report import Finding, PreflightReport
from tfcluster.preflight.probes import probe_nodes
from tfcluster.preflight.rules import Needs
from tfcluster.rundir import run_writer
from tfcluster.rundir.paths import RunPaths, home, runtime_dir
from tfcluster.rundir.registry import new_run_id
from tfcluster.typed_json import from_json, to_json

if TYPE_CHECKING:
    from tfcluster.spec.sections import Runtime

_LEASE_S = 10.0
_ORDER, _REPORT = "given.json", "report.json"
"""The files by which `main` gets its plan and returns its report."""
_TURN_S = 0.5
_FIX = "log in there, check that its disk and memory are not full, and try again"


def examine(planned: Planned, *, deep: bool = False, tell: Tell = ignore_event) -> PreflightReport:
    """Return what `up` would find before the start; an unreachable node is a finding.

    `deep`: import TensorFlow on each node and measure all-reduces between the workers, which takes
    seconds to minutes; nodes that a scheduler chooses are allocated for that. `tell` shows what is
    waited for.
    """
    plan, runtime = planned.plan, planned.spec.runtime
    findings = tuple(map(_obstacle_finding, rules.find_obstacles(planned)))
    kind = kinds.get(plan.nodes[0].backend)
    if kind.jobs is not None and not kind.is_allocated(os.environ):
        return _ask_scheduler(planned, deep=deep, tell=tell).with_more(findings)
    known = None
    if all(node.is_here for node in plan.nodes):
        locks = runtime_dir() / "ports"
        known = probes.probe_this_node_in_detail(plan, folder=home(), locks=locks, deep=deep)
        known = known.with_more(findings)
        if known.fatal or not deep:
            return known
    run_writer.make_runtime_dir()
    with tempfile.TemporaryDirectory(prefix="tfcluster-doctor-") as scratch:
        report = asyncio.run(
            _examine_nodes(plan, Path(scratch), deep=deep, runtime=runtime, tell=tell, known=known)
        )
        return report.with_more(findings)


def _ask_scheduler(planned: Planned, *, deep: bool, tell: Tell) -> PreflightReport:
    """Return what a job of the plan would meet; `deep`: also examine nodes that it would get."""
    plan, backend = planned.plan, planned.plan.nodes[0].backend
    scheduler = jobs.of_backend(backend)
    assert scheduler is not None
    runtime, run_id = planned.spec.runtime, new_run_id("doctor", time.time())
    job = jobs.submission_of(plan, runtime, home() / "runs" / run_id)
    report = PreflightReport.of_job(backend, scheduler.check(job, thorough=True))
    if not deep or report.fatal:
        return report
    order = {"run_id": run_id, "plan": to_json(plan), "runtime": runtime.model_dump(mode="json")}
    with tempfile.TemporaryDirectory(prefix="tfcluster-doctor-") as folder:
        scratch = Path(folder)
        (scratch / _ORDER).write_text(json.dumps(order))
        try:
            scheduler.run_inside(job, ["-P", "-m", __name__], scratch, tell=tell)
            given_back = foreign_json.read_json_object(scratch / _REPORT)
        except SetupError as error:
            return report.with_more([Finding(backend, "nodes", error.message, error.fix)])
    return report.with_nodes(from_json(PreflightReport, given_back))


def _examine_with_run_folder(plan: Plan, scratch: Path) -> PreflightReport:
    """Examine the nodes of an allocation, and whether they see the folder of the runs.

    The coordinator of a submitted run starts on the first of them, in the run's folder.
    """
    runs = home() / "runs"
    above = next(folder for folder in (runs, *runs.parents) if folder.is_dir())
    with placed_mark(above) as mark:
        if mark is None:
            return asyncio.run(_examine_nodes(plan, scratch, deep=True))
        path = f"{mark.folder}/{mark.name}"
        report = asyncio.run(_examine_nodes(plan, scratch, deep=True, shared=[path]))
    fix = "set TFCLUSTER_HOME to a folder on a file system that login node and nodes share"
    first = plan.nodes[0].name
    return report.with_more(
        Finding(
            answer.node,
            "run folder",
            f"it does not see the runs in {runs}, as the first node of a job has to",
            fix,
            is_fatal=answer.node == first,
        )
        for answer in report.seen
        if path in answer.absent
    )


def main(scratch: Path) -> None:
    """Examine the nodes of the allocation that this process runs in, for `_ask_scheduler`."""
    from tfcluster.spec.sections import Runtime  # imports pydantic

    order = foreign_json.read_json_object(scratch / _ORDER)
    plan, runtime = from_json(Plan, order["plan"]), Runtime.model_validate(order["runtime"])
    run_writer.make_runtime_dir()
    if plan.nodes[0].capabilities.sees_files:
        report = _examine_with_run_folder(plan, scratch)
    else:
        run_id = order["run_id"]
        report = asyncio.run(
            _examine_nodes(
                plan,
                scratch,
                deep=True,
                runtime=runtime,
                tell=partial(print, file=sys.stderr, flush=True),
                run_id=run_id,
            )
        )
    (scratch / _REPORT).write_text(json.dumps(report.to_json()))


def examine_this_machine(python: str | None = None, *, deep: bool = False) -> PreflightReport:
    """Return what a job in the current folder would find on this machine.

    Raises UsageError for a `python` that does not exist.
    """
    workdir = Path.cwd()
    chosen = interpreters.choose(python, "--python", base=workdir, workdir=workdir)()
    needs = Needs()
    chosen = interpreters.own_instead(chosen, needs.packages, environ=os.environ, cwd=workdir)
    workers = str(bundle.workers_folder().parent)
    answer = replace(
        probes.facts_of_this_machine(LOCAL, home()),
        python=chosen.version or "",
        packages=dict(chosen.packages),
        executable=chosen.path,
        imported=machine.import_tensorflow(chosen.path, workers) if deep else None,
    )
    return rules.report_of([answer], needs)


def _obstacle_finding(error: SetupError) -> Finding:
    """Return the finding for an obstacle of the plan, on the machine that plans."""
    check = "Python path" if isinstance(error, InterpreterError) else "spec"
    return Finding(LOCAL, check, error.message, error.fix)


async def _examine_nodes(
    plan: Plan,
    scratch: Path,
    *,
    deep: bool,
    open_nodes: OpenNodes = open_nodes,
    runtime: Runtime | None = None,
    tell: Tell = ignore_event,
    known: PreflightReport | None = None,
    shared: Sequence[str] = (),
    run_id: str | None = None,
) -> PreflightReport:
    """Return what the nodes' agents find.

    `known`: the report of checks that are done already; `shared`: paths that the nodes look for;
    `run_id`: that of the job that this process runs in.
    """
    paths = RunPaths(scratch / (run_id or new_run_id("doctor", time.time())))
    paths.logs.mkdir(parents=True)
    hub = Hub(paths, _LEASE_S, tell, tell, open_nodes, plan=plan, runtime=runtime)
    visit = _Visit(plan, hub)
    async with asyncio.TaskGroup() as background:
        try:
            findings = await visit.connect_all(background)
            plan = visit.plan
            reached = [plan.node(name) for name in visit.connected]
            await shared_workdirs.find_shared_workdirs(plan, hub, reached)
            findings += await visit.hold_ports()
            plan = visit.plan
            ports = orders.held_ports(hub, visit.connected)
            report = known or await probe_nodes(
                plan,
                paths,
                Answers(hub, visit.until),
                visit.connected,
                ports,
                deep=deep,
                shared=shared,
            )
            names = tuple(node.name for node in plan.nodes)
            report = replace(report, nodes=names).with_more(findings)
            if deep and not report.fatal:
                report = await visit.measure(paths, report, tell)
        finally:
            await hub.close()
    return report


class _Visit:
    """The connections to the nodes' agents during an examination."""

    def __init__(self, plan: Plan, hub: Hub) -> None:
        self.hub = hub
        self.plan = plan
        """The plan, with the hosts of its tasks once the nodes are open."""
        self.connected: list[str] = []
        """Nodes that were reached and not lost since."""
        self._lost: dict[str, str] = {}
        """Nodes that were reached and lost since → why."""
        self._measurement: Measurement | None = None

    async def until(self, condition: Callable[[], bool], *, at: float | None = None) -> None:
        """Handle inputs until `condition` holds; it is checked every half second."""
        while not condition():
            await self.hub.flush()
            await self.hub.turn(_TURN_S)

    async def connect_all(self, background: asyncio.TaskGroup) -> list[Finding]:
        """Connect to all nodes at once; return a finding for each that could not be reached."""

        async def connect(node: NodePlan) -> Finding | None:
            try:
                await self.hub.connect(node)
            except SetupError as error:
                return Finding(node.name, "reach", error.problem, error.fix)
            return None

        nodes = self.plan.nodes
        self.hub.listen(background, self._on_message, self._lose)
        try:
            self.plan = self.plan.at(await self.hub.open(nodes))
        except SetupError as error:
            return [Finding(node.name, "reach", error.message, error.fix) for node in nodes]
        findings = await asyncio.gather(*map(connect, nodes))
        self.connected = [n.name for n, error in zip(nodes, findings, strict=True) if error is None]
        return list(filter(None, findings))

    def _on_message(self, node: str, message: msg.Report) -> None:
        self.hub.keep(node, message)
        if (loss := loss_of_node(message)) is not None:
            self._lose(node, loss)
        elif self._measurement is not None:
            self._measurement.note(message)

    def _lose(self, node: str, loss: NodeLoss) -> None:
        """Note that the node will not answer its probe."""
        if node not in self._lost:
            self._lost[node] = loss.reason
            self.connected.remove(node)
            self.hub.keep(node, msg.StartFailed(task=PREFLIGHT, attempt=0, error=loss.reason))

    async def measure(
        self, paths: RunPaths, report: PreflightReport, tell: Tell
    ) -> PreflightReport:
        """Return `report` with the all-reduces that the workers have measured, or why not."""
        imports = {answer.node: answer.imported or {} for answer in report.seen}
        devices = {
            node: result["devices"] for node, result in imports.items() if "devices" in result
        }
        if reason := link_speed.why_not(self.plan, devices):
            return replace(report, notes=(*report.notes, f"No all-reduce was measured: {reason}"))
        measurement = self._measurement = Measurement(self.plan, self.hub, paths, devices)
        tell(measurement.announcement)
        await measurement.start(report.seen, self.connected)
        await self.until(lambda: measurement.is_over or bool(self._lost))
        return measurement.added_to(report, self._lost)

    async def hold_ports(self) -> list[Finding]:
        """Have the agents hold their ports; return findings for taken ports and lost nodes."""
        if self.plan.kind == "plain":
            return []
        for name in self.connected:
            self.hub.send(name, orders.hold_ports(self.plan, name))
        for name in await Answers(self.hub, self.until).missing(
            tuple(self.connected),
            *PORT_REPLIES,
            what="to hold its ports",
            is_lost=self._lost.__contains__,
        ):
            self._lose(name, NodeLoss(f"its agent has not answered for {ANSWER_S:.0f} s"))
        lost = [Finding(name, "reach", reason, _FIX) for name, reason in self._lost.items()]
        taken = ((name, self.hub.answer(name, msg.PortTaken)) for name in self.connected)
        ports = [probes.port_finding(node, reply) for node, reply in taken if reply]
        return [*lost, *ports, *self._take_addresses()]

    def _take_addresses(self) -> Iterator[Finding]:
        """Put the nodes' addresses on the spec's interface into the plan; yield what lacks it."""
        for node in self.connected:
            try:
                self.plan = orders.at_interface(self.plan, self.hub, [node])
            except SetupError as error:
                yield Finding(node, "interfaces", error.problem, error.fix)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
