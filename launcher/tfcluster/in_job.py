"""The coordinator of a submitted run, in its job: ``python -m tfcluster.in_job RUN_FOLDER``.

It plans the run's spec again, in the environment of the job: secrets are never in the folder. When
the scheduler takes the nodes away, the run is saved, and its job goes back into the queue.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from tfcluster.agent import foreign_json
from tfcluster.api import make_launch
from tfcluster.backends import past_runs
from tfcluster.coordinator.foreground import WARNING, Session, open_folder, signals_held_back
from tfcluster.coordinator.submitting import take_over
from tfcluster.discovery.planning import plan_file
from tfcluster.errors import TfclusterError
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.supervision.decisions import Outcome


def main(folder: str) -> int:
    """Run the run in `folder` to its end, or to the end of the job's nodes."""
    paths = RunPaths(Path(folder))
    os.environ["TFCLUSTER_HOME"] = str(paths.root.parent.parent)  # it may have been relative
    if (state := take_over(paths)).status.is_final:  # the job was started once more by hand
        return state.exit_code or 0
    try:
        launch = make_launch(plan_file(paths), **foreign_json.read_json_object(paths.launch))
    except TfclusterError as error:  # the environment or the files have changed meanwhile
        return _fail(paths, error)
    with signals_held_back(WARNING):
        session = Session(launch, paths)
        end = session.run(lambda plan: None)
    if end.outcome.error is not None:
        sys.stderr.write(f"tfcluster: {end.outcome.error}\n")
    if not end.outcome.comes_back:
        past_runs.forget(paths.run_id)  # the job ends with this process
    return end.outcome.exit_code


def _fail(paths: RunPaths, error: TfclusterError) -> int:
    """Record that the run could not be planned again; return its exit code."""
    sys.stderr.write(f"tfcluster: {error}\n")
    writer = RunWriter(open_folder(paths), paths)
    writer.record(Outcome.of(error).event())
    writer.close()
    past_runs.forget(paths.run_id)
    return error.exit_code


def _entry() -> NoReturn:
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _entry()
