"""The group of a run in experiment trackers: its own id, or that of the first run it resumes."""

from __future__ import annotations

from dataclasses import replace

from tests.launcher.conftest import MakeRun, plan_of

from tfcluster.checkpoints.recognition import Newest
from tfcluster.coordinator.launch import Launch, make_folder
from tfcluster.coordinator.resume import Resume
from tfcluster.plans.plan import Plan
from tfcluster.rundir import run_writer
from tfcluster.rundir.paths import RunPaths


def start(source: RunPaths | None, plan: Plan) -> tuple[RunPaths, str | None]:
    resume = Resume(source, Newest(3, "ckpt-3"), ()) if source is not None else None
    paths, state = make_folder(Launch(plan, {}, resume=resume))
    run_writer.write_json(paths.state, state.to_json())
    return paths, state.tracker_group


def test_runs_that_resume_one_another_are_in_the_group_of_the_first(make_run: MakeRun) -> None:
    first, group = start(None, plan_of())
    assert group == first.run_id
    second, group = start(first, plan_of())
    assert group == first.run_id
    assert start(second, plan_of())[1] == first.run_id
    of_an_older_tfcluster = make_run()
    assert start(of_an_older_tfcluster, plan_of())[1] == of_an_older_tfcluster.run_id


def test_machines_that_join_have_the_name_in_common(make_run: MakeRun) -> None:
    assert start(None, replace(plan_of(name="lab"), joins=True))[1] == "lab"
