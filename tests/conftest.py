"""Order and strictness of the whole suite."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from .forked import ForkServer
from .scheduling import OneByOne, place

# How long an example takes says how busy the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

IS_CI = os.environ.get("CI") == "true"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneByOne | None:
    return OneByOne(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection() -> None:
    """Thousands of tests are no garbage: nothing is gained by looking through them each time."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


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
