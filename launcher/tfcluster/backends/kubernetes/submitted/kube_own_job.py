"""The Job whose pod this process, a coordinator, runs in: why it ends, and its next start."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Final

from tfcluster.agent import foreign_json
from tfcluster.backends.jobs import Ending
from tfcluster.backends.kubernetes import reasons, run_pods
from tfcluster.backends.kubernetes.kube_client import (
    JOB_VARIABLE,
    KubeCluster,
    KubeSilentError,
    Object,
    reach,
)
from tfcluster.backends.kubernetes.leadership import Leadership
from tfcluster.backends.kubernetes.run_objects import STOP
from tfcluster.backends.kubernetes.submitted.kube_job_states import ENDED
from tfcluster.backends.kubernetes.submitted.kube_package import SUBMITTED_AT
from tfcluster.errors import TfclusterError
from tfcluster.rundir import heartbeat, registry
from tfcluster.rundir.goodput import Goodput
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.typed_json import from_json, to_json

RESTARTS: Final = "TFCLUSTER_KUBERNETES_RESTARTS"
"""The variable that `in_pod` sets: how often the run's coordinator was started before."""
HISTORY: Final = "tfcluster.dev/history"
"""The annotation of a Job with what its coordinators have used of the run's limits."""
NOT_COPYING: Final = 3
"""The exit code of ``--stop-again`` for a coordinator whose tasks have not ended."""
_HISTORY_POLL_S, _HISTORY_S = 1.0, 600.0
_MOST_RESTARTS: Final = 500
"""The newest restarts, which are noted: all annotations of an object have 256 KiB."""
_PROGRESS: Final = frozenset({"newest_at_start", "vain_starts"})
"""Fields of the state by which starts that have saved nothing are counted."""
_PATIENCE_S: Final = 20.0
_POLL_S: Final = 1.0
_SILENT_S: Final = 30.0
"""Seconds without a beat after which a coordinator on a volume writes nothing any more."""
_SLACK_S: Final = 10.0
_SAME_CLOCK_S: Final = 10.0


