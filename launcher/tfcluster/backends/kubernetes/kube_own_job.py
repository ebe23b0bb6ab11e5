"""The Job of a coordinator, as others see it and as the process in its own pod does."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from tfcluster.agent import foreign_json
from tfcluster.backends.jobs import Ending, JobEnd, JobState, Phase
from tfcluster.backends.kubernetes import pod_reasons
from tfcluster.backends.kubernetes.kube_client import JOB_VARIABLE, Cluster, Object, reach
from tfcluster.backends.kubernetes.run_objects import STOP
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.states import Status

ENDED: Final = "tfcluster.dev/ended"
"""The annotation of a Job with the end of its run, which is there after its pod is gone."""
STARTS: Final = "TFCLUSTER_KUBERNETES_STARTS"
"""The variable that `in_pod` sets: the number of times that the run's coordinator has started."""
_PATIENCE_S: Final = 20.0


def describe(job: Object, pod: Object | None) -> JobState:
    """Return the state of a Job whose newest pod is `pod`."""
    name, notes = job["metadata"]["name"], job["metadata"].get("annotations", {})
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return JobState(Phase.OVER, job=name)
    if "deletionTimestamp" in job["metadata"]:
        return JobState(Phase.ENDING, "it is being deleted", job=name)
    if ENDED in notes:
        status = foreign_json.parse_json_object(notes[ENDED])["status"]
        return JobState(Phase.ENDING, f"{status}; its files wait to be fetched", job=name)
    if pod is None:
        return JobState(Phase.QUEUED, "the coordinator's pod is not made yet", job=name)
    if pod.get("status", {}).get("phase") == "Pending":
        reason = pod_reasons.explain(pod, ())
        why = f"the coordinator's pod waits: {reason}" if reason else ""
        return JobState(Phase.QUEUED, why, job=name)
    return JobState(Phase.RUNNING, job=name)


def end_of(name: str, job: Object | None) -> JobEnd:
    """Return how a Job ended."""
    if job is None:
        return JobEnd(f"the Job {name} was deleted", status=Status.INTERRUPTED)
    notes = job["metadata"].get("annotations", {})
    if ENDED in notes:
        end = foreign_json.parse_json_object(notes[ENDED])
        return JobEnd(
            end["reason"] or "",
            end["hint"] or "",
            Status(end["status"]),
            exit_code=end["exit_code"],
        )
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["type"] == "Failed":
            return JobEnd(f"the Job {name} failed: {condition.get('message', '')}")
    return JobEnd(f"the coordinator of the Job {name} ended without a word")


def own(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the Job and how often its coordinator was started before."""
    return environ[JOB_VARIABLE], max(0, int(environ.get(STARTS, "1")) - 1)


def can_come_back(job: str) -> bool:
    """Return True: a Job replaces its pod."""
    return True


def ending(job: str, *, restarts: int, signal: int | None) -> Ending | None:
    """Return why this pod ends; None if it does not."""
    place = here()
    notes = place.get(f"batch/jobs/{job}")["metadata"].get("annotations", {})
    if STOP in notes:
        return Ending("the run was stopped")
    pod = place.find(f"pods/{socket.gethostname()}")
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return Ending("the coordinator's pod was deleted (drain, eviction or by hand)", True)
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


def is_gone(pod: str) -> bool:
    """Return whether another pod of the namespace has ended for certain."""
    found = here().find(f"pods/{pod}")
    return found is None or found.get("status", {}).get("phase") in ("Succeeded", "Failed")


def count_start(folder: Path) -> int:
    """Count a start of the coordinator in the run folder; return how many there were."""
    path = folder / ".starts"
    count = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(count))
    return count


def here() -> Cluster:
    """Return the cluster that this pod runs in."""
    return reach(SimpleNamespace(context=None, namespace=None), patience_s=_PATIENCE_S)
