"""Has the agents of all nodes look at them, and at each other, before anything is started."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcluster.agent import machine
from tfcluster.backends import bundle
from tfcluster.plan.environment import proxy_guards
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.run import launch, preflight
from tfcluster.run.answers import ANSWER_S, Answers, Until
from tfcluster.run.calls import Calls, between
from tfcluster.run.exchange import Exchange
from tfcluster.run.look import Look
from tfcluster.run.output import last_text
from tfcluster.run.paths import RunPaths
from tfcluster.run.preflight import Finding
from tfcluster.run.reports import PREFLIGHT
from tfcluster.run.seen import Seen, order_for, read, script_of

_ANSWERS = (f"{PREFLIGHT} task_exited", f"{PREFLIGHT} start_failed")
LOOK_S = 60.0
"""For a Python to start there, on a slow file server maybe, and for all that it looks at."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The one look at nodes whose agents have been reached. What is known of one that has gone
    since, a failed start, is its answer."""

    plan: Plan
    paths: RunPaths
    exchange: Exchange
    until: Until

    async def look(
        self, nodes: Sequence[str], ports: Mapping[TaskId, int], *, deep: bool = False
    ) -> Look:
        """At `nodes` all at once; `ports` are those that their agents hold."""
        made = await asyncio.to_thread(bundle.build)
        calls = between(self.plan, nodes, ports)
        for name in nodes:
            site = self.exchange.site(name)
            order = order_for(self.plan, site, calls, deep=deep)
            self.exchange.send(name, launch.start_probe(self.plan, site, order, made.digest))
        await self._hear(nodes, LOOK_S + (machine.IMPORT_S if deep else 0.0))
        seen: list[Seen] = []
        silent: list[Finding] = []
        for name in nodes:
            found = self._heard(name, calls)
            if isinstance(found, Seen):
                seen.append(found)
            else:
                silent.append(found)
        needs = preflight.needs_of(self.plan, await asyncio.to_thread(self._script_here))
        findings = preflight.judge(seen, needs, silent={finding.node for finding in silent})
        look = Look(tuple(nodes), tuple(seen), findings)
        return look.with_more(silent)

    async def _hear(self, nodes: Sequence[str], work_s: float) -> None:
        """Until all `nodes` have answered; that one does not is a finding."""
        answers = Answers(self.exchange, self.until)
        what = "to look at itself"
        for node in await answers.missing(nodes, *_ANSWERS, what=what, work_s=work_s):
            error = f"no answer for {work_s + ANSWER_S:.0f} s"
            self.exchange.keep(node, {"type": "start_failed", "task": PREFLIGHT, "error": error})

    def _heard(self, node: str, calls: Calls) -> Seen | Finding:
        log = self.paths.step_log(PREFLIGHT, node)
        lines = last_text(log).splitlines()
        mine = [port for task, port in calls.ports.items() if self.plan.task(task).node == node]
        peers = len(calls.dialled[node])
        try:
            # It goes on listening for the others: its line came when it came.
            now = log.stat().st_mtime
            return read(lines[-1] if lines else "", now=now, ports=mine, peers=peers)
        except (ValueError, OSError):
            reply = self.exchange.answer(node, _ANSWERS) or {}
            said = lines[-1] if lines else reply.get("error", "it said nothing")
            cure = f"runtime.hosts.{node}.python names its Python (3.9 or newer)"
            return Finding(node, "Python", f"it cannot be looked at: {said}", cure)

    def _script_here(self) -> str | None:
        command = self.plan.tasks[0].command
        if (script := script_of(command)) is None:
            return None
        return machine.sha256(str(Path(self.plan.workdir) / Path(script).relative_to(command.cwd)))


def guards(plan: Plan, one: Seen) -> dict[str, str]:
    """What keeps gRPC between the tasks of a node off the proxies that were seen there."""
    return proxy_guards({}, one.proxies, _hosts(plan))


def guards_unseen(plan: Plan) -> dict[str, str]:
    """The same for a node that nobody has looked at: read by gRPC alone."""
    return {"no_grpc_proxy": ",".join(_hosts(plan))}


def _hosts(plan: Plan) -> list[str]:
    return sorted({task.host.strip("[]") for task in plan.tasks})
