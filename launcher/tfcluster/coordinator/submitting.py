"""Submitted runs, whose coordinator runs in a job of a scheduler: `submit` and watch, or leave."""

from __future__ import annotations

import sys
import time
from collections import Counter

from tfcluster.backends import jobs
from tfcluster.coordinator.foreground import End, Launch, Watcher, make_folder
from tfcluster.coordinator.resume import seed
from tfcluster.errors import TfclusterError
from tfcluster.rundir import registry, run_writer
from tfcluster.rundir.events import JobSubmitted, RunQueued, Warned
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
        its = jobs.of_backend(launch.plan.nodes[0].backend)
        assert its is not None
        if launch.resume is not None:
            seed(launch.resume, paths.checkpoints)
            writer.record(launch.resume.event())
        submission = _submission(launch, paths)
        job = its.submit(submission)
    except TfclusterError:
        writer.close()
        registry.delete(paths)
        raise
    for warning in its.warnings(submission):
        writer.record(Warned(message=warning))
    writer.record(JobSubmitted(backend=launch.plan.nodes[0].backend, id=job))
    writer.record(RunQueued(reason=f"job {job}"))
    writer.close()
    return paths


def _submission(launch: Launch, paths: RunPaths) -> jobs.Submission:
    assert launch.runtime is not None
    on_nodes = Counter(task.node for task in launch.plan.tasks)
    return jobs.Submission(
        run_id=paths.run_id,
        folder=paths.root,
        # -P: no module is imported from the current folder.
        argv=(sys.executable, "-P", "-m", "tfcluster.in_job", str(paths.root)),
        runtime=launch.runtime,
        nodes=len(launch.plan.nodes),
        tasks_per_node=max(on_nodes.values()),
        save_s=max(120.0, 60.0 + launch.plan.supervision.grace_s),
        run_deadline_s=launch.plan.supervision.run_deadline_s,
    )


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
