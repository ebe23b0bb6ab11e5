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
from tfcluster.coordinator.foreground import WARNING, Session, signals_held_back
from tfcluster.discovery.planning import plan_file
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths


def main(folder: str) -> int:
    """Run the run in `folder` to its end, or to the end of the job's nodes."""
    paths = RunPaths(Path(folder))
    if (state := registry.load(paths)).status.is_final:  # the job was started once more by hand
        return state.exit_code or 0
    options = foreign_json.read_json_object(paths.launch)
    launch = make_launch(plan_file(paths), **options)
    with signals_held_back(WARNING):
        session = Session(launch, paths)
        end = session.run(lambda plan: None)
    if end.outcome.error is not None:
        sys.stderr.write(f"tfcluster: {end.outcome.error}\n")
    if not end.outcome.comes_back:
        past_runs.forget(paths.run_id)  # the job ends with this process
    return end.outcome.exit_code


def _entry() -> NoReturn:
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _entry()
