"""Docker is asked only where it was used, each daemon by the name under which a run reached it.

A small stand-in for the client answers, and notes what it was asked; the real one is asked in
tests/integration/docker.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tfcluster.backends import docker_client
from tfcluster.plan.plan import Container, NodePlan, Plan
from tfcluster.run import contained
from tfcluster.run.paths import RunPaths

from .conftest import plan_of

GONE = f"{socket.gethostname()}/{os.getuid()}/1/1"
CLIENT = """#!/bin/sh
echo "$DOCKER_HOST$DOCKER_CONTEXT $*" >> "$ASKED"
case "$DOCKER_HOST$1" in
unix:///away*) echo "Cannot connect to the Docker daemon" >&2; exit 1;;
*ps) printf 'a-worker-0\\ta\\tGONE\\nb-worker-0\\tb\\telsewhere/0/1/1\\n';;
*network) printf 'a\\ta\\tGONE\\n';;
esac
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    client = tmp_path / "docker"
    client.write_text(CLIENT.replace("GONE", GONE))
    client.chmod(0o755)
    folder = tmp_path / "home"
    folder.mkdir()
    for name, value in {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "TFCLUSTER_HOME": str(folder),
        "ASKED": str(tmp_path / "asked"),
        "DOCKER_HOST": "unix:///here",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    docker_client.endpoint.cache_clear()
    yield folder
    docker_client.endpoint.cache_clear()


def asked(home: Path) -> list[str]:
    file = home.parent / "asked"
    return file.read_text().splitlines() if file.exists() else []


def in_containers() -> Plan:
    plan = plan_of()
    node = NodePlan("worker-0", "docker", None, "~/work", container=Container("image:1"))
    return replace(plan, nodes=(node,))


def paths_in(home: Path, run: str) -> RunPaths:
    paths = RunPaths(home / "runs" / run)
    paths.root.mkdir(parents=True)
    return paths


def test_where_docker_was_never_used_it_is_not_asked(home: Path) -> None:
    paths = paths_in(home, "a")
    contained.note(plan_of(), home, paths)
    assert contained.look(patience_s=5) == contained.Found()
    assert contained.look_for("a", paths, patience_s=5) == contained.Found()
    assert asked(home) == []


def test_what_a_dead_coordinator_left_is_found_and_what_is_anothers_is_not(home: Path) -> None:
    contained.note(in_containers(), home)
    contained.note(in_containers(), home)
    (left,) = contained.look(patience_s=5).leftovers
    assert (left.run_id, left.names) == ("a", ("a-worker-0", "a"))
    assert len(asked(home)) == 2  # containers and networks of one daemon, noted once


def test_a_run_is_looked_for_at_the_daemon_it_had(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = paths_in(home, "a")
    contained.note(in_containers(), home, paths)
    monkeypatch.setenv("DOCKER_HOST", "unix:///other")
    docker_client.endpoint.cache_clear()
    contained.note(in_containers(), home)
    assert contained.look_for("a", paths, patience_s=5).leftovers
    assert {line.split()[0] for line in asked(home)} == {"unix:///here"}
    contained.look_for("a", patience_s=5)
    assert {line.split()[0] for line in asked(home)} == {"unix:///here", "unix:///other"}


def test_a_daemon_that_is_away_is_not_taken_for_an_empty_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///away")
    docker_client.endpoint.cache_clear()
    contained.note(in_containers(), home)
    found = contained.look(patience_s=5)
    assert found.leftovers == []
    (silent,) = found.silent
    assert "unix:///away" in silent
    assert "Cannot connect to the Docker daemon" in silent
