"""A third container backend needs its folder, a section of the spec and a line in the registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.conftest import plan_of

from tfcluster import kinds
from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.nodes import orders
from tfcluster.plans.plan import NodePlan
from tfcluster.supervision.restarts import loss_of

ROOT = Path(__file__).parents[2]
MAIN = """
from tfcluster import kinds
kinds.REGISTRY["box"] = "tests.box_backend"
from tfcluster.cli.main import entry
entry()
"""


def tfcluster(folder: Path, command: str, **sections: Any) -> subprocess.CompletedProcess[str]:
    spec = {"cluster": {"worker": 2}, "job": {"command": ["true"]}, **sections}
    (folder / "spec.json").write_text(json.dumps(spec))
    return subprocess.run(
        [sys.executable, "-c", MAIN, *command.split()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_plan_for_boxes_follows_from_their_capabilities(tmp_path: Path) -> None:
    runtime = {"backend": "box", "image": "tf:1", "wrap": ["x"], "network": "private"}
    done = tfcluster(tmp_path, "plan spec.json --json", runtime=runtime, resources={"gpus": 0})
    shown = json.loads(done.stdout)
    plan = shown.get("plan", shown)
    assert [node["container"]["image"] for node in plan["nodes"]] == ["tf:1", "tf:1"]
    assert [task["node"] for task in plan["tasks"]] == ["worker-0", "worker-1"]
    assert "runtime.wrap has no effect on containers" in done.stdout + done.stderr


def test_a_rule_of_the_backend_is_checked_with_the_spec(tmp_path: Path) -> None:
    sections = {"runtime": {"backend": "box"}, "checkpoints": {"dir": "/x"}}
    done = tfcluster(tmp_path, "validate spec.json", **sections)
    assert done.returncode == 2
    assert "spec.json:" in done.stderr
    assert "a box has no such folder" in done.stderr


def test_ports_and_losses_of_boxes_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds.REGISTRY, "box", "tests.box_backend")
    plan = replace(plan_of("worker:0"), nodes=(NodePlan("local", "box", None, "/job"),))
    assert orders.hold_ports(replace(plan, port_range=(1024, 1030)), "local").among == []
    lost = loss_of(plan, "local", "worker:0", NodeLoss("it broke", LossNature.INFRASTRUCTURE))
    assert (lost.docs, lost.hint) == ("docs/failures.md#box-lost", "look into the box")
