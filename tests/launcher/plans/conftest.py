"""Fixtures that plan specs on a fixed machine, so that plans can be compared exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tfcluster.plans.build import make_plan
from tfcluster.plans.context import PlanContext
from tfcluster.plans.placement import place_tasks
from tfcluster.plans.plan import Interpreter, Plan
from tfcluster.plans.resources import Cores
from tfcluster.spec.model import ClusterSpec

PACKAGES = {"keras": "3.15.1", "tensorflow": "2.21.0", "tf-keras": "2.21.0"}
ADDRESSES = ("192.168.7.1", "laptop")
MACHINE = PlanContext(
    environ={"HOME": "/home/ann", "PATH": "/usr/bin"},
    spec_dir="/home/ann/project/cluster_specs",
    cores=Cores(((0, 1, 2, 3),)),
    bundles={"local": "/home/ann/.cache/tfcluster/bundles/0123abcd"},
    interpreters={"local": Interpreter("/venv/bin/python", "$VIRTUAL_ENV", "3.11.7", PACKAGES)},
    imports=frozenset({"tensorflow"}),
)


def on(machine: PlanContext, spec: ClusterSpec, *more: str) -> PlanContext:
    """Return the facts of a machine at `ADDRESSES` and `more`, with the nodes of a spec's tasks."""
    return replace(machine, tasks=place_tasks(spec, (*ADDRESSES, *more)))


Planner = Callable[..., Plan]
"""A function that plans, called as ``plan_of({"job": …}, cores=…, set_paths=…)``.

The dictionary has sections of a spec; the keywords are facts of the machine.
"""


@pytest.fixture
def machine() -> PlanContext:
    """Return a machine with four cores, no GPU, and TensorFlow 2.21 with Keras 2 and 3."""
    return MACHINE


@pytest.fixture
def spec_of() -> Callable[[dict[str, Any]], ClusterSpec]:
    """Return a function that adds sections to the smallest spec: two workers and a script."""

    def build(sections: dict[str, Any]) -> ClusterSpec:
        smallest = {"cluster": {"worker": 2}, "job": {"script": "train.py"}}
        sections = {"job": smallest["job"] | sections.get("job", {})} | {
            k: v for k, v in sections.items() if k != "job"
        }
        return ClusterSpec.model_validate_json(json.dumps(smallest | sections))

    return build


@pytest.fixture
def plan_of(machine: PlanContext, spec_of: Callable[[dict[str, Any]], ClusterSpec]) -> Planner:
    """Return a function that plans a spec from its sections and facts of the machine."""

    def build(
        sections: dict[str, Any] | None = None, *, set_paths: tuple[str, ...] = (), **facts: Any
    ) -> Plan:
        context = replace(machine, **facts)
        spec = spec_of(sections or {})
        return make_plan(spec, on(context, spec), set_paths=set_paths)

    return build
