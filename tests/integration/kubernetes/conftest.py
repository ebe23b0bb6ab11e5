"""A real Kubernetes cluster for the tests of this folder.

`kube`: the kubeconfig of a cluster of two nodes that all test processes of one pytest share.
`desk`: a namespace of that cluster for one test, see `desk.Desk`: `desk.shell.run("up", ...)`,
`desk.kubectl("get", "pods")`, `desk.runtime()` for a spec, `desk.user("ann")` for a kubeconfig of a
user of this namespace only. It fails the test that leaves objects of ours.
`own_kube`, `own_desk`: the same on a `KubeCluster` of this test process, for tests with faults
(`own_kube.cut("n2")`, `own_kube.kill_api_server()`, ...), which are undone after the test. Write
these tests into files test_faults*.py: one process runs them all.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.commandline import CommandLine
from tests.lab.docker_images import cache, exclusive
from tests.lab.kube import KubeCluster, missing_tools

from .desk import Desk

ROOT = Path(__file__).parents[3]
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def kube() -> Path:
    """The administrator's kubeconfig of a cluster that ends with this pytest."""
    _need_tools()
    owner = _owner()
    about = cache() / f"kubernetes-of-{owner}.json"
    with exclusive(f"kubernetes-of-{owner}"):
        if not about.exists() or not _lives(json.loads(about.read_text())["pid"]):
            about.write_text(_start(owner))
    return Path(json.loads(about.read_text())["KUBECONFIG"])


@pytest.fixture
def desk(kube: Path, shell: CommandLine) -> Iterator[Desk]:
    """A namespace of the shared cluster, and a command line."""
    with _desk(kube, shell) as made:
        yield made


@pytest.fixture(scope="session")
def one_kube() -> Iterator[KubeCluster]:
    """A cluster of this test process; see `own_kube`."""
    _need_tools()
    with KubeCluster() as made:
        yield made


@pytest.fixture
def own_kube(one_kube: KubeCluster) -> Iterator[KubeCluster]:
    """A cluster to which faults may happen, which are undone after the test."""
    yield one_kube
    one_kube.restore()


@pytest.fixture
def own_desk(own_kube: KubeCluster, shell: CommandLine) -> Iterator[Desk]:
    """A namespace of `own_kube`, and a command line."""
    with _desk(own_kube.config, shell) as made:
        try:
            yield made
        finally:
            own_kube.restore()


@contextmanager
def _desk(config: Path, shell: CommandLine) -> Iterator[Desk]:
    made = Desk(shell, config, f"desk-{os.getpid()}-{next(_numbers)}")
    try:
        yield made
        left = made.left()
    finally:
        made.close()
    assert not left, f"left in the cluster: {left}"


def _need_tools() -> None:
    if missing := missing_tools():
        pytest.skip(f"needs {', '.join(missing)}: see .ci/run")


def _owner() -> int:
    """Return the pytest process that the user started: the parent of xdist's processes."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def _start(owner: int) -> str:
    """Start the shared cluster, apart from this process; return what it says of itself."""
    argv = [sys.executable, "-m", "tests.integration.kubernetes", "up", "--owner", str(owner)]
    log = cache() / f"kubernetes-of-{owner}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.readline()
    process.returncode = 0  # it outlives this test process
    if not said:
        raise RuntimeError(log.read_text())
    return said


def _lives(pid: int) -> bool:
    try:
        return b"tests.integration.kubernetes" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the shared cluster with the pytest that the user started, and wait for its end."""
    owner = os.getpid()
    about = cache() / f"kubernetes-of-{owner}.json"
    if not hasattr(config, "workerinput") and about.exists():
        pid = json.loads(about.read_text())["pid"]
        if _lives(pid):
            ended = os.pidfd_open(pid)
            signal.pidfd_send_signal(ended, signal.SIGTERM)
            os.close(ended)
        for path in cache().glob(f"kubernetes-of-{owner}.*"):
            path.unlink()
