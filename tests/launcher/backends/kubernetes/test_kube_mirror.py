"""The copy of a run folder that cannot begin says why."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfcluster.backends.kubernetes.submitted.kube_mirror import Mirror
from tfcluster.errors import SetupError
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status

FAILS = "import sys; sys.exit('no port-forward to the pod: Forbidden')"


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(status=Status.RUNNING)
    monkeypatch.setattr(registry, "load_recorded", lambda paths: state)


class Source:
    """A pod whose transport ends at once."""

    def command(self) -> list[str] | None:
        return [sys.executable, "-c", FAILS]

    def release(self) -> None:
        raise AssertionError("there is nothing to release")


@pytest.mark.usefixtures("running")
def test_the_second_failure_to_begin_is_said_in_the_transports_words(tmp_path: Path) -> None:
    mirror = Mirror(RunPaths(tmp_path), Source())
    assert not mirror._try_to_copy()
    assert mirror.problem == ""  # the pod may not listen yet
    assert not mirror._try_to_copy()
    assert "no port-forward to the pod: Forbidden" in mirror.problem


@pytest.mark.usefixtures("running")
def test_a_refusal_of_the_api_server_is_said_at_once(tmp_path: Path) -> None:
    class Refusing(Source):
        def command(self) -> list[str] | None:
            raise SetupError("this user may not list pods")

    mirror = Mirror(RunPaths(tmp_path), Refusing())
    assert not mirror._try_to_copy()
    assert mirror.problem == "this user may not list pods"
