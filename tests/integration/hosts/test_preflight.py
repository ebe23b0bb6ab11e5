"""What would fail is refused before anything is started: each with its host and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.lab.machines import Lab, Machine

from .office import Office, Run, until

REFUSED = 3


@pytest.fixture(scope="module")
def three(lab: Lab) -> Iterator[Office]:
    """A desk and three hosts, for all tests here."""
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
        until(lambda host=host: not host.processes(), f"the end of all on {host.name}")
        assert not list((host.root / ".cache/tfcluster/nodes").glob("*/*"))


def refused(run: Run) -> str:
    """What it said; no task was started."""
    assert run.end() == REFUSED, run.said
    assert "│" not in run.said
    return run.said


def on(office: Office, **runtime_of: dict[str, Any]) -> dict[str, Any]:
    """`runtime` with settings of hosts by name, besides those of all."""
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
    assert "nothing stands in the way" in run.said
