"""The backend `kubernetes` keeps the contract of all backends, with a real cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.backend_contract import NAMES, UNREACHED, results
from tests.lab.kube_images import HOST, host_template
from tests.lab.kubectl import Kubectl
from tests.lab.machine import until

from tfcluster.backends import jobs
from tfcluster.backends.kubernetes.submitted import kube_jobs
from tfcluster.discovery import planning

from .desk import HANG_S, left_in

pytestmark = [pytest.mark.slow]
ROOT = Path(__file__).parents[3]
JOB = {"module": "tfcluster_workers.jobs.keras_mnist"}
SPEC = {"version": 1, "cluster": {"worker": 2}, "job": JOB}


PROGRAM = """
import os, pathlib, sys
os.chdir(sys.argv[-1])
sys.path.insert(0, sys.argv[1])
sys.argv[1:] = ["facts.json"]
sys.stdout = sys.stderr
from tests import backend_contract
backend_contract.main()
"""


@pytest.fixture(scope="module")
def outcomes(kube: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Run all checks once, in a coordinator's pod with two others; all pods of a run are alike."""
    folder = tmp_path_factory.mktemp("contract")
    admin, namespace = Kubectl(kube), f"contract-{os.getpid()}"
    admin("create", "namespace", namespace)
    account = ("-n", namespace, "get", "serviceaccount", "default")
    until(lambda: admin.run(*account).returncode == 0, "the service account")
    section = {"image": HOST, "namespace": namespace, "pod_template": host_template()}
    runtime = {"backend": "kubernetes", "kubernetes": section}
    (folder / "spec.json").write_text(json.dumps({**SPEC, "runtime": runtime}))
    facts = {"spec": "spec.json", "hang_s": HANG_S, "run_id": namespace}
    (folder / "facts.json").write_text(json.dumps(facts))
    said = list[str]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KUBECONFIG", str(kube))
        patched.setenv("TFCLUSTER_HOME", str(folder / "home"))
        planned = planning.plan(str(folder / "spec.json"))
        job = jobs.submission_of(planned.plan, planned.spec.runtime, folder / namespace)
        try:
            kube_jobs.run_inside(job, ["-c", PROGRAM, str(ROOT)], folder, tell=said.append)
            left = left_in(admin, "-n", namespace)
        finally:
            admin("delete", "namespace", namespace, "--wait=false")
    assert left == []
    return results("\n".join(said))


@pytest.mark.parametrize("check", sorted({*NAMES} - {UNREACHED}))
def test_the_contract_is_kept(outcomes: Mapping[str, str], check: str) -> None:
    assert outcomes[check] == "ok"
