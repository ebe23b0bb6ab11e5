"""Ends what a run whose coordinator is gone has left on other machines.

An agent there ends its tasks when its lease is over, which may be an hour; until then their ports
are taken, and what they save is of no use. Each node's agent is known by what it told of itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfcluster import backends
from tfcluster.agent import foreign_json
from tfcluster.backends.base import Backend, EndsLostRuns
from tfcluster.errors import NodeLostError
from tfcluster.plan.plan import NodePlan, Plan
from tfcluster.plan.serialize import plan_from_json
from tfcluster.run import registry
from tfcluster.run.exchange import KILL_S
from tfcluster.run.folder import require_json
from tfcluster.run.paths import RunPaths, runtime_dir
from tfcluster.run.snapshot import RunSnapshot


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """What became of one node of a lost run."""

    node: str
    ended: tuple[str, ...] = ()
    """What lived there: agent, worker:0."""
    folder: str | None = None
    """Where on the node lies what was saved there, of which some may not be gathered."""
    trouble: str = ""
    """Why something may live there until the moment `until`; empty: nothing does."""
    until: float = 0.0


def leases(paths: RunPaths, state: RunSnapshot, now: float) -> dict[str, float]:
    """Node → until when something may live there, of the nodes that a lost run does not end with;
    its coordinator was gone at the moment `now`."""
    plan = _plan(paths)
    if plan is None:
        return {}
    until = now + plan.supervision.lease_s + KILL_S
    return {node.name: until for node in outliving(plan) if node.name in state.agents}


def outliving(plan: Plan) -> list[NodePlan]:
    """Nodes whose tasks go on, for as long as their lease, when the coordinator is gone."""
    return [node for node in plan.nodes if isinstance(_backend_of(node), EndsLostRuns)]


def end(paths: RunPaths) -> list[NodeEnd]:
    """On all nodes at once, as far as their leases go on; what is certain to have ended is
    written down. Raises RunFolderError where that is not possible."""
    state, plan = registry.load(paths), _plan(paths)
    open_until = {node: at for node, at in state.leases.items() if at > time.time()}
    if plan is None or not open_until:
        return []
    ends = asyncio.run(_end_all(plan, state, open_until))
    state.leases = {one.node: one.until for one in ends if one.trouble}
    require_json(paths.state, state.to_json())
    return ends


async def _end_all(plan: Plan, state: RunSnapshot, until: Mapping[str, float]) -> list[NodeEnd]:
    nodes = [node for node in plan.nodes if node.name in until]
    ending = (_end(node, state, until[node.name]) for node in nodes)
    return list(await asyncio.gather(*ending))


async def _end(node: NodePlan, state: RunSnapshot, until: float) -> NodeEnd:
    backend, former = _backend_of(node), state.agents.get(node.name, {}).get("identity")
    assert isinstance(backend, EndsLostRuns)  # else it has no lease in `leases`
    if former is None:
        return NodeEnd(node.name, trouble="its agent is not known", until=until)
    try:
        found = await backend.end_run(node, run_id=state.run, former=former)
    except NodeLostError as error:
        return NodeEnd(node.name, trouble=error.message, until=until)
    ended, folder = tuple(found["ended"]), found["folder"]
    return NodeEnd(node.name, ended, folder, _trouble(found), until)


def _trouble(found: Mapping[str, Any]) -> str:
    if found["stays"]:
        return f"{', '.join(found['stays'])} was killed there and lives on"
    if not found["is_proved"]:
        return "nothing proves there that its agent has ended"
    return ""


def _plan(paths: RunPaths) -> Plan | None:
    """None where the run's folder has no plan that can be read: nothing was started then."""
    try:
        return plan_from_json(foreign_json.read_object(paths.plan))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _backend_of(node: NodePlan) -> Backend:
    return backends.get(node.backend, runtime_dir=runtime_dir())
