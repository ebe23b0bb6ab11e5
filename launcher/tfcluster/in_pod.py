"""The coordinator of a submitted run, in its pod: ``python -m tfcluster.in_pod RUN``.

The pod's first program, the seat, starts it. It unpacks the run's package unless an earlier start
has done that, does what `in_job` does, and notes the end of the run at its Job. It exits with 0
once the run has ended, however it did: a failed pod would be started again. With ``--stop`` it asks
the coordinator in the same pod to stop its run.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

from tfcluster import in_job
from tfcluster.agent import foreign_json
from tfcluster.agent.error_text import describe_error
from tfcluster.backends.kubernetes import kube_own_job, kube_package
from tfcluster.backends.kubernetes.kube_client import JOB_VARIABLE
from tfcluster.backends.kubernetes.run_pods import PACKAGE_FOLDER
from tfcluster.coordinator.submitting import record_job
from tfcluster.errors import TfclusterError
from tfcluster.rundir import control, registry
from tfcluster.rundir.events import JobSubmitted
from tfcluster.rundir.paths import home

_POLL_S = 2.0
_LISTENS_WITHIN_S = 10.0
_AGAIN = 75
"""The exit code of a coordinator whose run goes on in another pod (EX_TEMPFAIL)."""


def main(run_id: str) -> int:
    """Run to the end of the run, or of this pod; return the exit code."""
    folder, job = home(), os.environ[JOB_VARIABLE]
    _take_lease(folder, run_id)
    paths = kube_package.unpack(Path(PACKAGE_FOLDER), folder, run_id)
    submitted = foreign_json.read_json_object(paths.root / kube_package.SUBMITTED)
    record_job(paths, JobSubmitted(backend="kubernetes", **submitted))
    os.environ[kube_own_job.STARTS] = str(kube_own_job.count_start(paths.root))
    in_job.main(str(paths.root))
    state = registry.load_recorded(paths)
    if not state.status.is_final:
        return _AGAIN
    try:
        kube_own_job.record_end(job, state)
    except TfclusterError as error:  # the end is still in the run folder
        sys.stderr.write(f"tfcluster: {error}\n")
    return 0


def stop() -> int:
    """Ask the coordinator of this pod to stop its run; return the exit code."""
    until = time.monotonic() + _LISTENS_WITHIN_S
    while True:
        found = [paths for paths, state in registry.runs() if not state.status.is_final]
        try:
            for paths in found:
                paths.cancelled.touch()
                control.stop(paths.control_socket, why="tfcluster down", now=False)
            return 0
        except (OSError, ValueError) as error:
            if time.monotonic() > until:
                sys.stderr.write(f"{describe_error(error)}\n")
                return 1
        time.sleep(0.2)


def _take_lease(folder: Path, run_id: str) -> None:
    """Wait until no other pod coordinates the run whose folder is on this volume."""
    lease, own = folder / f".coordinator-{run_id}", socket.gethostname()
    with contextlib.suppress(FileNotFoundError):
        while (other := lease.read_text().strip()) not in ("", own):
            if kube_own_job.is_gone(other):
                break
            time.sleep(_POLL_S)
    lease.write_text(own)


def _entry() -> NoReturn:
    code = stop() if sys.argv[1] == "--stop" else main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _entry()
