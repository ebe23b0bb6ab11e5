"""Real docker daemons for the tests of this folder, and the images that they start."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.integration.commandline import CommandLine
from tests.lab.docker_images import BUILT, build_stub, build_worker, cache, exclusive
from tests.lab.dockerd import Docker, Dockerd, existing_daemon, missing_tools
from tests.lab.way_out import way_out

from .harbor import Harbor


@contextmanager
def own_daemon(data_root: Path | None = None) -> Iterator[Dockerd]:
    """Start an empty daemon; with the `data_root` of an earlier one it has that one's images."""
    if missing := missing_tools():
        pytest.skip(f"needs {', '.join(missing)}: see .ci/packages")
    folder = Path(tempfile.mkdtemp(prefix="dockerd-", dir="/var/tmp"))
    with Dockerd(folder, data_root) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def docker() -> Iterator[Docker]:
    """A client whose daemon has the image `docker_images.STUB`: the machine's daemon, else ours."""
    with ExitStack() as stack:
        docker = existing_daemon() or stack.enter_context(own_daemon()).docker
        build_stub(docker)
        yield docker


@pytest.fixture(scope="module")
def dockerd() -> Iterator[Dockerd]:
    """A daemon of the tests' own with the stub image, for tests that stop and start it."""
    with own_daemon() as daemon:
        build_stub(daemon.docker)
        yield daemon


@pytest.fixture(scope="module")
def worker_docker() -> Iterator[Docker]:
    """A client whose daemon has the real images, `docker_images.BUILT`.

    The images take minutes to build, so our own daemon keeps them for the next tests; test
    processes wait for one another.
    """
    with ExitStack() as stack:
        docker, outside = existing_daemon(), dict[str, str]()
        if docker is None:
            stack.enter_context(exclusive("daemon"))
            daemon = stack.enter_context(own_daemon(cache() / "docker"))
            docker = daemon.docker
            outside = {"https_proxy": stack.enter_context(way_out(daemon.pid))}
        for name in BUILT:
            build_worker(docker, name, outside=outside)
        if outside:  # layers of earlier images, in a folder that is never emptied
            docker("image", "prune", "--force", timeout=300)
            docker("builder", "prune", "--force", "--filter", "until=336h", timeout=300)
        yield docker


@pytest.fixture(scope="module")
def compose() -> list[str]:
    """The command of Compose: the plugin, or else the program of its first version."""
    plugin = ["docker", "compose"]
    if shutil.which("docker") and not _code([*plugin, "version"]):
        return plugin
    if program := shutil.which("docker-compose"):
        return [program]
    pytest.skip("there is no Compose: see .ci/packages")


def _code(argv: list[str]) -> int:
    return subprocess.run(argv, capture_output=True, check=False).returncode


@pytest.fixture
def harbor(shell: CommandLine, docker: Docker) -> Iterator[Harbor]:
    """A command line beside one daemon; fails the test that leaves something in docker."""
    made = Harbor(shell, docker)
    yield made
    if left := made.left():
        made.clear()  # the next test may have the same daemon
    assert left == []
    noted = sorted(path.name for path in (shell.home / "leftovers").glob("*"))
    assert noted == [], "docker is asked for runs that have left nothing"
