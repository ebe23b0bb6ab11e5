"""Docker is asked only if a run used it, and each daemon at the address that the run used.

A fake client answers and records its arguments; tests/integration/docker uses the real one.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launcher.backends.test_docker import BARE

from tfcluster.backends import past_runs
from tfcluster.backends.base import RunContext
from tfcluster.backends.docker import client as docker_client
from tfcluster.backends.docker.docker_nodes import DockerNodes
from tfcluster.errors import SetupError

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


def note(run: str) -> None:
    past_runs.note(run, "docker", str(docker_client.endpoint()))


def lose_coordinator(home: Path, *runs: str) -> None:
    """Make the notes of `runs` name a coordinator process that has ended."""
    for run in runs:
        path = home / "leftovers" / run
        *place, _ = path.read_text().splitlines()
        path.write_text("\n".join([*place, GONE, ""]))


def noted(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "leftovers").iterdir())


def change_daemon(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    docker_client.endpoint.cache_clear()


def test_a_silent_daemon_is_one_error_and_no_other_is_left_unread(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_daemon(monkeypatch, "unix:///away")
    unread: list[str] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, found: unread.append(found["message"])
        )
        with pytest.raises(SetupError, match="Cannot connect"):
            async with DockerNodes([BARE], RunContext("run", home)):
                pass
        gc.collect()

    asyncio.run(scenario())
    assert unread == []


def test_docker_is_not_asked_if_it_was_never_used_or_only_by_a_live_run(home: Path) -> None:
    assert past_runs.find_leftovers() == past_runs.LeftoverAnswers()
    assert past_runs.find_leftovers_of("a") == past_runs.LeftoverAnswers()
    assert past_runs.forget_removed("a") == []
    note("a")
    assert past_runs.find_leftovers() == past_runs.LeftoverAnswers(), "its run is in progress"
    assert asked(home) == []


def test_leftovers_of_a_dead_coordinator_are_found_and_those_of_others_are_not(home: Path) -> None:
    for run in ("a", "c"):
        note(run)
    lose_coordinator(home, "a", "c")
    (leftovers,) = past_runs.find_leftovers().leftovers
    assert (leftovers.run_id, leftovers.names) == ("a", ("a-worker-0", "a"))
    assert len(asked(home)) == 2  # containers and networks of one daemon, once for both runs
    assert noted(home) == ["a"], "the daemon has nothing of run c"


def test_leftovers_are_searched_for_on_the_daemon_that_the_run_used(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note("a")
    change_daemon(monkeypatch, "unix:///other")
    note("b")
    assert past_runs.find_leftovers_of("a").leftovers
    assert {line.split()[0] for line in asked(home)} == {"unix:///here"}


def test_a_daemon_that_does_not_answer_is_reported(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_daemon(monkeypatch, "unix:///away")
    note("a")
    lose_coordinator(home, "a")
    found = past_runs.find_leftovers()
    assert found.leftovers == []
    (silent,) = found.silent
    assert silent.runs == ("a",)
    assert "unix:///away" in str(silent)
    assert "Cannot connect to the Docker daemon" in str(silent)
    assert noted(home) == ["a"]


def test_a_removed_run_is_remembered_only_if_its_daemon_has_leftovers(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note("a")
    change_daemon(monkeypatch, "unix:///away")
    note("b")
    assert past_runs.forget_removed("a") == []
    (sentence,) = past_runs.forget_removed("b")
    assert "it may still have what belongs to b" in sentence
    assert noted(home) == ["a"]


@pytest.mark.parametrize(
    ("stderr", "is_cut_off"),
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
def test_only_a_cut_connection_may_have_delivered_the_request(
    stderr: str, is_cut_off: bool
) -> None:
    assert docker_client.was_cut_off(stderr) is is_cut_off
