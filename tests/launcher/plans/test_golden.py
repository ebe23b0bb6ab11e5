"""The plan of every example spec on a fixed machine equals its golden file.

After an intended change of plans, write the files again and review their diff::

    RENEW_GOLDEN=1 pytest tests/launcher/plans/test_golden.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.plans.conftest import on

from tfcluster.plans.build import make_plan
from tfcluster.plans.context import PlanContext
from tfcluster.plans.plan import Plan
from tfcluster.plans.tf_config import Attempt
from tfcluster.plans.tf_config import build as build_tf_config
from tfcluster.spec.load import load
from tfcluster.typed_json import from_json, to_json

ROOT = Path(__file__).parents[3]
SPECS = sorted((ROOT / "cluster_specs").glob("*.json*"))
GOLDEN = Path(__file__).parent / "golden"


def whole(plan: Plan) -> dict[str, Any]:
    """Return the plan and every TF_CONFIG of its first attempt; chosen ports begin at 40000."""
    ports = {task.id: task.port or 40000 + place for place, task in enumerate(plan.tasks)}
    attempt = Attempt(plan, 1, tuple(ports), ports)
    configs = {str(t): build_tf_config(attempt, t) for t in ports if not t.serves_data}
    found: dict[str, Any] = json.loads(json.dumps({"plan": to_json(plan), "tf_config": configs}))
    return found


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_plan_of_an_example_spec_is_unchanged(path: Path, machine: PlanContext) -> None:
    spec = load(path).spec
    plan = make_plan(spec, on(machine, spec), spec_path=f"{machine.spec_dir}/{path.name}")
    found, golden = whole(plan), GOLDEN / f"{path.stem}.json"
    if os.environ.get("RENEW_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(json.dumps(found, indent=2) + "\n")
    assert found == json.loads(golden.read_text())
    assert from_json(Plan, found["plan"]) == plan


def test_every_example_spec_has_one_golden_file() -> None:
    assert SPECS
    assert {path.stem for path in SPECS} == {path.stem for path in GOLDEN.glob("*.json")}
