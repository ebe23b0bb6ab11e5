"""The state and the end of a run as its Job and its pod, JSON of the API, show them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tfcluster.backends.jobs import JobPhase
from tfcluster.backends.kubernetes.leadership import LEADER
from tfcluster.backends.kubernetes.submitted.kube_job_states import ENDED, describe, end_of
from tfcluster.rundir.states import Status

END = {"status": "failed", "exit_code": 4, "reason": "worker:1 failed", "hint": None}
FAILED = {"terminated": {"exitCode": 1, "reason": "Error", "message": "Traceback\nno disk\n"}}
RESTARTING: dict[str, Any] = {
    "metadata": {"name": "r-x1", "namespace": "vision"},
    "status": {
        "phase": "Running",
        "containerStatuses": [
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": FAILED,
                "restartCount": 2,
            }
        ],
    },
}
POD = {"metadata": {"name": "r-x1", "namespace": "vision"}, "status": {"phase": "Running"}}


def job(
    *, ended: bool = False, condition: str = "", deleted: bool = False, claim: str = ""
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "r", "annotations": {"tfcluster.dev/run-id": "r-1"}}
    if ended:
        metadata["annotations"][ENDED] = json.dumps(END)
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    volume: dict[str, Any] = {"name": "tfcluster-runs", "emptyDir": {}}
    if claim:
        volume = {"name": "tfcluster-runs", "persistentVolumeClaim": {"claimName": claim}}
    conditions = [{"type": condition, "status": "True", "message": "BackoffLimitExceeded"}]
    return {
        "metadata": metadata,
        "spec": {"template": {"spec": {"volumes": [volume]}}},
        "status": {"conditions": conditions if condition else []},
    }


def test_a_job_whose_pod_is_refused_says_why() -> None:
    text = "exceeded quota: few, requested: pods=1, used: pods=3, limited: pods=3"
    message = f'Error creating: pods "r-x1" is forbidden: {text}'
    event = {"reason": "FailedCreate", "message": message}
    state = describe(job(), None, [event])
    assert state.phase is JobPhase.QUEUED
    assert "exceeded quota: few" in state.reason


def pending(state: str, message: str) -> dict[str, Any]:
    """Return a coordinator's pod whose container waits."""
    container = {"name": "coordinator", "state": {"waiting": {"reason": state, "message": message}}}
    status = {"phase": "Pending", "containerStatuses": [container]}
    spec = {"nodeName": "n1", "containers": [{"image": "train:8"}]}
    return {"metadata": POD["metadata"], "spec": spec, "status": status}


def failed_pulls(count: int) -> list[dict[str, Any]]:
    message = 'Failed to pull image "train:8": rpc error: "train:8": not found'
    return [{"reason": "Failed", "message": message, "count": count}]


NO_IMAGE = pending("ImagePullBackOff", 'rpc error: "train:8": not found')
UNMOUNTED = {**NO_IMAGE, "status": {"phase": "Pending"}}
MOUNT = {"reason": "FailedMount", "message": "hostPath type check failed: /data is not a directory"}
TIMES = {"firstTimestamp": "2026-01-01T10:00:00Z", "lastTimestamp": "2026-01-01T10:05:01Z"}
NO_PYTHON = {"exitCode": 128, "reason": "StartError", "message": "python3: not found"}


def crashing(ended: dict[str, Any]) -> dict[str, Any]:
    container = {**RESTARTING["status"]["containerStatuses"][0], "name": "coordinator"}
    container["lastState"] = {"terminated": ended}
    return {**RESTARTING, "status": {"phase": "Running", "containerStatuses": [container]}}


@pytest.mark.parametrize(
    ("pod", "events", "watched_s", "said"),
    [
        (pending("InvalidImageName", "couldn't parse image"), [], 0, "InvalidImageName"),
        (NO_IMAGE, failed_pulls(1), 59, ""),
        (NO_IMAGE, failed_pulls(1), 60, "the image train:8 cannot be pulled"),
        (NO_IMAGE, failed_pulls(3), 0, "the image train:8"),
        (UNMOUNTED, [MOUNT], 299, ""),
        (UNMOUNTED, [MOUNT], 300, "hostPath type check failed"),
        (UNMOUNTED, [MOUNT | TIMES], 0, "hostPath type check failed"),
        (crashing(NO_PYTHON), [], 0, "StartError: python3: not found"),
        (crashing({"exitCode": 1, "reason": "Error"}), [], 10**6, ""),
    ],
)
def test_a_coordinator_that_cannot_start_is_judged_as_a_tasks_pod_is(
    pod: dict[str, Any], events: list[dict[str, Any]], watched_s: float, said: str
) -> None:
    state = describe(job(), pod, events, lambda what: watched_s)
    assert state.phase is JobPhase.QUEUED
    if not said:
        assert state.end is None
        return
    assert state.end is not None
    assert state.end.reason.startswith("the coordinator's pod cannot start: ")
    assert said in state.end.reason
    assert (state.end.status, state.end.exit_code) == (Status.FAILED, 3)
    assert state.end.fix


