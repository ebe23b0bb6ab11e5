"""`tfcluster restart`: start a run again, from its newest checkpoint."""

from __future__ import annotations

import click

from tfcluster.api import make_launch
from tfcluster.backends import job_watch
from tfcluster.cli.completion import run_names
from tfcluster.cli.ending import stop_and_clean_up
from tfcluster.cli.options import Display, launch_options, skip_options
from tfcluster.cli.starting import launch, preimport
from tfcluster.coordinator import resume
from tfcluster.coordinator.resume import NoCheckpointError, Resume
from tfcluster.discovery import planning
from tfcluster.discovery.planning import Planned
from tfcluster.errors import NodeLostError, SetupError, UsageError
from tfcluster.plans.command import function_folders
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.spec import LaunchOptions
from tfcluster.ui.terminal import Terminal


@click.command("restart")
@click.argument("run", shell_complete=run_names)
@launch_options(*skip_options("the nodes"))
def restart(run: str, options: LaunchOptions, display: Display) -> int:
    """Start RUN again with the same spec, from its newest checkpoint.

    A live run is stopped first, as `down` does, once its spec is known to be fit for a start. A
    run without a checkpoint starts from the beginning. What starts is a new run; RUN keeps its
    folder. `tfcluster up --resume RUN` changes the spec or takes an earlier checkpoint. Exit
    codes: those of `up`.
    """
    terminal, paths = Terminal(), registry.resolve(run)
    planned = _plan_again(paths)
    if registry.is_open(job_watch.load(paths)):
        errors: list[SetupError] = []
        stop_and_clean_up([paths], terminal, errors)
        NodeLostError.raise_all(errors)
    newest = _find_newest(paths, planned, terminal)
    return launch(make_launch(planned, options, resume=newest), display)


def _plan_again(paths: RunPaths) -> Planned:
    """Plan the spec of a run again, for the same tasks. Raises UsageError and what `plan` does."""
    before = registry.load_plan(paths)
    if before.joins:
        raise UsageError(
            f"{paths.run_id} was started by `tfcluster join`, as a part of a cluster",
            fix="start `tfcluster join` again on all machines",
        )
    if function_folders(before):
        raise UsageError(
            f"{paths.run_id} ran a function, whose code is kept only during its run",
            fix="call it again from Python: tfcluster.run(function)",
        )
    started_by_hand = [str(task.id) for task in before.elsewhere]
    return planning.plan(paths, meanwhile=preimport).without_tasks(started_by_hand)


def _find_newest(paths: RunPaths, planned: Planned, terminal: Terminal) -> Resume | None:
    try:
        return resume.find(paths.run_id, terminal.say_wrapped, takes_older=False)
    except NoCheckpointError:
        shared = planned.plan.checkpoints.dir
        what = f"its tasks read {shared}" if shared else "it starts from the beginning"
        terminal.say_wrapped(f"{paths.run_id} has gathered no checkpoint: {what}")
        return None
