"""The backend `docker` keeps the contract of all backends, with a real daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.backend_contract import NAMES, results
from tests.lab.docker_images import STUB
from tests.lab.dockerd import Docker

from .harbor import HANG_S

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def outcomes(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Run all checks once, in two containers; the broken one has an image that does not exist."""
    folder = tmp_path_factory.mktemp("contract")
    nodes = [
        {
            "name": f"worker-{number}",
            "backend": "docker",
            "interpreter": None,
            "workdir": "~/work",
            "container": {"image": image},
        }
        for number, image in enumerate((STUB, STUB, "tfcluster-worker:none"))
    ]
    (folder / "facts.json").write_text(json.dumps({"nodes": nodes[:2], "broken": nodes[2]}))
    env = {**os.environ, **docker.env, "TFCLUSTER_HOME": str(folder), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "tests.backend_contract", str(folder / "facts.json")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=3 * HANG_S)
    ours = ("--filter", "label=tfcluster.run")
    assert (
        docker("ps", "--all", "--quiet", *ours) == docker("network", "ls", "--quiet", *ours) == ""
    )
    assert not list((folder / "leftovers").iterdir()), "docker is asked for runs that left nothing"
    return results(done.stdout + done.stderr)


@pytest.mark.parametrize("check", NAMES)
def test_the_contract_is_kept(outcomes: Mapping[str, str], check: str) -> None:
    assert outcomes[check] == "ok"
