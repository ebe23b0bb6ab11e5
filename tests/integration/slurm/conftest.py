"""A real Slurm cluster for the tests of this folder: three nodes, and a login node with users."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.lab.slurm import SlurmCluster, missing_tools

from .site import Site


@contextmanager
def own_cluster(**settings: Any) -> Iterator[SlurmCluster]:
    """Start a cluster; `settings`: the fields of `SlurmCluster`."""
    if missing := missing_tools():
        pytest.skip(f"needs {', '.join(missing)}: see .ci/packages")
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/var/tmp"))
    with SlurmCluster(folder, **settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def one_cluster() -> Iterator[SlurmCluster]:
    """A cluster made once for each test process; see `cluster`."""
    with own_cluster() as made:
        yield made


@pytest.fixture
def cluster(one_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """Three nodes of four CPUs without jobs; faults are undone after the test."""
    yield one_cluster
    one_cluster.restore()


@pytest.fixture
def site(cluster: SlurmCluster) -> Iterator[Site]:
    """A user's folder on the login node; fails the test that leaves a process on a node."""
    made = Site(cluster)
    yield made
    made.close()
