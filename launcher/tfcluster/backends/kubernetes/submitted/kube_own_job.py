"""The Job whose pod this process, a coordinator, runs in: why it ends, and its next start."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from tfcluster.backends.jobs import Ending
from tfcluster.backends.kubernetes import run_pods
from tfcluster.backends.kubernetes.kube_client import JOB_VARIABLE, Cluster, Object, reach
from tfcluster.backends.kubernetes.run_objects import STOP
from tfcluster.backends.kubernetes.submitted import kube_job_states
from tfcluster.backends.kubernetes.submitted.kube_job_states import ENDED
from tfcluster.errors import TfclusterError
from tfcluster.rundir.snapshot import RunSnapshot

STARTS: Final = "TFCLUSTER_KUBERNETES_STARTS"
"""The variable that `in_pod` sets: the number of times that the run's coordinator has started."""
STARTED: Final = "tfcluster.dev/started"
"""The annotation of a Job with the first pod that had a run folder."""
_STARTS: Final = ".starts"
_PATIENCE_S: Final = 20.0
_POLL_S: Final = 1.0
_SLACK_S: Final = 10.0


def own(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the Job and how often its coordinator was started before."""
    return environ[JOB_VARIABLE], max(0, int(environ.get(STARTS, "1")) - 1)


def can_come_back(job: str) -> bool:
    """Return True: a Job replaces its pod."""
    return True


def ending(job: str, *, restarts: int, signal: int | None) -> Ending | None:
    """Return why this pod ends; None if it does not."""
    place = here()
    made = place.get(f"batch/jobs/{job}")
    if STOP in _notes(made):
        return Ending("the run was stopped")
    pod = place.find(f"pods/{socket.gethostname()}")
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        why = "the coordinator's pod was deleted (drain, eviction or by hand)"
        return Ending(why, comes_back=True, loses_folder=not run_pods.run_volume(made))
    return None


def requeue(job: str) -> None:
    """Do nothing: the Job makes another pod once this one has ended."""


def record_end(job: str, state: RunSnapshot) -> None:
    """Note the end of the run at its Job, for machines without its folder."""
    end = {
        "status": str(state.status),
        "exit_code": state.exit_code,
        "reason": state.reason,
        "hint": state.hint,
    }
    body = {"metadata": {"annotations": {ENDED: json.dumps(end)}}}
    here().patch(f"batch/jobs/{job}", body)


def has_ended(pod: str) -> bool:
    """Return whether a kubelet has reported that another pod has ended.

    An object that is missing proves nothing: the pod of a lost node may have been removed by force.
    """
    try:
        found = here().find(f"pods/{pod}") or {}
    except TfclusterError:
        return False
    return kube_job_states.has_stopped(found)


def await_predecessors(job: str) -> None:
    """Wait until earlier pods of the Job that are being ended have ended.

    A coordinator saves its run when its pod is ended. The wait is no longer than the time that a
    kubelet gives it: that of a lost node reports nothing.
    """
    place, me, began = here(), socket.gethostname(), time.monotonic()
    while True:
        pods = place.list("pods", labels={"job-name": job})
        waits_s = [
            float(pod["spec"].get("terminationGracePeriodSeconds", 30)) + _SLACK_S
            for pod in pods
            if pod["metadata"]["name"] != me and not kube_job_states.has_stopped(pod)
        ]
        if time.monotonic() - began >= max(waits_s, default=0.0):
            return
        time.sleep(_POLL_S)


def has_run_ended(job: str) -> bool:
    """Return whether a coordinator has noted the end of the run at the Job."""
    return ENDED in _notes(here().get(f"batch/jobs/{job}"))


def is_stopped(job: str) -> bool:
    """Return whether the user has stopped the run."""
    return STOP in _notes(here().get(f"batch/jobs/{job}"))


def is_first(job: str) -> bool:
    """Note at the Job that a coordinator has a folder; return whether none had one before."""
    place = here()
    if STARTED in _notes(place.get(f"batch/jobs/{job}")):
        return False
    place.patch(f"batch/jobs/{job}", {"metadata": {"annotations": {STARTED: socket.gethostname()}}})
    return True


def has_started(folder: Path) -> bool:
    """Return whether a coordinator has started in this run folder."""
    return (folder / _STARTS).exists()


def count_start(folder: Path, *, unknown: int) -> int:
    """Count a start of the coordinator in the run folder; return how many there were.

    `unknown`: starts whose folders are lost.
    """
    path = folder / _STARTS
    count = int(path.read_text()) + 1 if path.exists() else 1 + unknown
    path.write_text(str(count))
    return count


def _notes(made: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = made["metadata"].get("annotations", {})
    return found


def here() -> Cluster:
    """Return the cluster that this pod runs in."""
    return reach(SimpleNamespace(context=None, namespace=None), patience_s=_PATIENCE_S)
