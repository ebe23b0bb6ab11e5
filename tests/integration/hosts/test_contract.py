"""The backend `ssh` keeps the contract of all backends, on real hosts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.backend_contract import NAMES, results
from tests.lab.machines import Lab

from .office import HANG_S, Office, import_path

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def outcomes(lab: Lab) -> Mapping[str, str]:
    """Run all checks once, on two hosts, and beside a host that does not exist."""
    office = Office(lab)
    try:
        hosts = [host.address for host in office.add_hosts(2)]
        python = {"path": sys.executable, "why": "the tests'"}
        nodes = [
            {"name": host, "backend": "ssh", "interpreter": python, "workdir": "~/work"}
            for host in (*hosts, "no-such-host.invalid")
        ]
        office.write("facts.json", json.dumps({"nodes": nodes[:2], "broken": nodes[2]}))
        process = office.home.start(
            [sys.executable, "-m", "tests.backend_contract", str(office.seen("facts.json"))],
            env={"PYTHONPATH": f"{ROOT}:{import_path()}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return results(process.communicate(timeout=3 * HANG_S)[0])
    finally:
        office.folders_stay = True  # the checks lose runs on purpose
        office.close()


@pytest.mark.parametrize("check", NAMES)
def test_the_contract_is_kept(outcomes: Mapping[str, str], check: str) -> None:
    assert outcomes[check] == "ok"
