"""The state and the end of a run from the objects of its Job, as dicts of the API."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any, Final

from tfcluster.agent import foreign_json
from tfcluster.backends.jobs import JobEnd, JobPhase, JobState
from tfcluster.backends.kubernetes import reasons, run_pods
from tfcluster.backends.kubernetes.kube_client import Object
from tfcluster.backends.kubernetes.leadership import LEADER
from tfcluster.backends.kubernetes.reasons import Reason
from tfcluster.backends.kubernetes.run_objects import RUN_ID
from tfcluster.errors import SetupError
from tfcluster.node_loss import LossNature
from tfcluster.rundir.states import Status

ENDED: Final = "tfcluster.dev/ended"
"""The annotation of a Job with the end of its run, which is there after its pod is gone."""
_OUT_OF_MEMORY: Final = (
    "it was killed for lack of memory (OOMKilled); raise memory in"
    " runtime.kubernetes.coordinator.resources"
)


def run_of(made: Object) -> str:
    """Return the id of the run that an object belongs to."""
    metadata = made["metadata"]
    return str(metadata.get("annotations", {}).get(RUN_ID, metadata["name"]))


def describe(
    job: Object,
    pod: Object | None,
    events: Sequence[Object] = (),
    watched_s: Callable[[str], float] = lambda what: 0.0,
) -> JobState:
    """Return the state of a Job whose newest pod is `pod`.

    events: those of the pod, of the Job without one. watched_s: returns for how long this process
    has seen a reason, for which the pod waits.
    """
    name, notes = job["metadata"]["name"], job["metadata"].get("annotations", {})
    ended = f"{foreign_json.parse_json_object(notes[ENDED])['status']}; " if ENDED in notes else ""
    if _condition(job, "Complete", "Failed") is not None:
        return JobState(JobPhase.OVER, f"{ended}{_where_files_are(job)}", job=name)
    if "deletionTimestamp" in job["metadata"]:
        return JobState(JobPhase.ENDING, "it is being deleted", job=name)
    if ended:
        return JobState(JobPhase.ENDING, f"{ended}{_how_to_fetch(job, pod)}", job=name)
    if pod is None:
        refused = [each.get("message") or "" for each in events if each["reason"] == "FailedCreate"]
        if not refused:
            why = "the coordinator's pod waits: it is not made yet"
            return JobState(JobPhase.QUEUED, why, job=name)
        return _waiting(job, reasons.refused(refused[-1]), events, watched_s)
    if pod.get("status", {}).get("phase") == "Pending":
        if (reason := reasons.explain(pod, events)) is None:
            return JobState(JobPhase.QUEUED, "the coordinator's pod starts", job=name)
        return _waiting(job, reason, events, watched_s)
    ended_by = reasons.last_end(pod)
    if ended_by is not None and ended_by.nature is LossNature.PERMANENT:
        return _waiting(job, ended_by, events, watched_s)
    if why := _starts_again(pod):
        return JobState(JobPhase.QUEUED, why, job=name)
    return JobState(JobPhase.RUNNING, job=name)


def _waiting(
    job: Object, reason: Reason, events: Sequence[Object], watched_s: Callable[[str], float]
) -> JobState:
    """Return the state of a Job whose pod waits, judged as the coordinator judges a task's pod.

    A run that has had a coordinator goes on waiting: its tasks' pods may hold checkpoints.
    """
    lasted_s = max(watched_s(reason.what), reasons.reported_s(reason, events))
    end = None
    if reason.after(lasted_s).is_hopeless and LEADER not in job["metadata"].get("annotations", {}):
        why = f"the coordinator's pod cannot start: {reason}"
        end = JobEnd(why, reason.fix, exit_code=SetupError.exit_code)
    why = f"the coordinator's pod waits: {reason}"
    return JobState(JobPhase.QUEUED, why, job=job["metadata"]["name"], end=end)


def _starts_again(pod: Object) -> str:
    """Return why the coordinator's container ended that waits for its next start; else nothing."""
    for each in pod["status"].get("containerStatuses") or ():
        state = each.get("state") or {}
        ended = state.get("terminated") or {}
        if "waiting" in state:
            ended = (each.get("lastState") or {}).get("terminated", {})
        elif not ended.get("exitCode"):
            continue
        last = str(ended.get("message") or "").strip().rpartition("\n")[2]
        why = last or f"exit code {ended.get('exitCode')}, {ended.get('reason')}"
        if ended.get("reason") == "OOMKilled":  # its last line says nothing about that
            why = _OUT_OF_MEMORY
        times = each.get("restartCount", 0) + 1
        return f"the coordinator's container has ended {times} times: {why}"
    return ""


def end_of(name: str, job: Object | None) -> JobEnd:
    """Return how a Job ended."""
    if job is None:
        return JobEnd(f"the Job {name} was deleted", status=Status.INTERRUPTED)
    notes = job["metadata"].get("annotations", {})
    if ENDED in notes:
        end = foreign_json.parse_json_object(notes[ENDED])
        hint = "; ".join(filter(None, (end["hint"], _where_files_are(job))))
        return JobEnd(end["reason"] or "", hint, Status(end["status"]), end["exit_code"])
    if (failed := _condition(job, "Failed")) is not None:
        return JobEnd(f"the Job {name} failed: {failed.get('message', '')}")
    return JobEnd(f"the coordinator of the Job {name} ended without a word")


def _condition(job: Object, *kinds: str) -> dict[str, Any] | None:
    conditions = job.get("status", {}).get("conditions") or ()
    found = (one for one in conditions if one["type"] in kinds and one["status"] == "True")
    return next(found, None)


def _how_to_fetch(job: Object, pod: Object | None) -> str:
    """Return the commands that copy the files of an ended run whose pod still waits."""
    run = run_of(job)
    home = f"its files wait: `tfcluster attach {run}` fetches them where it was submitted"
    if pod is None:
        return home
    folder, metadata = f"{run_pods.STATE_FOLDER}/runs/{run}", pod["metadata"]
    copy = shlex.join(
        ["kubectl", "-n", metadata["namespace"], "cp", f"{metadata['name']}:{folder}", run]
    )
    return f"{home}, `{copy}` here"


def _where_files_are(job: Object) -> str:
    """Return where the files of a run are whose pod has ended before they were fetched."""
    if claim := run_pods.run_volume(job):
        return f"its files are in runs/{run_of(job)} on the volume {claim}"
    return "its files were not fetched in time (runtime.kubernetes.collect_s), and are lost"
