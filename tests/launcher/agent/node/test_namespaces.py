"""Tasks in a private network cannot be reached from outside; `prepare` uses the host's network."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.agent.conftest import NewRig, Rig, children_of, is_alive, kill, wait_until
from tests.launcher.agent.test_old_python import find_python39

from tfcluster.agent.node.namespaces import why_refused

pytestmark = pytest.mark.linux("namespaces of the kernel")

NETWORK = "readlink /proc/self/ns/net"


WITHOUT_RIGHTS = """#!/bin/sh
exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin {python} "$@"
"""
"""A Python for root without CAP_SYS_ADMIN, which needs a user namespace as all users do."""


def pythons() -> dict[str, str]:
    """Return this Python, the oldest supported one, and one with `os.unshare` (3.12), by name."""
    newer = sorted(map(str, Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python3.1[2-9]")))
    found = {"this": sys.executable, "oldest": find_python39(), "newer": (newer or [""])[0]}
    return {name: path for name, path in found.items() if path}


@pytest.fixture(params=[*pythons(), "without rights"])
def private(request: pytest.FixtureRequest, new_rig: NewRig, tmp_path: Path) -> Rig:
    python = pythons().get(request.param)
    if python is None:
        wrapper = tmp_path / "without-rights"
        wrapper.write_text(WITHOUT_RIGHTS.format(python=sys.executable))
        wrapper.chmod(0o755)
        python = str(wrapper)
    return new_rig(python=python, is_private=True, ports_dir=None)


def order(rig: Rig, *argv: str) -> dict[str, Any]:
    log = str(rig.log("prepare"))
    return {"task": "prepare", "argv": list(argv), "env": {}, "cwd": "/", "log": log}


def prepare(rig: Rig, *argv: str) -> str:
    """Run a prepare step; return its output."""
    rig.peer.send("start", attempt=0, tasks=[order(rig, *argv)])
    if rig.peer.take("task_started", "start_failed", task="prepare")["type"] == "start_failed":
        return "start_failed"
    assert rig.exited("prepare")["exit_code"] == 0
    return rig.log("prepare").read_text()


def test_prepare_runs_in_the_host_s_network_as_a_normal_task(private: Rig) -> None:
    host_network = os.readlink("/proc/self/ns/net")
    assert prepare(private, "sh", "-c", NETWORK).strip() == host_network
    assert prepare(private, "/no/such/program") == "start_failed"
    private.peer.send("start", attempt=0, tasks=[order(private, "sleep", "300")])
    private.peer.take("task_started", task="prepare")
    private.peer.send("stop", tasks=["prepare"], grace_s=20, why="a test")
    assert private.exited("prepare")["ended_by"] == "tfcluster"
    private.start("sh", "-c", NETWORK)
    private.exited()
    assert private.log().read_text().strip() not in ("", host_network)
    wait_until(lambda: not children_of(private.pid))  # the spawner has ended


@pytest.mark.parametrize("victim", ["agent", "guard"])
def test_a_prepare_step_ends_when_agent_or_guard_is_killed(private: Rig, victim: str) -> None:
    log = private.log("prepare")
    step = order(private, "sh", "-c", "echo $$; sleep 300 & echo $!; wait")
    private.peer.send("start", attempt=0, tasks=[step])
    wait_until(lambda: log.exists() and log.read_text().count("\n") == 2)
    pids = [*map(int, log.read_text().split()), *children_of(private.pid)]
    assert len(set(pids)) == 3, "the step, its child, and the spawner in the host's network"
    kill(private.pid if victim == "agent" else private.guard_pid)
    wait_until(lambda: not any(map(is_alive, pids)))
    wait_until(lambda: not is_alive(private.pid))


@pytest.mark.parametrize(
    ("settings", "cause", "fix"),
    [
        (
            {"sys/kernel/apparmor_restrict_unprivileged_userns": "1"},
            "AppArmor forbids user namespaces (kernel.apparmor_restrict_",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            {"sys/kernel/unprivileged_userns_clone": "0"},
            "(kernel.unprivileged_userns_clone=0)",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            {"sys/user/max_user_namespaces": "0", "self/status": "Seccomp:\t2"},
            "(user.max_user_namespaces=0)",
            "sudo sysctl -w user.max_user_namespaces=15000",
        ),
        (
            {"sys/user/max_user_namespaces": "9", "self/status": "Seccomp:\t2\n"},
            "a seccomp filter",
            "seccomp=unconfined",
        ),
        ({}, "the system refuses namespaces (Operation not permitted)", "user_namespaces(7)"),
    ],
)
def test_a_refused_namespace_is_reported_with_cause_and_fix(
    settings: dict[str, str], cause: str, fix: str
) -> None:
    error = OSError(errno.EPERM, "Operation not permitted")
    refused = why_refused(error, lambda name: settings.get(name, ""))
    assert cause in refused.message
    assert fix in refused.fix
    assert "--set runtime.network=host" in refused.fix


REFUSED = """
echo 0 > /proc/sys/user/max_user_namespaces
exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin "$@"
"""
CONNECT = """
import asyncio, sys
from pathlib import Path
from tfcluster.backends.base import RunContext, open_nodes
from tfcluster.errors import SetupError
from tfcluster.plans.plan import NodePlan

node = NodePlan("local", "local", None, "/", network="private")
nodes = open_nodes([node], RunContext("r", Path(sys.argv[1])))
try:
    asyncio.run(nodes.connect(node, token="t"))
except SetupError as error:
    print(type(error).__name__, error.exit_code, error)
"""


def test_a_system_that_refuses_namespaces_is_reported_and_no_agent_is_left(folder: Path) -> None:
    """The test uses a user namespace in which no further one may be created."""
    argv = ["unshare", "--user", "--map-root-user", "sh", "-c", REFUSED, "sh"]
    argv += [sys.executable, "-c", CONNECT, str(folder / "run")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200)
    assert "SetupError 3 no private network" in done.stdout, done.stdout + done.stderr
    assert "user.max_user_namespaces=0" in done.stdout
    assert not list(folder.rglob("*.agent"))
