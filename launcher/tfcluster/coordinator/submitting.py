"""Submitted runs, whose coordinator runs in a job of a scheduler: `submit` and watch, or leave."""

from __future__ import annotations

import time

from tfcluster.backends import jobs
from tfcluster.coordinator.foreground import End, Launch, Watcher, make_folder
from tfcluster.errors import TfclusterError
from tfcluster.preflight.rules import PreflightReport
from tfcluster.rundir import registry, run_writer
from tfcluster.rundir.events import JobSubmitted, RunQueued
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.snapshot import describe_failure
from tfcluster.supervision.decisions import Outcome

_POLL_S = 0.2


def submit(launch: Launch) -> RunPaths:
    """Make the folder of a run and submit its job; raises SetupError.

    The folder is not kept if the scheduler does not take the job.
    """
    paths, state = make_folder(launch)
    writer = RunWriter(state, paths)
    try:
        run_writer.require_json(paths.launch, launch.options)
        backend = launch.plan.nodes[0].backend
        its = jobs.of_backend(backend)
        assert its is not None
        assert launch.runtime is not None
        submission = jobs.submission_of(launch.plan, launch.runtime, paths.root)
        if launch.start_options.runs_preflight:
            PreflightReport.of_job(backend, its.check(submission, thorough=False)).require()
        job = its.submit(submission)
    except TfclusterError:
        writer.close()
        registry.delete(paths)
        raise
    writer.record(JobSubmitted(backend=backend, id=job))
    writer.record(RunQueued(reason=f"job {job}"))
    writer.close()
    return paths


def submit_and_watch(launch: Launch, watcher: Watcher) -> End | None:
    """Submit the run and watch it to its end; a launch in the background is left at once."""
    paths = submit(launch)
    watcher.opened(paths, launch.plan)
    if launch.in_background:
        watcher.left()
        return None
    state_file = registry.StateFile(paths)
    while not state_file.is_over():
        time.sleep(_POLL_S)
    state = registry.load(paths)
    message, fix = describe_failure(state)
    error = TfclusterError(message, fix=fix) if message else None
    return End(paths, state, Outcome(state.status, state.exit_code or 0, error))
