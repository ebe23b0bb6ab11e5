"""What proves that an agent and its guard have ended, and what does not."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from tfcluster.agent import fencing
from tfcluster.agent.processes import start_time

HERE = {"boot_id": "b1", "machine": "m1 gpu1", "pid_namespace": 4026531836, "uid": 1000}
ANOTHER_BOOT = {"boot_id": "b2"}
ANOTHER_NAMESPACE = {"pid_namespace": 4026532999}


def former(**there: Any) -> dict[str, Any]:
    """This process and its parent, which live, seen `there`."""
    pids = {"pid": os.getpid(), "guard_pid": os.getppid()}
    started = {"started": start_time(os.getpid()), "guard_started": start_time(os.getppid())}
    return {**pids, **started, "where": {**HERE, **there}}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "process_scope", lambda: HERE)


@pytest.mark.parametrize(
    ("there", "in_container", "proof"),
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
def test_what_proves_an_end(there: dict[str, Any], in_container: bool, proof: bool | None) -> None:
    assert fencing.have_ended(former(**there), in_container=in_container) is proof


def test_a_process_with_the_same_number_is_not_the_former_one() -> None:
    reused = former() | {"started": 1, "guard_started": 1}
    assert fencing.have_ended(reused) is True
    assert fencing.have_ended(former() | {"started": 1}) is False, "the guard lives"


def test_nothing_is_proved_where_this_machine_has_no_boot_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fencing, "process_scope", lambda: HERE | {"boot_id": ""})
    assert fencing.have_ended(former(boot_id="")) is None


def test_what_does_not_end_is_told_and_what_cannot_be_seen_is_not_touched() -> None:
    with subprocess.Popen(["sleep", "60"]) as task:
        agent = {"pid": task.pid, "started": start_time(task.pid)}
        assert fencing.end({**former(**ANOTHER_NAMESPACE), **agent}, 0.1) is None
        assert task.poll() is None
        assert fencing.end({**former(), **agent}, 0.1) is False, "its guard lives on"
        task.wait()
