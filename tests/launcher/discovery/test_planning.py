"""A spec is planned with the facts of the machine that runs the test."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfcluster.discovery.planning import Planned, plan
from tfcluster.errors import UsageError
from tfcluster.plans import secrets
from tfcluster.plans.plan import Plan
from tfcluster.preflight import rules
from tfcluster.spec import PlanOptions
from tfcluster.typed_json import from_json, to_json


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache")}


def planned(folder: Path, environ: dict[str, str], job: dict[str, Any], **strategy: str) -> Planned:
    path = folder / "tfcluster.json"
    path.write_text(json.dumps({"cluster": {"worker": 2}, "job": job, "strategy": strategy}))
    return plan(str(path), PlanOptions(python=sys.executable), environ=environ)


def test_the_command_runs_boot_from_the_bundle(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    found = planned(tmp_path, environ, {"script": "train.py"})
    made = rules.require_plan(found)
    python, boot, how, script = made.tasks[0].command.argv
    assert python == sys.executable
    assert boot.startswith(f"{tmp_path}/cache/tfcluster/bundles/")
    assert Path(boot).is_file()
    assert (how, script) == ("script", str(tmp_path / "train.py"))
    assert made.spec_path == str(tmp_path / "tfcluster.json")


def test_a_machine_without_tasks_unpacks_no_bundle(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    path = tmp_path / "tfcluster.json"
    spec: dict[str, Any] = {"cluster": {"worker": 2}, "job": {"script": "train.py"}}
    spec["runtime"] = {"backend": "kubernetes", "kubernetes": {"image": "x"}}
    path.write_text(json.dumps(spec))
    found = plan(str(path), environ=environ)
    _, boot, *_ = found.plan.tasks[0].command.argv
    assert "/bundles/" in boot
    assert not (tmp_path / "cache").exists()
    local = planned(tmp_path, environ, {"script": "train.py"}).plan.tasks[0].command.argv[1]
    assert local.split("/bundles/")[1] == boot.split("/bundles/")[1]


def test_arguments_of_the_command_line_are_kept_for_every_task(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """A resumed run must have the same commands."""
    per_task: dict[str, dict[str, list[str]]] = {
        **{"worker:0": {"args": ["a"]}, "worker:1": {"command": ["true"]}, "worker": {}},
        **{"evaluator": {"command": ["serve"]}, "evaluator:0": {"args": ["b"]}},
    }
    path = tmp_path / "tfcluster.json"
    spec: dict[str, Any] = {"cluster": {"worker": 3, "evaluator": 1}}
    spec["job"] = {"command": ["true"], "args": ["x"], "per_task": per_task}
    path.write_text(json.dumps(spec))
    found = plan(str(path), PlanOptions(python=sys.executable, args=("--more",)), environ=environ)
    path.write_text(json.dumps(found.spec_to_keep()))
    again = plan(str(path), environ=environ)
    commands = [task.command.argv for task in found.plan.tasks]
    assert commands == [task.command.argv for task in again.plan.tasks]
    assert [argv[1:] for argv in commands] == [("a", "--more"), (), ("x", "--more"), ("b",)]


def test_a_module_of_the_workers_half_is_read_without_the_bundle(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    path = tmp_path / "tfcluster.json"
    spec: dict[str, Any] = {"cluster": {"worker": 2}}
    spec["job"] = {"module": "tfcluster_workers.jobs.estimator_mnist"}
    spec["runtime"] = {"backend": "kubernetes", "kubernetes": {"image": "x"}}
    path.write_text(json.dumps(spec))
    found = plan(str(path), environ=environ)
    assert found.context.code is not None
    assert not (tmp_path / "cache").exists()


def test_secrets_of_a_profile_and_of_a_webhook_reach_a_plan_of_the_runs_own_files(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submitted job makes that plan, in an environment with what `find_variables` returns."""
    config = tmp_path / "config.json"
    env = {"DB_PASSWORD": "s3cret-1", "PIN": "s3cret-2"}
    section = {"runtime": {"hosts": {"*": {"env": env}}}}
    url = "https://me:s3cret-3@chat.example.org:8443/s3cret-4?token=s3cret-5"
    config.write_text(json.dumps({"default": {**section, "supervision": {"on_end": url}}}))
    monkeypatch.setenv("TFCLUSTER_CONFIG", str(config))
    found = planned(tmp_path, environ, {"command": ["true"], "secrets": ["PIN"]})

    recorded = [found.spec_to_keep(), to_json(found.plan)]
    assert "s3cret" not in json.dumps(recorded)
    assert all(text in json.dumps(recorded) for text in ("chat.example.org:8443/", "DB_PASSWORD"))
    assert url in secrets.find_values(found.plan)
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(recorded[0]))
    config.write_text("{}")
    variables = secrets.find_variables(found.plan)
    again = plan(str(path), environ={**environ, **variables})
    assert again.plan.supervision.on_end == url
    values = {var.name: var.value for var in again.plan.tasks[0].command.env}
    assert env.items() <= values.items()
    assert "TFCLUSTER_ON_END" in again.plan.tasks[0].command.unset
    with pytest.raises(UsageError, match="export TFCLUSTER_ON_END=URL"):
        plan(str(path), environ={**environ, **variables, "TFCLUSTER_ON_END": "https://other/x"})

    recorded_plan = from_json(Plan, recorded[1])
    assert secrets.find_values(recorded_plan, variables) == secrets.find_values(found.plan)
    worker = found.plan.tasks[1]
    other = replace(worker.command.env[0], name="PIN", value="another", secret=True)
    command = replace(worker.command, env=(other,))
    tasks = (found.plan.tasks[0], replace(worker, command=command))
    with pytest.raises(UsageError, match="the secret PIN differs between tasks"):
        secrets.find_variables(replace(found.plan, tasks=tasks))
