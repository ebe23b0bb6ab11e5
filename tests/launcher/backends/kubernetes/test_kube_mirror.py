"""The copy of a run folder that cannot begin says why."""

from __future__ import annotations

import io
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster.backends.kubernetes.submitted import kube_mirror
from tfcluster.backends.kubernetes.submitted.kube_mirror import Mirror
from tfcluster.backends.past_runs import SilentError
from tfcluster.errors import SetupError
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(status=Status.RUNNING)
    monkeypatch.setattr(registry, "load_recorded", lambda paths: state)


class Failing(io.RawIOBase):
    """A process in the pod that ends at once."""

    last_words = "No module named tfcluster.wire.folder_stream"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return 0


class Source:
    """The pod."""

    def open(self) -> Any:
        return Failing()

    def release(self) -> None:
        raise AssertionError("there is nothing to release")


@pytest.mark.usefixtures("running")
def test_the_second_failure_to_begin_is_said_in_the_transports_words(tmp_path: Path) -> None:
    mirror = Mirror(RunPaths(tmp_path), Source())
    assert not mirror._try_to_copy()
    assert mirror.problem == ""  # the pod may not listen yet
    assert not mirror._try_to_copy()
    assert "No module named tfcluster" in mirror.problem


@pytest.mark.usefixtures("running")
def test_a_refusal_of_the_api_server_is_said_at_once(tmp_path: Path) -> None:
    class Refusing(Source):
        def open(self) -> Any:
            raise SetupError("this user may not list pods")

    mirror = Mirror(RunPaths(tmp_path), Refusing())
    assert not mirror._try_to_copy()
    assert mirror.problem == "this user may not list pods"


@pytest.mark.usefixtures("running")
def test_an_api_server_that_is_away_is_said(tmp_path: Path) -> None:
    class Away(Source):
        def open(self) -> Any:
            raise SilentError("the Kubernetes API server does not answer")

    mirror = Mirror(RunPaths(tmp_path), Away())
    assert not mirror._try_to_copy()
    assert mirror.problem == "the Kubernetes API server does not answer"


@pytest.mark.usefixtures("running")
def test_a_coordinator_that_does_not_open_its_folder_for_long_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_mirror, "_SLOW_S", 0.0)
    mirror = Mirror(RunPaths(tmp_path), Source())
    seen = list[str]()

    class Waiting(Failing):
        def readinto(self, buffer: Any) -> int:
            until = time.monotonic() + 20
            while not mirror.problem and time.monotonic() < until:
                time.sleep(0.001)
            seen.append(mirror.problem)
            return 0

    monkeypatch.setattr(mirror.source, "open", Waiting, raising=False)
    assert not mirror._try_to_copy()
    assert "has not opened the run's folder yet" in seen[0]
    assert mirror.problem == ""