def own(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the Job and how often its coordinator was started before."""
    return environ[JOB_VARIABLE], int(environ.get(RESTARTS, "0"))


def can_come_back(job: str) -> bool:
    """Return True: a Job replaces its pod."""
    return True


def ending(job: str, *, restarts: int, signal: int | None) -> Ending | None:
    """Return why this pod ends; None if it does not.

    The user's `down` comes through the control socket, never as a signal. So a signal says that
    the cluster ends the pod, which shows on the pod later, or never (kubelet: nodeshutdown).
    """
    cluster = around_pod()
    try:
        own_job = cluster.find(f"batch/jobs/{job}")
        if own_job is None or "deletionTimestamp" in own_job["metadata"]:
            return Ending(f"the Job {job} was deleted")
        if STOP in _notes(own_job):
            return Ending("the run was stopped")
        pod = cluster.find(f"pods/{socket.gethostname()}")
    except KubeSilentError:
        reason = "the coordinator's pod is ended, and the API server does not answer"
        return None if signal is None else Ending(reason, comes_back=True, loses_folder=True)
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        reason = "the coordinator's pod was deleted (drain, eviction or by hand)"
    elif signal is not None:
        reason = "the coordinator's pod is ended by its node (shutdown, or pressure)"
    else:
        return None
    return Ending(reason, comes_back=True, loses_folder=not run_pods.run_volume(own_job))


def requeue(job: str) -> None:
    """Do nothing: the Job makes another pod once this one has ended."""


def leadership(job: str) -> Leadership:
    """Return the lead of the Job's run, as this pod sees it."""
    return Leadership(around_pod(), job)


def record_end(job: str, state: RunSnapshot) -> None:
    """Note the end of the run at its Job, for machines without its folder."""
    end = {
        "status": str(state.status),
        "exit_code": state.exit_code,
        "reason": state.reason,
        "hint": state.hint,
    }
    body = {"metadata": {"annotations": {ENDED: json.dumps(end)}}}
    leadership(job).require()
    around_pod().patch(f"batch/jobs/{job}", body)


def await_predecessors(job: str, paths: RunPaths) -> None:
    """Wait until no earlier pod of the Job saves its run, or writes into the folder on a volume.

    Without a volume the wait is no longer than the time that a kubelet gives a pod: that of a lost
    node reports nothing. On a volume, a predecessor that was cut off may go on for as long as its
    heartbeat shows. An object that is missing proves nothing: the pod of a lost node may have been
    removed by force.
    """
    cluster, me, began = around_pod(), socket.gethostname(), time.monotonic()
    while True:
        pods = {
            each["metadata"]["name"]: each
            for each in cluster.list("pods", labels={"job-name": job})
        }
        ended = {name for name, pod in pods.items() if reasons.has_terminated(pod)}
        if (holder := heartbeat.host_of(paths)) is not None and holder != me:
            silent_s = heartbeat.silent_s(paths)
            is_over = holder in ended or (silent_s is not None and silent_s >= _SILENT_S)
        else:
            graces_s = [
                float(pods[name]["spec"].get("terminationGracePeriodSeconds", 30)) + _SLACK_S
                for name in pods.keys() - ended - {me}
            ]
            is_over = time.monotonic() - began >= max(graces_s, default=0.0)
        if is_over:
            return
        time.sleep(_POLL_S)


def has_run_ended(job: str) -> bool:
    """Return whether a coordinator has noted the end of the run at the Job."""
    return ENDED in _notes(around_pod().get(f"batch/jobs/{job}"))


def is_stopped(job: str) -> bool:
    """Return whether the user has stopped the run."""
    return STOP in _notes(around_pod().get(f"batch/jobs/{job}"))


def has_started(paths: RunPaths) -> bool:
    """Return whether a coordinator has started in this run folder: it has claimed it."""
    return heartbeat.host_of(paths) is not None


def note_clock(job: str, paths: RunPaths) -> None:
    """Note in a new folder's state by how much the submitter's clock is wrong, if that is more than
    the time in which a Job is made.

    The clock of the cluster, by which a Job is dated, counts as right.
    """
    if has_started(paths):
        return
    submitted_at = foreign_json.parse_json((paths.root / SUBMITTED_AT).read_bytes())
    created_at = around_pod().get(f"batch/jobs/{job}")["metadata"]["creationTimestamp"]
    ahead_s = submitted_at - datetime.fromisoformat(created_at).timestamp()
    if abs(ahead_s) > _SAME_CLOCK_S:
        state = registry.load_recorded(paths)
        state.clock_ahead_s = round(ahead_s, 3)
        RunWriter(state, paths).close(keeps_reserve=True)


def keep_history(job: str, paths: RunPaths) -> None:
    """Note at the Job, in a thread, what a successor without the run folder must know.

    These are the attempts and restarts so far, which have limits, and how long the run has run.
    """
    threading.Thread(target=_keep_history, args=(job, paths), name="history", daemon=True).start()


def _keep_history(job: str, paths: RunPaths) -> None:
    noted, due = None, 0.0
    while True:
        with contextlib.suppress(TfclusterError, OSError):
            state = registry.load_recorded(paths)
            key = (state.attempt, len(state.restarts), state.newest_at_start)
            if key != noted or time.monotonic() >= due:
                restarts = state.restarts[-_MOST_RESTARTS:]
                history = {"attempt": state.attempt, "restarts": restarts, "ran_s": _ran_s(state)}
                history |= {name: getattr(state, name) for name in _PROGRESS}
                history["goodput"] = to_json(state.goodput)
                body = {"metadata": {"annotations": {HISTORY: json.dumps(history)}}}
                leadership(job).require()
                around_pod().patch(f"batch/jobs/{job}", body)
                noted, due = key, time.monotonic() + _HISTORY_S
        time.sleep(_HISTORY_POLL_S)


def _ran_s(state: RunSnapshot) -> float:
    before = float((state.continued or {}).get("ran_s", 0.0))
    return round(before + (0.0 if state.began_at is None else time.time() - state.began_at), 3)


def apply_history(job: str, state: RunSnapshot) -> None:
    """Apply what earlier coordinators have noted (`keep_history`) to the state of the run."""
    notes = _notes(around_pod().get(f"batch/jobs/{job}"))
    history = foreign_json.parse_json_object(notes.get(HISTORY, "{}"))
    state.attempt = max(state.attempt, history.get("attempt", 0))
    state.restarts[:] = history.get("restarts", [])
    for name in _PROGRESS & history.keys():
        setattr(state, name, history[name])
    if (goodput := history.get("goodput")) is not None:
        state.goodput = from_json(Goodput, goodput)
    state.continued = {"attempt": state.attempt + 1, "ran_s": history.get("ran_s", 0.0)}


def _notes(of_job: Object) -> Mapping[str, str]:
    notes: Mapping[str, str] = of_job["metadata"].get("annotations", {})
    return notes


def around_pod() -> KubeCluster:
    """Return the cluster that this pod runs in."""
    return reach(SimpleNamespace(context=None, namespace=None), patience_s=_PATIENCE_S)
