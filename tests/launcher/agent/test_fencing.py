"""The end of an agent and its guard is proved by the process table or by a reboot."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from tfcluster.agent import fencing
from tfcluster.agent.processes import start_time

pytestmark = pytest.mark.linux("the end of processes is proved by /proc")

HERE = {"boot_id": "b1", "machine": "m1 gpu1", "pid_namespace": 4026531836, "uid": 1000}
ANOTHER_BOOT = {"boot_id": "b2"}
ANOTHER_NAMESPACE = {"pid_namespace": 4026532999}


def identity(**scope: Any) -> dict[str, Any]:
    """Return the identity of this process and its parent, which are alive, changed by `scope`."""
    pids = {"pid": os.getpid(), "guard_pid": os.getppid()}
    started = {"started": start_time(os.getpid()), "guard_started": start_time(os.getppid())}
    return {**pids, **started, "where": {**HERE, **scope}}


@pytest.fixture(autouse=True)
def local_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "process_scope", lambda: HERE)


@pytest.mark.parametrize(
    ("scope", "in_container", "proof"),
    [
        ({}, False, False),
        (ANOTHER_BOOT, False, True),
        ({**ANOTHER_BOOT, **ANOTHER_NAMESPACE}, False, True),
        ({**ANOTHER_BOOT, "machine": "m2 gpu1"}, False, None),
        ({**ANOTHER_BOOT, "machine": ""}, False, None),
        (ANOTHER_NAMESPACE, False, None),
        (ANOTHER_NAMESPACE, True, True),
        ({"uid": 1001}, False, None),
        ({"boot_id": ""}, False, None),
    ],
    ids=[
        "they live",
        "the machine has booted again",
        "a machine in a namespace, too",
        "another machine answers at the address",
        "a machine without an id",
        "another container on the same machine",
        "the same container has started again",
        "another user may not see them",
        "no boot id",
    ],
)
def test_the_end_of_an_agent_is_proved_by_process_table_or_reboot(
    scope: dict[str, Any], in_container: bool, proof: bool | None
) -> None:
    assert fencing.have_ended(identity(**scope), in_container=in_container) is proof


def test_a_process_with_a_reused_pid_is_not_the_previous_agent() -> None:
    reused = identity() | {"started": 1, "guard_started": 1}
    assert fencing.have_ended(reused) is True
    assert fencing.have_ended(identity() | {"started": 1}) is False, "the guard lives"


def test_nothing_is_proved_on_a_machine_without_a_boot_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "process_scope", lambda: HERE | {"boot_id": ""})
    assert fencing.have_ended(identity(boot_id="")) is None


def test_a_living_guard_is_reported_and_invisible_processes_are_not_signalled() -> None:
    with subprocess.Popen(["sleep", "60"]) as task:
        agent = {"pid": task.pid, "started": start_time(task.pid)}
        assert fencing.end({**identity(**ANOTHER_NAMESPACE), **agent}, 0.1) is None
        assert task.poll() is None
        assert fencing.end({**identity(), **agent}, 0.1) is False, "the guard still lives"
        task.wait()
