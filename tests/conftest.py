"""Settings of the whole suite: the order of tests, no skips in CI, one fork server per process."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from .darwin import become_darwin
from .forked import DROPPED, ForkServer, PlainStarts
from .scheduling import OneByOne, is_extended, place

# No deadline: the time of an example depends on how busy the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# The developer's own defaults would change the specs of tests, and their folder would get the runs.
os.environ["TFCLUSTER_CONFIG"] = os.devnull
for _name in set(DROPPED) - {"CI"}:  # xdist's workers, which inherit the rest, read it too
    os.environ.pop(_name, None)

if os.environ.get("TFCLUSTER_TEST_PLATFORM") == "darwin" and sys.platform == "linux":
    become_darwin()  # before anything of tfcluster is imported

IS_CI = os.environ.get("CI") == "true"


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_extended(item):
            item.add_marker(pytest.mark.extended)
    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneByOne | None:
    return OneByOne(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection() -> None:
    """Disable garbage collection while thousands of tests are collected, as none is garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make a skipped test fail in CI, where the missing part must be installed."""
    report = yield
    if IS_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI=true forbids: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Yield this test process's server, which starts `tfcluster` commands as forks."""
    server = ForkServer() if sys.platform == "linux" else PlainStarts()
    yield server
    server.close()
