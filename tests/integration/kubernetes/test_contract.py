"""The backend `kubernetes` keeps the contract of all backends, with a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.backend_contract import NAMES, results
from tests.lab.kube_images import HOST, host_template
from tests.lab.kubectl import Kubectl, until

from .desk import HANG_S, left_in

pytestmark = [pytest.mark.slow]
ROOT = Path(__file__).parents[3]
CONTRACT_S = 700
JOB = {"module": "tfcluster_workers.jobs.keras_mnist"}
SPEC = {"version": 1, "cluster": {"worker": 3}, "job": JOB}


@pytest.fixture(scope="module")
def outcomes(kube: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Run all checks once, in two pods; the broken one's image has a name that cannot be."""
    folder = tmp_path_factory.mktemp("contract")
    admin, namespace = Kubectl(kube), f"contract-{os.getpid()}"
    admin("create", "namespace", namespace)
    account = ("-n", namespace, "get", "serviceaccount", "default")
    until(lambda: admin.run(*account).returncode == 0, "the service account")
    section = {"image": HOST, "namespace": namespace, "pod_template": host_template()}
    runtime = {"backend": "kubernetes", "kubernetes": section}
    (folder / "spec.json").write_text(json.dumps({**SPEC, "runtime": runtime}))
    facts = {"spec": str(folder / "spec.json"), "broken_image": "A:::", "hang_s": HANG_S}
    (folder / "facts.json").write_text(json.dumps(facts))
    more = {"KUBECONFIG": str(kube), "TFCLUSTER_HOME": str(folder), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "tests.backend_contract", str(folder / "facts.json")]
    try:
        done = subprocess.run(
            argv, env=os.environ | more, capture_output=True, text=True, timeout=CONTRACT_S
        )
        left = left_in(admin, "-n", namespace)
    finally:
        admin("delete", "namespace", namespace, "--wait=false")
    assert left == []
    return results(done.stdout + done.stderr)


@pytest.mark.parametrize("check", NAMES)
def test_the_contract_is_kept(outcomes: Mapping[str, str], check: str) -> None:
    assert outcomes[check] == "ok"
