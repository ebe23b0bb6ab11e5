"""`tfcluster doctor SPEC` says what would keep a run from starting in a real cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integration.commandline import CommandLine

from .desk import Desk

ROLE = [
    {
        "apiGroups": [""],
        "resources": ["pods", "secrets", "services", "serviceaccounts"],
        "verbs": ["get", "list"],
    }
]


def doctor(
    shell: CommandLine, folder: Path, runtime: dict[str, Any], *options: str
) -> tuple[int, str]:
    spec = {"version": 1, "cluster": {"worker": 2}, "runtime": runtime}
    spec["job"] = {"module": "tfcluster_workers.jobs.keras_mnist"}
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    ended = shell.run("doctor", str(path), *options)
    return ended.code, " ".join((ended.out.decode() + ended.err).split())


def test_a_run_that_the_cluster_can_start_passes(desk: Desk, tmp_path: Path) -> None:
    code, text = doctor(desk.shell, tmp_path, desk.runtime())
    assert code == 0, text
    assert "All checks passed" in text


def test_a_deep_look_imports_tensorflow_in_pods(desk: Desk, tmp_path: Path) -> None:
    code, text = doctor(desk.shell, tmp_path, desk.runtime(), "--deep")
    assert code == 0, text
    assert "worker-1" in text
    assert desk.left() == []


def test_what_the_spec_names_must_exist(desk: Desk, tmp_path: Path) -> None:
    volumes = [{"name": "data", "mount": "/data", "claim": "mnist"}]
    runtime = desk.runtime(volumes=volumes, env_from=[{"secret": "keys"}])
    code, text = doctor(desk.shell, tmp_path, runtime)
    assert code == 3
    assert "no PersistentVolumeClaim mnist" in text
    assert "no Secret keys" in text


def test_a_user_of_one_namespace_sees_the_missing_rights_and_what_was_not_checked(
    desk: Desk, tmp_path: Path
) -> None:
    desk.shell.env["KUBECONFIG"] = str(desk.user("ann", rules=ROLE))
    code, text = doctor(desk.shell, tmp_path, desk.runtime(priority_class="high"))
    assert code == 3
    assert "this user may not delete pods" in text
    assert "priorityclasses" in text.partition("may not read")[2]


def test_an_unreachable_server_and_no_kubeconfig_are_said(desk: Desk, tmp_path: Path) -> None:
    config = tmp_path / "dead"
    config.write_text(Path(desk.config).read_text().replace(desk.server, "https://127.0.0.1:1"))
    for path, said in ((config, "does not answer"), (tmp_path / "none", "no Kubernetes")):
        desk.shell.env |= {"KUBECONFIG": str(path), "HOME": str(tmp_path)}
        code, text = doctor(desk.shell, tmp_path, desk.runtime())
        assert code == 3
        assert said in text
