"""The backend `slurm` keeps the contract of all backends, within an allocation of real nodes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.backend_contract import NAMES, results
from tests.integration.hosts.office import HANG_S, import_path, until
from tests.lab.slurm import SlurmCluster

from .site import Site

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def outcomes(one_cluster: SlurmCluster) -> Mapping[str, str]:
    """Run all checks once, on two nodes; the broken one has no such Python."""
    site = Site(one_cluster)
    try:
        nodes = [
            {
                "name": f"node-{number}",
                "backend": "slurm",
                "interpreter": {"path": python, "why": "the tests'"},
                "workdir": "~/work",
            }
            for number, python in enumerate((sys.executable, sys.executable, "/no/python"))
        ]
        facts = site.write("facts.json", json.dumps({"nodes": nodes[:2], "broken": nodes[2]}))
        command = [sys.executable, "-m", "tests.backend_contract", str(facts)]
        done = one_cluster.run(
            ["salloc", "--quiet", "-N2", *command],
            env={"PYTHONPATH": f"{ROOT}:{import_path()}"},
            timeout=HANG_S,
        )
        one_cluster.wait_for_nodes("idle")
        until(lambda: not site.tasks(), f"the end of {site.tasks()}")
        return results(done.stdout + done.stderr)
    finally:
        site.close()
        one_cluster.restore()


@pytest.mark.parametrize("check", NAMES)
def test_the_contract_is_kept(outcomes: Mapping[str, str], check: str) -> None:
    assert outcomes[check] == "ok"
