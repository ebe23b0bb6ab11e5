"""The preflight refuses a run that would fail, with the host's name and what to do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.jobs.lab import PYTHONS
from tests.lab.machines import Lab, Machine

from .office import Office, Run, until

REFUSED = 3

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def three(lab: Lab) -> Iterator[Office]:
    """A desk and three hosts, for all tests of this file."""
    made = Office(lab)
    try:
        made.add_hosts(3)
        yield made
    finally:
        made.close()
    assert not made.left, f"left behind: {made.left}"


@pytest.fixture(autouse=True)
def _nothing_stays(three: Office) -> Iterator[None]:
    yield
    for host in three.hosts:
        until(partial(_is_quiet, host), f"the end of all on {host.name}")
        assert not list((host.root / ".cache/tfcluster/nodes").glob("*/*"))


def _is_quiet(host: Machine) -> bool:
    return not host.processes()


def refused(run: Run) -> str:
    """Assert that the run was refused and started no task; return its output."""
    assert run.end() == REFUSED, run.said
    assert "│" not in run.said
    return run.said


def on(office: Office, **runtime_of: dict[str, Any]) -> dict[str, Any]:
    """Return a `runtime` section with the settings of named hosts beside those of all hosts."""
    python = json.loads((office.desk / "spec.json").read_text())["runtime"]["hosts"]["*"]
    named = {host.name: host.address for host in office.hosts}
    return {"hosts": {"*": python, **{named[name]: what for name, what in runtime_of.items()}}}


def test_doctor_shows_three_sound_hosts_side_by_side(three: Office) -> None:
    spec = three.spec()
    run = three.start("doctor", str(spec))
    assert run.end() == 0, run.said
    lines = {line.split("  ")[0]: line for line in run.said.splitlines()}
    assert all(host.address in run.said.splitlines()[0] for host in three.hosts)
    assert lines["peers"].count("2 of 2 reached") == 3
    assert "All checks passed" in run.said


def test_a_missing_python_is_named_by_up_and_by_doctor(three: Office) -> None:
    three.spec()
    spec = three.spec(runtime=on(three, **{three.hosts[1].name: {"python": "/no/such/python"}}))
    for command in ("up", "doctor"):
        said = refused(three.start(command, str(spec)))
        assert re.search(rf"{three.hosts[1].address}:? cannot be reached", said)
        assert "/no/such/python" in said
        assert f"runtime.hosts.{three.hosts[1].address}.python to a Python" in said


def test_a_different_tensorflow_on_one_of_three_hosts_is_named(three: Office) -> None:
    three.spec()
    spec = three.spec(runtime=on(three, **{three.hosts[2].name: {"python": str(PYTHONS["tf215"])}}))
    said = refused(three.up(spec))
    odd = three.hosts[2].address
    assert f"{odd}: TensorFlow: 2.15" in said
    assert "on the others\n  → all nodes must have the same" in said
    assert f"{odd}: Keras: 2.15.0 on this node" in said
    assert f"{three.hosts[0].address}: " not in said
    row = next(line for line in said.splitlines() if line.startswith("TensorFlow"))
    assert row.count("✗") == 1


def test_one_port_blocked_between_two_of_three_hosts_is_named_from_both_sides(
    three: Office,
) -> None:
    first, second, third = three.hosts
    cluster = {"worker": [f"{host.address}:2222" for host in three.hosts]}
    three.lab.block(first, third, port=2222)
    try:
        said = refused(three.up(three.spec(cluster=cluster)))
    finally:
        three.lab.unblock(first, third, port=2222)
    assert f"{third.address}: cannot connect to worker:0 ({first.address}:2222)" in said
    assert f"{first.address}: cannot connect to worker:2 ({third.address}:2222)" in said
    assert f"{second.address}: " not in said
    assert "1 of 2 reached ✗" in said
    assert "clock differs" not in said  # although some checks took long


def test_a_host_with_a_full_disk_is_named(three: Office) -> None:
    """The disk has no space for the agent, then none for the code."""
    host = three.hosts[1]
    three.write("big.bin", "x" * 8_000_000)
    spec = three.spec()
    try:
        for size in ("64k", "6m"):
            with mounted(host, ".cache", f"size={size}"):
                said = refused(three.up(spec))
                left = host.run(["find", str(Path("~").expanduser() / ".cache"), "-name", ".new-*"])
            assert left.stdout == ""
            assert host.address in said
            assert "No space left on device" in said
    finally:
        (three.desk / "big.bin").unlink()


def test_a_proxy_set_only_on_a_host_is_not_passed_to_its_tasks(three: Office) -> None:
    host = three.hosts[0]
    rc = host.root / ".bashrc"
    rc.write_text("export https_proxy=http://anna:secret@127.0.0.1:9 no_proxy=corp.example\n")
    show = "import os; print(os.environ.get('no_grpc_proxy'), os.environ.get('no_proxy'))"
    try:
        run = three.up(three.spec(show))
        assert run.end() == 0, run.said
        doctor = three.start("doctor", str(three.spec(show)))
        assert doctor.end() == 0, doctor.said
    finally:
        rc.unlink()
    assert "https_proxy: not passed to tasks" in doctor.said
    assert "anna" not in run.said + doctor.said
    printed = dict(line.split(" │ ") for line in run.said.splitlines() if " │ " in line)
    guard, no_proxy = printed["worker:0"].split()
    assert all(one.address in guard for one in three.hosts)
    assert "corp.example" in guard
    assert guard == no_proxy
    assert printed["worker:1"] == "None None"


def test_tasks_get_the_variables_of_trackers_that_their_host_does_not_set(three: Office) -> None:
    """wandb is installed on all; the login of the first host chooses the run in it."""
    rc = three.hosts[0].root / ".bashrc"
    rc.write_text("export WANDB_RUN_ID=mine\n")
    show = "import os; print(os.environ.get('WANDB_RUN_ID'), os.environ.get('WANDB_RUN_GROUP'))"
    try:
        run = three.up(three.spec(show))
        assert run.end() == 0, run.said
    finally:
        rc.unlink()
    printed = dict(line.split(" │ ") for line in run.said.splitlines() if " │ " in line)
    own, group = printed["worker:0"].split()
    assert own == "mine"
    assert group.startswith("far-")
    assert printed["worker:1"] == f"{group}-worker-1 {group}"


def test_a_host_lost_during_the_checks_is_named_and_ctrl_c_ends_the_checks(
    three: Office,
) -> None:
    host = three.hosts[0]
    wrapped = f'case "$*" in *probe.py*) exec sleep 60;; esac\nexec {sys.executable} "$@"\n'
    (host.root / "slow").write_text(f"#!/bin/sh\n{wrapped}")
    (host.root / "slow").chmod(0o755)
    three.spec()
    slow = {"python": str(Path("~").expanduser() / "slow")}
    spec = three.spec(runtime=on(three, **{host.name: slow}))
    for victim in (host, three.home):
        run = three.start("doctor", str(spec))
        until(lambda: any("sleep 60" in line for line in host.processes().values()), "a probe")
        if victim is host:
            host.kill_agents()
        else:
            send(three.home, "doctor", signal.SIGINT)
        assert run.end() == (REFUSED if victim is host else 130), run.said
        if victim is host:
            assert f"{host.address}: the checks could not run: its agent went away" in run.said
            assert "1 problem to fix" in run.said
            shutil.rmtree(host.root / ".cache/tfcluster/nodes")  # a killed agent removes nothing


@pytest.mark.tensorflow
def test_doctor_deep_imports_tensorflow_on_the_hosts_and_measures_their_link(
    three: Office,
) -> None:
    first, second = (host.address for host in three.hosts[:2])
    cluster = {"worker": [f"{first}:0", f"{second}:0"]}
    run = three.start("doctor", str(three.spec(cluster=cluster)), "--deep")
    assert run.end(240) == 0, run.said
    (line,) = [line for line in run.said.splitlines() if line.startswith("import")]
    assert len(re.findall(r"2\.\d+\.\d+ in [\d.]+ s: CPU", line)) == 2
    link = f"worker:0 ({first}) – worker:1 ({second})"
    assert re.search(rf"slowest link with RING: {re.escape(link)}, [\d.]+ GB/s", run.said)


def send(machine: Machine, words: str, number: int) -> None:
    """Send a signal to all processes of a machine with `words` in their command line."""
    for pid, line in machine.processes().items():
        if words in line:
            with contextlib.suppress(ProcessLookupError):  # the end of one may end the next
                os.kill(pid, number)


def mounted(host: Machine, folder: str, options: str) -> AbstractContextManager[None]:
    """Mount a small disk over a folder in the host's home."""
    (host.root / folder).mkdir(exist_ok=True)
    return mounted_at(host, str(Path("~").expanduser() / folder), options)


@contextmanager
def mounted_at(host: Machine, where: str, options: str) -> Iterator[None]:
    done = host.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", where])
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        done = host.run(["umount", "--lazy", where])
        assert done.returncode == 0, done.stderr
