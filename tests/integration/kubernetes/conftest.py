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
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.commandline import CommandLine
from tests.lab.kube import KubeCluster, missing_tools

from .desk import Desk
from .shared import end_shared_cluster, shared_cluster

_numbers = itertools.count(1)
HAS_FAILED = pytest.StashKey[bool]()
_TEST_S = 900
"""More than the limits within a test together, each of which says what it waited for."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            # By a signal: a test process that is killed says nothing, and takes its cluster along.
            item.add_marker(pytest.mark.timeout(_TEST_S, method="signal"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a test has failed: what it leaves then is not waited for."""
    report = yield
    item.stash[HAS_FAILED] = item.stash.get(HAS_FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def kube() -> Path:
    """The administrator's kubeconfig of a cluster that ends with this pytest."""
    need_tools()
    return Path(shared_cluster()["KUBECONFIG"])


@pytest.fixture
def desk(request: pytest.FixtureRequest, kube: Path, shell: CommandLine) -> Iterator[Desk]:
    """A namespace of the shared cluster, and a command line."""
    with _desk(request, kube, shell) as made:
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
def own_desk(
    request: pytest.FixtureRequest, own_kube: KubeCluster, shell: CommandLine
) -> Iterator[Desk]:
    """A namespace of `own_kube`, and a command line."""
    with _desk(request, own_kube.config, shell) as made:
        try:
            yield made
        finally:
            own_kube.restore()


@contextmanager
def _desk(request: pytest.FixtureRequest, config: Path, shell: CommandLine) -> Iterator[Desk]:
    made = Desk(shell, config, f"desk-{os.getpid()}-{next(_numbers)}")
    try:
        yield made
        has_failed = request.node.stash.get(HAS_FAILED, False)
        left = [] if has_failed else made.left()
        if has_failed:
            print(made.describe())
    finally:
        made.close()
    assert not left, f"left in the cluster: {left}"


def need_tools() -> None:
    if missing := missing_tools():
        pytest.skip(f"needs {', '.join(missing)}: see .ci/packages")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's processes do not end what others use
        end_shared_cluster()
