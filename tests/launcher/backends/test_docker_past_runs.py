"""Docker is asked only where it was used, each daemon by the name under which a run reached it.

A small stand-in for the client answers, and notes what it was asked; the real one is asked in
tests/integration/docker.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfcluster.backends.docker import client as docker_client
from tfcluster.backends.docker import past_runs

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


def goes_on_without_coordinator(home: Path, *runs: str) -> None:
    """Their notes name a process that is gone."""
    for run in runs:
        note = home / "containers" / run
        note.write_text(f"{note.read_text().splitlines()[0]}\n{GONE}\n")


def noted(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "containers").iterdir())


def change_daemon(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    docker_client.endpoint.cache_clear()


def test_where_docker_was_never_used_it_is_not_asked(home: Path) -> None:
    assert past_runs.look(patience_s=5) == past_runs.Found()
    assert past_runs.look_for("a", patience_s=5) == past_runs.Found()
    assert past_runs.let_go("a", patience_s=5) == []
    assert asked(home) == []


def test_what_a_dead_coordinator_left_is_found_and_what_is_anothers_is_not(home: Path) -> None:
    for run in ("a", "c"):
        past_runs.note(run)
    goes_on_without_coordinator(home, "a", "c")
    (left,) = past_runs.look(patience_s=5).leftovers
    assert (left.run_id, left.names) == ("a", ("a-worker-0", "a"))
    assert len(asked(home)) == 2  # containers and networks of one daemon, once for both runs
    assert noted(home) == ["a"], "of c the daemon has nothing"


def test_a_run_that_goes_on_is_no_reason_to_ask(home: Path) -> None:
    past_runs.note("a")
    assert past_runs.look(patience_s=5) == past_runs.Found()
    assert asked(home) == []


def test_a_run_is_looked_for_at_the_daemon_it_had(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past_runs.note("a")
    change_daemon(monkeypatch, "unix:///other")
    past_runs.note("b")
    assert past_runs.look_for("a", patience_s=5).leftovers
    assert {line.split()[0] for line in asked(home)} == {"unix:///here"}


def test_a_daemon_that_is_away_is_not_taken_for_an_empty_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_daemon(monkeypatch, "unix:///away")
    past_runs.note("a")
    goes_on_without_coordinator(home, "a")
    found = past_runs.look(patience_s=5)
    assert found.leftovers == []
    (silent,) = found.silent
    assert silent.runs == ("a",)
    assert "unix:///away" in str(silent)
    assert "Cannot connect to the Docker daemon" in str(silent)
    assert noted(home) == ["a"]


def test_of_a_run_that_is_removed_only_what_a_daemon_has_is_remembered(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past_runs.note("a")
    change_daemon(monkeypatch, "unix:///away")
    past_runs.note("b")
    assert past_runs.let_go("a", patience_s=5) == []
    (said,) = past_runs.let_go("b", patience_s=5)
    assert "what it may still have of b is not known" in said
    assert noted(home) == ["a"]


@pytest.mark.parametrize(
    ("said", "cut"),
    [
        ("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", False),
        (
            'error during connect: Get "http://h:2375/_ping": dial tcp: lookup h: no such host',
            False,
        ),
        ("error during connect: ssh: connect to host h port 22: Connection refused", False),
        ('error during connect: Post "http://docker/networks/create": EOF', True),
        ("Error response from daemon: could not find an available, non-overlapping pool", False),
    ],
)
def test_only_a_daemon_that_was_dialled_may_have_heard_an_order(said: str, cut: bool) -> None:
    assert docker_client.was_cut_off(said) is cut
