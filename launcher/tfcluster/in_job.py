"""The coordinator of a submitted run, in its job: ``python -m tfcluster.in_job RUN_FOLDER``.

It plans the run's spec again, in the environment of the job: secrets are never in the folder. When
the scheduler takes the nodes away, the run is saved, and its job goes back into the queue.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from signal import SIGTERM
from typing import NoReturn

from tfcluster.agent import foreign_json
from tfcluster.api import make_launch
from tfcluster.backends import past_runs
from tfcluster.coordinator import on_end
from tfcluster.coordinator.foreground import RunSession
from tfcluster.coordinator.launch import SIGNALS, open_folder, signals_held_back
from tfcluster.coordinator.submitting import take_over
from tfcluster.discovery import planning
from tfcluster.errors import TfclusterError
from tfcluster.plans.secrets import find_values, redact_error
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.states import Status
from tfcluster.spec import LaunchOptions
from tfcluster.supervision.decisions import Outcome
from tfcluster.typed_json import from_json


def main(folder: str) -> int:
    """Run the run in `folder` to its end, or to the end of the job's nodes."""
    paths = RunPaths(Path(folder))
    os.environ["TFCLUSTER_HOME"] = str(paths.root.parent.parent)  # it may have been relative
    if (state := take_over(paths)).status.is_final:  # the job was started once more by hand
        return state.exit_code or 0
    if paths.cancelled.exists():  # the job was queued again while it was being ended
        return _end(paths, Outcome(Status.INTERRUPTED, SIGNALS[SIGTERM].exit_code))
    options = from_json(LaunchOptions, foreign_json.read_json_object(paths.launch))
    try:
        launch = make_launch(planning.plan(paths), options)
    except TfclusterError as error:  # the environment or the files have changed meanwhile
        return _end(paths, Outcome.of(error))
    with signals_held_back():
        session = RunSession(launch, paths)
        end = session.run(lambda plan: None)
    if end.outcome.error is not None:
        sys.stderr.write(f"tfcluster: {end.outcome.error}\n")
    if not end.outcome.comes_back:
        past_runs.forget(paths.run_id)  # the job ends with this process
    return end.outcome.exit_code


def _end(paths: RunPaths, outcome: Outcome) -> int:
    """Record the end of a run that does not start; return its exit code."""
    plan = registry.load_plan(paths)
    writer = RunWriter(open_folder(paths), paths, secrets=find_values(plan, os.environ))
    if outcome.error is not None:
        redact_error(outcome.error, writer.secrets)
        sys.stderr.write(f"tfcluster: {outcome.error}\n")
    writer.record(outcome.event())
    on_end.tell(writer, plan)
    writer.close()
    past_runs.forget(paths.run_id)
    return outcome.exit_code


def _entry() -> NoReturn:
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _entry()