def test_a_pull_and_its_back_off_take_turns_with_one_reason() -> None:
    pulled = pending("ErrImagePull", 'rpc error: "train:8": not found')
    backing_off = pending("ImagePullBackOff", 'Back-off pulling image "train:8"')
    pods = (pulled, backing_off)
    assert len({describe(job(), pod, failed_pulls(1)).reason for pod in pods}) == 1


def test_a_coordinators_successor_waits_on_because_pods_may_hold_checkpoints() -> None:
    made = job()
    made["metadata"]["annotations"][LEADER] = "r-x0"
    state = describe(made, NO_IMAGE, failed_pulls(9), lambda what: 10**6)
    assert state.end is None
    assert "the image train:8" in state.reason


def test_a_coordinator_that_is_larger_than_the_quota_never_starts() -> None:
    text = "exceeded quota: few, requested: pods=1, used: pods=0, limited: pods=0"
    state = describe(job(), None, [{"reason": "FailedCreate", "message": text}])
    assert state.end is not None
    assert "more than the quota allows" in state.end.fix


@pytest.mark.parametrize(
    ("made", "pod", "phase", "said"),
    [
        (job(), None, JobPhase.QUEUED, "not made yet"),
        (job(), POD, JobPhase.RUNNING, ""),
        (job(), {**POD, "status": {"phase": "Pending"}}, JobPhase.QUEUED, ""),
        (job(), RESTARTING, JobPhase.QUEUED, "container has ended 3 times: no disk"),
        (job(deleted=True), POD, JobPhase.ENDING, "being deleted"),
        (job(ended=True), POD, JobPhase.ENDING, "cp r-x1:/tfcluster/state/runs/r-1 r-1"),
        (job(ended=True), POD, JobPhase.ENDING, "`tfcluster attach r-1` fetches them"),
        (job(ended=True, condition="Complete"), None, JobPhase.OVER, "failed; its files were not"),
        (
            job(ended=True, condition="Complete", claim="runs"),
            None,
            JobPhase.OVER,
            "in runs/r-1 on the volume runs",
        ),
    ],
)
def test_the_state_of_a_job(
    made: dict[str, Any], pod: dict[str, Any] | None, phase: JobPhase, said: str
) -> None:
    state = describe(made, pod)
    assert state.phase is phase
    assert said in state.reason


def test_a_coordinator_that_was_killed_for_memory_says_so_and_what_to_raise() -> None:
    """The last line of its log is what the exec server has written at its start."""
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": "listening on port 7077\n"}
    killed = json.loads(json.dumps(RESTARTING))
    status = killed["status"]["containerStatuses"][0]
    # A kubelet calls it waiting only some seconds later.
    for shown in ({"lastState": {"terminated": ended}}, {"state": {"terminated": ended}}):
        status |= shown
        state = describe(job(), killed)
        assert state.phase is JobPhase.QUEUED
        assert "ended 3 times: it was killed for lack of memory (OOMKilled)" in state.reason
        assert "runtime.kubernetes.coordinator.resources" in state.reason
    status["state"] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    assert describe(job(), killed).phase is JobPhase.RUNNING


def test_the_end_is_the_one_that_the_coordinator_has_left() -> None:
    end = end_of("r", job(ended=True, condition="Complete", claim="runs"))
    assert (end.status, end.exit_code, end.reason) == (Status.FAILED, 4, "worker:1 failed")
    assert "on the volume runs" in end.fix


def test_the_end_of_a_job_without_one() -> None:
    assert end_of("r", None).status is Status.INTERRUPTED
    assert "BackoffLimitExceeded" in end_of("r", job(condition="Failed")).reason
    assert "without a word" in end_of("r", job()).reason
