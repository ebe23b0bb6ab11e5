"""Runs of other machines are shown from copies that no other command takes for a run of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.launcher.conftest import plan_of

from tfcluster.backends import job_watch, jobs
from tfcluster.backends.jobs import JobPhase, JobState
from tfcluster.cli.scheduler_runs import SchedulerChoice
from tfcluster.errors import UnknownRunError
from tfcluster.rundir import registry
from tfcluster.rundir.events import JobSubmitted
from tfcluster.rundir.fold import first_state
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.states import Status

RUN = "demo-20260914-120000-k7f3"


class Cluster:
    """A scheduler with one run that another machine has submitted."""

    def __init__(self, run: str = RUN) -> None:
        self.states = {run: JobState(JobPhase.RUNNING, job="demo")}
        self.made = 0

    def cluster(self, of: object, *, patience_s: float) -> str:
        return "https://k/vision"

    def look(self, cluster: str, *, patience_s: float) -> dict[str, JobState]:
        return self.states

    def make_copy(self, paths: RunPaths, job: str, *, cluster: str) -> JobSubmitted:
        self.made += 1
        paths.root.mkdir(parents=True)
        paths.events.touch()
        state = first_state(plan_of(), paths, registry.this_process(), 1.0)
        RunWriter(state, paths).close()
        return JobSubmitted(backend="kubernetes", id=job, cluster=cluster)

    def follow(self, paths: RunPaths, job: str, *, cluster: str) -> None:
        pass


def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cluster: Any) -> None:
    monkeypatch.setenv("TFCLUSTER_HOME", str(tmp_path))
    monkeypatch.setattr(jobs, "of_backend", lambda backend: cluster)
    job_watch.forget()


def test_a_copy_is_made_once_and_is_no_run_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster()
    use(monkeypatch, tmp_path, cluster)
    for name in (RUN, "k7f3", "demo"):
        found = SchedulerChoice("kubernetes").find_run(name)
        assert found.paths == RunPaths.of_copy(RUN)
        assert found.status is Status.QUEUED  # until its coordinator's first word
    assert cluster.made == 1
    assert registry.runs() == []
    with pytest.raises(UnknownRunError):
        SchedulerChoice().find_run(RUN)


def test_a_name_does_not_mean_the_runs_whose_names_begin_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, tmp_path, Cluster("demo-large-20260914-120000-k7f3"))
    with pytest.raises(UnknownRunError, match="no runs called demo") as caught:
        SchedulerChoice("kubernetes").find_run("demo")
    assert caught.value.fix == "`tfcluster ps --backend kubernetes` lists them"


@pytest.mark.parametrize("name", ["../../demo-20260914-120000-k7f3", "demo"])
def test_a_name_that_somebody_has_given_an_object_never_leads_out_of_the_folder_of_copies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    use(monkeypatch, tmp_path / "home", Cluster(name))
    with pytest.raises(UnknownRunError, match="is not the id of a run"):
        SchedulerChoice("kubernetes").find_run(name)
    assert [*tmp_path.rglob("*")] == []
