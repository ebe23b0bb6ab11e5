"""Order and strictness of the whole suite."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pytest

from .forked import ForkServer

IS_CI = os.environ.get("CI") == "true"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start a real TensorFlow come last: a plain mistake shows within seconds."""
    items.sort(key=lambda item: item.get_closest_marker("tensorflow") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """On the build machine a skipped test is a failed one: the missing part must be installed."""
    report = yield
    if IS_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI=true forbids: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Starts `tfcluster` commands by forks; one for each process of tests."""
    server = ForkServer()
    yield server
    server.close()
