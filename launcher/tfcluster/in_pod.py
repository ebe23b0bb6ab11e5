"""The coordinator of a submitted run, in its pod: ``python -m tfcluster.in_pod RUN SECONDS``.

The pod's exec server starts it. It unpacks the run's package unless an earlier start has done that,
does what `in_job` does, notes the end of the run at its Job, and keeps the run's files for so many
seconds, in which they can be fetched. It exits with 0 then, however the run has ended: a failed pod
would be started again. With ``--stop RUN`` it asks the coordinator in the same
pod to stop its run; with ``--remove RUN`` it removes the files of a run that have been fetched.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from tfcluster import in_job
from tfcluster.agent import foreign_json
from tfcluster.agent.error_text import describe_error
from tfcluster.backends.kubernetes.kube_client import JOB_VARIABLE
from tfcluster.backends.kubernetes.kube_nodes import scale
from tfcluster.backends.kubernetes.run_objects import ENV_KEY, ROLE, run_labels
from tfcluster.backends.kubernetes.run_pods import PACKAGE_FOLDER, RUN_FOLDER
from tfcluster.backends.kubernetes.submitted import kube_own_job, kube_package
from tfcluster.backends.kubernetes.submitted.kube_own_job import NOT_COPYING
from tfcluster.coordinator.launch import open_folder
from tfcluster.coordinator.submitting import record_job
from tfcluster.errors import TfclusterError
from tfcluster.rundir import control, registry
from tfcluster.rundir.events import JobSubmitted, Warned
from tfcluster.rundir.paths import RunPaths, home
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.states import Status

_LISTENS_WITHIN_S = 45.0
"""The time in which a coordinator unpacks its run and plans it."""
_FETCHED_POLL_S = 0.5
_AGAIN = 75
"""The exit code of a coordinator whose run goes on in another pod (EX_TEMPFAIL)."""


def main(run_id: str, collect_s: float) -> int:
    """Run to the end of the run, or of this pod; return the exit code."""
    folder, job = home(), os.environ[JOB_VARIABLE]
    _take_variables(Path(RUN_FOLDER))
    if kube_own_job.has_run_ended(job):  # the pod was taken away while its files were fetched
        kube_own_job.leadership(job).take()
        return _keep_files(RunPaths.of(run_id, folder), collect_s)
    leadership = kube_own_job.leadership(job)
    leadership.require_lasting_pod()
    former = leadership.leader()
    if former is None:  # the tasks' pods start meanwhile
        leadership.take()
        scale(kube_own_job.around_pod(), run_id, up=True)
    if former not in (None, leadership.pod):
        kube_own_job.await_predecessors(job, RunPaths.of(run_id, folder))
    paths = kube_package.unpack(Path(PACKAGE_FOLDER), folder, run_id)
    kube_own_job.note_clock(job, paths)
    submitted = foreign_json.read_json_object(paths.root / kube_package.SUBMITTED)
    record_job(paths, JobSubmitted(backend="kubernetes", **submitted))
    is_first = not kube_own_job.has_started(paths)
    leadership.take()
    if is_first and former is not None:  # another pod, or this one, at an earlier start
        _go_on(paths)
    before = 0 if is_first else int((registry.load_recorded(paths).job or {}).get("restarts", 0))
    is_again = former is not None or not is_first
    os.environ[kube_own_job.RESTARTS] = str(before + is_again)
    if kube_own_job.is_stopped(job):
        paths.cancelled.touch()
    kube_own_job.keep_history(job, paths)
    in_job.main(str(paths.root))
    state = registry.load_recorded(paths)
    if not state.status.is_final:
        return _AGAIN
    try:
        kube_own_job.record_end(job, state)
    except TfclusterError as error:  # the end is still in the run folder
        sys.stderr.write(f"tfcluster: {error}\n")
    return _keep_files(paths, collect_s)


def _keep_files(paths: RunPaths, collect_s: float) -> int:
    """Wait until the files of an ended run are fetched, at most `collect_s`; return 0.

    Pods of tasks are still there if they have files that could not be gathered.
    """
    place, until = kube_own_job.around_pod(), time.monotonic() + collect_s
    labels = {**run_labels(paths.run_id), ROLE: "task"}
    while time.monotonic() < until:
        with contextlib.suppress(TfclusterError):
            if not (paths.root.exists() or place.list("pods", labels=labels)):
                break
        time.sleep(_FETCHED_POLL_S)
    scale(place, paths.run_id, up=False)
    return 0


def _take_variables(folder: Path) -> None:
    """Take the values of secret variables, and of those that the submitter's environment gives.

    They are files, so that they change neither the start of this program nor its container.
    """
    for path in folder.glob(f"{ENV_KEY}*"):
        os.environ[path.name.removeprefix(ENV_KEY)] = path.read_text()


def stop(run_id: str, *, again: bool = False) -> int:
    """Ask the coordinator of this pod to stop its run; return the exit code.

    One that stops its run already is not asked again: it would end its tasks at once. With `again`
    only one that copies the last files is asked, which aborts that; the code of one that does not
    yet is `NOT_COPYING`.
    """
    paths, until = RunPaths.of(run_id), time.monotonic() + _LISTENS_WITHIN_S
    while True:
        try:
            state = registry.load_recorded(paths)
            status = state.status
            if again and not status.is_final and state.gathering is None:
                return NOT_COPYING
            if not (status.is_final or (status is Status.STOPPING and not again)):
                paths.cancelled.touch()
                control.stop(paths.control_socket, why="tfcluster down", now=False)
            return 0
        except (OSError, ValueError, TfclusterError) as error:
            if time.monotonic() > until:
                sys.stderr.write(f"{describe_error(error)}\n")
                return 1
        time.sleep(0.2)


def _go_on(paths: RunPaths) -> None:
    """Continue the run of a coordinator whose folder is lost, as far as its Job tells about it.

    The checkpoints are in the chief's pod, from which they are gathered before the next attempt.
    """
    state = open_folder(paths)
    kube_own_job.apply_history(os.environ[JOB_VARIABLE], state)
    writer = RunWriter(state, paths)
    why = (
        "the coordinator's pod was replaced, and its folder is lost"
        " (runtime.kubernetes.run_volume keeps it): the run goes on from what the chief's pod has"
    )
    writer.record(Warned(message=why))
    writer.save()
    writer.close(keeps_reserve=True)


def _entry() -> NoReturn:
    try:
        match sys.argv[1:]:
            case ["--stop", run_id]:
                code = stop(run_id)
            case ["--stop-again", run_id]:
                code = stop(run_id, again=True)
            case ["--remove", run_id]:
                kube_package.remove(home(), run_id)
                code = 0
            case _:
                code = main(sys.argv[1], float(sys.argv[2]))
    except (TfclusterError, OSError) as error:  # the last line is what the watching `up` shows
        sys.stderr.write(f"tfcluster: {describe_error(error)}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _entry()
