"""The speed of the links between a run's nodes, as far as it is known: measured or simulated.

``doctor --deep`` measures it; the file ``links.json`` of the home keeps the newest result for each
set of nodes, so that a verdict on slow steps can say what the links can do.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from tfcluster.agent import foreign_json
from tfcluster.plans.plan import Plan
from tfcluster.preflight.preflight_report import PreflightReport
from tfcluster.rundir.paths import home
from tfcluster.rundir.run_writer import write_json
from tfcluster.supervision.step_times import Link

if TYPE_CHECKING:
    from tfcluster.spec.sections import Runtime

_FILE = "links.json"


def remember(report: PreflightReport, plan: Plan) -> None:
    """Keep the speed of the ring of all workers of a report; without one, or a home, nothing.

    Simulated networks are left out: their nodes have the same names in every spec.
    """
    rings = [each for each in report.all_reduces if each.communication == "RING"]
    if not rings or any(node.network == "simulated" for node in plan.nodes):
        return
    ring = max(rings, key=lambda each: len(each.workers))
    fact = {"gb_per_s": round(ring.link_gb_per_s, 4), "time": round(time.time())}
    with contextlib.suppress(OSError):
        home().mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(home() / _FILE, _read() | {_key(ring.nodes): fact})


def known_link(plan: Plan, runtime: Runtime | None) -> Link | None:
    """Return the speed of the links between the nodes of `plan`, or None."""
    if runtime is not None and not isinstance(runtime.network, str) and runtime.network.rate:
        return Link(runtime.network.rate / 8e9, "the simulated network has")
    fact = _read().get(_key(node.name for node in plan.nodes))
    speed = fact.get("gb_per_s") if isinstance(fact, dict) else None
    if not isinstance(speed, int | float) or speed <= 0:
        return None
    return Link(float(speed), "`doctor --deep` measured between these nodes")


def _key(nodes: Any) -> str:
    return " ".join(sorted({*nodes}))


def _read() -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return foreign_json.parse_json_object((home() / _FILE).read_bytes())
    return {}
