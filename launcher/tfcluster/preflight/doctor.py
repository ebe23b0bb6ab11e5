"""The look of `tfcluster doctor`: at every node of a spec, or at this machine, starting nothing."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfcluster import backends
from tfcluster.agent.node import machine
from tfcluster.discovery import interpreters
from tfcluster.discovery.planning import Planned
from tfcluster.errors import InterpreterError, SurroundingsError
from tfcluster.nodes import code_sync, orders
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.orders import ANSWER_S, Answers
from tfcluster.nodes.reports import PREFLIGHT, why_lost
from tfcluster.plan.context import LOCAL
from tfcluster.plan.plan import NodePlan, Plan, TaskId
from tfcluster.preflight import probes, rules
from tfcluster.preflight.probes import NodeProbes
from tfcluster.preflight.rules import Finding, Needs, PreflightReport
from tfcluster.rundir import journal
from tfcluster.rundir.paths import RunPaths, home, runtime_dir
from tfcluster.rundir.registry import new_run_id

_LEASE_S = 10.0
_HELD = ("ports_held", "port_taken")
_TURN_S = 0.5
_CURE = "log in there: is its disk full, or its memory? Then try again"


def examine(planned: Planned, *, deep: bool = False) -> PreflightReport:
    """What `up` would find before the start. Nodes that cannot be reached are findings."""
    plan = planned.plan
    if any(node.backend != "local" for node in plan.nodes):
        journal.make_runtime_dir()
        with tempfile.TemporaryDirectory(prefix="tfcluster-doctor-") as scratch:
            look = asyncio.run(_examine(plan, Path(scratch), deep=deep))
    else:
        look = probes.probe_this_node_longer(
            plan, folder=home(), locks=runtime_dir() / "ports", deep=deep
        )
    return look.with_more(map(_obstacle, planned.obstacles()))


def examine_here(python: str | None = None, *, deep: bool = False) -> PreflightReport:
    """This machine alone, as a job in the current folder would find it; raises UsageError for a
    `python` that is not there."""
    workdir = Path.cwd()
    found = interpreters.choose(python, "--python", base=workdir, workdir=workdir).result()
    seen = replace(
        probes.facts(LOCAL, home()),
        python=found.version or "",
        packages=dict(found.packages),
        executable=found.path,
        imported=machine.tensorflow_imported(found.path) if deep else None,
    )
    return PreflightReport((LOCAL,), (seen,), rules.judge([seen], Needs()))


def _obstacle(error: SurroundingsError) -> Finding:
    """What the plan itself stumbles over, on the machine that plans."""
    check = "TensorFlow" if isinstance(error, InterpreterError) else "spec"
    return Finding(LOCAL, check, error.message, error.fix)


async def _examine(plan: Plan, scratch: Path, *, deep: bool) -> PreflightReport:
    paths = RunPaths(scratch / new_run_id("doctor", time.time()))
    paths.logs.mkdir(parents=True)
    hub = Hub(_backend_of, paths, lease_s=_LEASE_S)
    visit = _Visit(plan, paths, hub)
    async with asyncio.TaskGroup() as background:
        try:
            unreachable = await visit.reach_all(background)
            await code_sync.find(plan, hub, [plan.node(name) for name in visit.there])
            taken = await visit.hold_ports()
            task = NodeProbes(plan, paths, hub, visit.until)
            here = [name for name in visit.there if name not in visit.gone]
            look = await task.look(here, visit.ports(), deep=deep)
        finally:
            await hub.close()
    names = tuple(node.name for node in plan.nodes)
    return PreflightReport(names, look.seen, look.findings).with_more([*unreachable, *taken])


def _backend_of(node: NodePlan) -> backends.base.Backend:
    return backends.get(node.backend, runtime_dir=runtime_dir())


class _Visit:
    """The nodes' agents while they are looked at."""

    def __init__(self, plan: Plan, paths: RunPaths, hub: Hub) -> None:
        self._plan, self._paths, self._hub = plan, paths, hub
        self.there: list[str] = []
        """Nodes that could be reached."""
        self.gone: dict[str, str] = {}
        """Of these, those that will answer no more → why."""

    async def until(self, condition: Callable[[], bool], *, at: float | None = None) -> None:
        """Handle what comes in until `condition` holds, which is looked at every half second."""
        while not condition():
            await self._hub.flush()
            await self._hub.turn(_TURN_S)

    async def reach_all(self, background: asyncio.TaskGroup) -> list[Finding]:
        """All at once; those that could not be reached."""
        nodes = self._plan.nodes
        found = await asyncio.gather(
            *(self._reach(node, background) for node in nodes), return_exceptions=True
        )
        findings = []
        for node, error in zip(nodes, found, strict=True):
            if isinstance(error, SurroundingsError):
                what = error.message.removeprefix(f"{node.name} ")
                findings.append(Finding(node.name, "reach", what, error.fix))
            elif error is not None:
                raise error
            else:
                self.there.append(node.name)
        return findings

    async def _reach(self, node: NodePlan, background: asyncio.TaskGroup) -> None:
        await self._hub.connect(
            node,
            self._paths.run_id,
            on_message=self._on_message,
            on_closed=self._on_closed,
            background=background,
            tasks=[str(task.id) for task in self._plan.tasks if task.node == node.name],
        )

    def _on_message(self, node: str, message: Mapping[str, Any]) -> None:
        self._hub.keep(node, message)
        if (why := why_lost(message)) is not None:
            self._lose(node, why)

    def _on_closed(self, node: str, why: str) -> None:
        self._lose(node, why)

    def _lose(self, node: str, error: str) -> None:
        """Whatever it was asked it will not answer."""
        if node not in self.gone:
            self.gone[node] = error
            self._hub.keep(node, {"type": "start_failed", "task": PREFLIGHT, "error": error})

    async def hold_ports(self) -> list[Finding]:
        """Those that somebody else has, and nodes that cannot hold theirs."""
        if self._plan.kind == "plain":
            return []
        for name in self.there:
            self._hub.send(name, orders.hold_ports(self._plan, name))
        answers, is_gone = Answers(self._hub, self.until), self.gone.__contains__
        what = "to hold its ports"
        for name in await answers.missing(self.there, *_HELD, what=what, is_lost=is_gone):
            self._lose(name, f"its agent has not answered for {ANSWER_S:.0f} s")
        lost = [Finding(name, "reach", why, _CURE) for name, why in self.gone.items()]
        replies = ((name, self._held(name)) for name in self.there if name not in self.gone)
        return lost + [_taken(n, r) for n, r in replies if r and r["type"] == "port_taken"]

    def _held(self, node: str) -> Mapping[str, Any] | None:
        return self._hub.answer(node, _HELD)

    def ports(self) -> Mapping[TaskId, int]:
        replies = [self._held(name) or {} for name in self.there if name not in self.gone]
        held = (reply for reply in replies if reply.get("type") == "ports_held")
        return orders.attempt_of(self._plan, 1, (), held).ports


def _taken(node: str, reply: Mapping[str, Any]) -> Finding:
    error = orders.port_error(reply)
    return Finding(node, "ports", error.message, error.fix)
