"""Asks the coordinator of a run on this machine: ``python -m tfcluster.rundir.control_client``.

A submitted run's coordinator is asked so from another machine: by a process beside it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tfcluster.agent import foreign_json
from tfcluster.rundir import control, registry
from tfcluster.rundir.paths import RunPaths


def main(folder: str, request: str) -> None:
    """Print the reply of the coordinator of the run in `folder` to a request, as JSON."""
    paths = RunPaths(Path(folder))
    path = registry.control_socket(paths, registry.load_recorded(paths))
    reply = control.ask(path, foreign_json.parse_json_object(request.encode()), control.STACKS_S)
    sys.stdout.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
