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
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.commandline import CommandLine
from tests.lab.kube import KubeCluster, missing_tools

from .desk import Desk
from .shared import end_shared_cluster, shared_cluster

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def kube() -> Path:
    """The administrator's kubeconfig of a cluster that ends with this pytest."""
    need_tools()
    return Path(shared_cluster()["KUBECONFIG"])


@pytest.fixture
def desk(kube: Path, shell: CommandLine) -> Iterator[Desk]:
    """A namespace of the shared cluster, and a command line."""
    with _desk(kube, shell) as made:
        yield made


@pytest.fixture(scope="session")
def one_kube() -> Iterator[KubeCluster]:
    """A cluster of this test process; see `own_kube`."""
    need_tools()
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


def need_tools() -> None:
    if missing := missing_tools():
        pytest.skip(f"needs {', '.join(missing)}: see .ci/run")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's processes do not end what others use
        end_shared_cluster()
