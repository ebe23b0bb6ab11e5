"""The lease of a background run: the time that hosts keep training without its coordinator."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of

from tfcluster.api import with_lease
from tfcluster.cli.starting import _say_lease
from tfcluster.discovery.planning import Planned
from tfcluster.plans.plan import NodePlan, Supervision
from tfcluster.spec.model import ClusterSpec

HOST = NodePlan("10.0.0.1", "ssh", None, "/job")


@pytest.mark.parametrize(
    ("nodes", "chosen", "lease_s"),
    [((HOST,), {}, 3600.0), ((HOST,), {"lease_s": 60}, 60.0), ((), {}, 60.0)],
    ids=["on hosts", "set in the spec", "on this machine"],
)
def test_the_lease_is_an_hour_on_hosts_unless_the_spec_sets_it(
    nodes: tuple[NodePlan, ...], chosen: dict[str, Any], lease_s: float
) -> None:
    job = {"cluster": {"worker": 2}, "job": {"script": "train.py"}, "supervision": chosen}
    context: Any = None
    plan = plan_of()
    plan = replace(plan, nodes=(*plan.nodes, *nodes), supervision=Supervision(lease_s=60.0))
    planned = Planned(ClusterSpec.model_validate(job), plan, context)
    assert with_lease(planned).supervision.lease_s == lease_s


@pytest.mark.parametrize(("backend", "is_said"), [("ssh", True), ("simulated", False)])
def test_only_a_run_on_other_machines_goes_on_while_this_one_sleeps(
    backend: str, is_said: bool
) -> None:
    said: list[str] = []
    terminal: Any = SimpleNamespace(say_wrapped=said.append)
    _say_lease(replace(plan_of(), nodes=(replace(HOST, backend=backend),)), terminal)
    assert ("the hosts keep training for" in "".join(said)) == is_said
