"""Joins its streams to a coordinator: ``python -m tfcluster.rundir.control_client RUN_FOLDER``.

A submitted run's coordinator is reached so from another machine: by a process beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tfcluster.agent.relay import join
from tfcluster.rundir import control, registry
from tfcluster.rundir.paths import RunPaths


def main(folder: str) -> None:
    """Join stdin and stdout to the control socket of the run in `folder`, until one side closes."""
    paths = RunPaths(Path(folder))
    connection = control.connect(registry.control_socket(paths, registry.load_recorded(paths)))
    connection.setblocking(True)
    join(connection, 0, 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
