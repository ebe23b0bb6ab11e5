"""The tests' own docker daemon can be stopped or killed, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.commandline import wait_for
from tests.lab.docker_images import STUB, build_stub
from tests.lab.dockerd import CGROUPS, Dockerd

from .conftest import own_daemon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def links() -> list[str]:
    said = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return [line.split(":")[1] for line in said.splitlines()]


def traces(word: str) -> Iterator[str]:
    """Yield this machine's processes, mounts, control groups and files with `word` in the name."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                yield str(path)
        except OSError:
            continue
    yield from (line for line in Path("/proc/mounts").read_text().splitlines() if word in line)
    for at, names, _ in os.walk(CGROUPS):  # the kernel may be removing some meanwhile
        yield from (os.path.join(at, name) for name in names if word in name)
    yield from map(str, Path("/var/tmp").glob(f"*{word}*"))


def test_the_daemon_and_its_containers_leave_nothing_behind() -> None:
    before = links()
    with own_daemon() as daemon:
        word = daemon.folder.name
        build_stub(daemon.docker)
        daemon.docker("network", "create", "some")
        daemon.docker(
            "run", "--detach", "--network", "some", "--memory", "64m", STUB, "sleep", "600"
        )
        assert links() == before
        assert "docker0" in daemon.run(["ip", "-o", "link"]).stdout
        kinds = {path.split("/")[1] for path in traces(word)}
        assert {"proc", "sys", "var"} <= kinds
    wait_for(lambda: not [*traces(word)], what="nothing with its name")
    assert links() == before


@pytest.mark.parametrize(("live_restore", "state"), [(False, "exited"), (True, "running")])
def test_containers_outlive_a_stop_only_with_live_restore(
    dockerd: Dockerd, live_restore: bool, state: str
) -> None:
    dockerd.restart(live_restore=live_restore)
    name = dockerd.docker("run", "--detach", "--init", STUB, "sleep", "600")
    dockerd.stop()
    assert dockerd.docker.run("version").returncode != 0
    dockerd.start()
    assert dockerd.docker("inspect", "--format", "{{.State.Status}}", name) == state
    dockerd.clear()
    assert dockerd.docker("ps", "--all", "--quiet") == ""


def test_the_daemon_starts_again_after_a_kill(dockerd: Dockerd) -> None:
    dockerd.restart(live_restore=True)
    name = dockerd.docker("run", "--detach", "--init", STUB, "sleep", "600")
    dockerd.kill()
    assert dockerd.docker.run("version").returncode != 0
    dockerd.start()
    assert dockerd.docker("inspect", "--format", "{{.State.Status}}", name) == "running"
