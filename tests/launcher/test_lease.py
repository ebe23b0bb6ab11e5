"""The lease of a background run: the time that hosts keep training without its coordinator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.coordinator.scripted import LOCAL, REMOTE, Agent, perform, plan_on_two_nodes

from tfcluster.cli.starting import _say_lease
from tfcluster.coordinator.coordinator import Coordinator
from tfcluster.coordinator.launch import with_lease
from tfcluster.plans.plan import NodePlan, Supervision
from tfcluster.rundir import registry
from tfcluster.rundir.events import Event, PortsHeld
from tfcluster.rundir.paths import RunPaths

HOST = NodePlan("10.0.0.1", "ssh", None, "/job")


@pytest.mark.parametrize(
    ("nodes", "chosen", "lease_s"),
    [((HOST,), {}, 3600.0), ((HOST,), {"lease_s": 60}, 60.0), ((), {}, 60.0)],
    ids=["on hosts", "set in the spec", "on this machine"],
)
def test_the_lease_is_an_hour_on_hosts_unless_the_spec_sets_it(
    nodes: tuple[NodePlan, ...], chosen: dict[str, Any], lease_s: float
) -> None:
    plan = plan_of()
    plan = replace(plan, nodes=(*plan.nodes, *nodes), supervision=Supervision(lease_s=60.0))
    assert with_lease(plan, {"supervision": chosen}).supervision.lease_s == lease_s


@pytest.mark.parametrize(("backend", "is_said"), [("ssh", True), ("simulated", False)])
def test_only_a_run_on_other_machines_goes_on_while_this_one_sleeps(
    backend: str, is_said: bool
) -> None:
    said: list[str] = []
    terminal: Any = SimpleNamespace(say_wrapped=said.append)
    _say_lease(replace(plan_of(), nodes=(replace(HOST, backend=backend),)), terminal)
    assert ("the hosts keep training for" in "".join(said)) == is_said


def test_a_run_that_its_starter_leaves_gets_the_lease_of_a_background_run(
    tmp_path: Path, paths: RunPaths
) -> None:
    agents = {name: Agent(name, str(tmp_path)) for name in (LOCAL, REMOTE)}
    leases: list[object] = []
    obey = agents[REMOTE]._obey

    def note(order: dict[str, Any]) -> None:
        if order["type"] == "set_lease":
            leases.append(order["lease_s"])
        obey(order)

    agents[REMOTE]._obey = note  # type: ignore[method-assign]

    def leave(coordinator: Coordinator, event: Event) -> None:
        if isinstance(event, PortsHeld) and event.node == REMOTE:
            coordinator.go_to_background()

    ended = perform(plan_on_two_nodes(tmp_path), agents, paths, react=leave)
    assert ended.outcome.exit_code == 0
    assert leases == [3600.0]
    assert "set_lease" not in agents[LOCAL].order_counts
    assert registry.load_plan(paths).supervision.lease_s == 3600.0, "which `down` then expects"
