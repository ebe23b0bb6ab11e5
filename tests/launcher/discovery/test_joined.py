"""`join` also finds this machine's tasks by names that resolve to one of its addresses."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tfcluster.discovery.planning import plan_own_part
from tfcluster.errors import SetupError
from tfcluster.plans.plan import Plan

NAMES = {"gpu1.lab": "198.51.100.7", "gpu2.lab": "127.0.1.1"}
"""The address of each host name; on Debian a host's own name resolves to loopback."""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def look_up(host: str, *_: Any) -> list[tuple[Any, ...]]:
        if host not in NAMES:
            raise socket.gaierror(f"{host} is unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (NAMES[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    (tmp_path / "train.py").write_text("")
    path = tmp_path / "spec.json"
    cluster = {"worker": ["gpu1.lab:2222", "gpu2.lab:2222", "gpu3.lab:2222"]}
    runtime = {"backend": "ssh", "hosts": {"gpu2.lab": {"env": {"HERE": "yes"}}}}
    job = {"script": "train.py"}
    path.write_text(json.dumps({"cluster": cluster, "job": job, "runtime": runtime}))
    return path


def planned_part(spec: Path, *names: str) -> Plan:
    planned, tasks = plan_own_part(str(spec), names)
    return planned.only(tasks).plan


def test_a_task_whose_name_resolves_to_this_machine_belongs_to_it(spec: Path) -> None:
    plan = planned_part(spec)
    assert [str(task.id) for task in plan.tasks] == ["worker:1"]
    assert [str(task.id) for task in plan.elsewhere] == ["worker:0", "worker:2"]
    assert plan.node("local").backend == "local", "although the spec says ssh"
    assert "HERE" in [var.name for var in plan.tasks[0].command.env]


def test_a_task_whose_name_does_not_resolve_to_this_machine_does_not_belong_to_it(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NAMES, "gpu2.lab", "198.51.100.8")
    with pytest.raises(SetupError, match=r"gpu1\.lab, gpu2\.lab, gpu3\.lab"):
        planned_part(spec)


def test_tasks_named_on_the_command_line_belong_to_this_machine(spec: Path) -> None:
    plan = planned_part(spec, "worker:2", "worker:0", "worker:2")
    assert [str(task.id) for task in plan.tasks] == ["worker:0", "worker:2"]
    assert {task.node for task in plan.tasks} == {"local"}
