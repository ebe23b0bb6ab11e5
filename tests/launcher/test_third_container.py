"""Ports and losses of a third container backend; `tests/contracts/test_recipes.py` adds it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.launcher.conftest import plan_of

from tfcluster import kinds
from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.nodes import orders
from tfcluster.plans.plan import NodePlan
from tfcluster.supervision.restarting import loss_of


def test_ports_and_losses_of_boxes_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds.REGISTRY, "box", "tests.box_backend")
    plan = replace(plan_of("worker:0"), nodes=(NodePlan("local", "box", None, "/job"),))
    assert orders.hold_ports(replace(plan, port_range=(1024, 1030)), "local").among == []
    lost = loss_of(plan, "local", "worker:0", NodeLoss("it broke", LossNature.INFRASTRUCTURE))
    assert (lost.docs, lost.hint) == ("docs/failures.md#box-lost", "look into the box")
