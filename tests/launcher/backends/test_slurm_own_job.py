"""The job that this process runs in, in the words of `scontrol show job` of Slurm 22.05.8."""

from __future__ import annotations

import time
from dataclasses import replace
from signal import SIGTERM, SIGUSR1

import pytest

from tfcluster.backends.jobs import Ending
from tfcluster.backends.slurm import slurm_jobs
from tfcluster.backends.slurm.slurm_commands import SlurmError

_JOB = (
    "JobId=7 JobName=x JobState={state} Reason={reason} Requeue={requeue} Restarts={restarts}"
    " BatchFlag={batch} ExitCode=0:0 EndTime={end} PreemptTime={preempted} Partition=main"
)
_RUNNING = {"state": "RUNNING", "reason": "None", "requeue": "1", "restarts": "0", "batch": "1"}


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The facts that Slurm knows; a test changes them."""
    later = str(int(time.time()) + 86_400)
    facts = {**_RUNNING, "end": later, "preempted": "None", "mode": "REQUEUE", "refusal": ""}

    def ask(*argv: str, what: str, patience_s: float = 30.0) -> str:
        if argv[:2] == ("scontrol", "requeue") and facts["refusal"]:
            raise SlurmError(what, facts["refusal"])
        if argv[:3] == ("scontrol", "show", "partition"):
            return f"PartitionName=main PreemptMode={facts['mode']} State=UP"
        return _JOB.format(**facts)

    monkeypatch.setattr(slurm_jobs, "ask", ask)
    return facts


_CANCELLED = Ending("it was cancelled (scancel)")
_BACK = Ending("it was put back into the queue", comes_back=True)
_NEAR = Ending("its time limit is near", limit="runtime.slurm.time")
_PREEMPTED = Ending("preempted by a job with a higher priority", comes_back=True)


@pytest.mark.parametrize(
    ("changes", "signal", "expected"),
    [
        ({}, SIGTERM, None),
        ({}, None, None),
        ({}, SIGUSR1, Ending("SIGUSR1 asked it to make room", comes_back=True)),
        ({"end": "100"}, SIGUSR1, replace(_NEAR, comes_back=True)),
        ({"end": "100", "requeue": "0"}, SIGUSR1, _NEAR),
        ({"end": "100"}, SIGTERM, None),  # `tfcluster down` in a short job
        ({"preempted": "100"}, SIGTERM, _PREEMPTED),
        ({"preempted": "100", "mode": "CANCEL"}, SIGTERM, Ending(_PREEMPTED.why)),
        ({"preempted": "100", "batch": "0"}, SIGTERM, Ending(_PREEMPTED.why)),
        ({"state": "COMPLETING"}, SIGTERM, _CANCELLED),
        ({"state": "CANCELLED"}, None, _CANCELLED),
        ({"state": "COMPLETING", "restarts": "1", "end": "Unknown"}, SIGTERM, _BACK),
        ({"state": "PENDING", "end": "Unknown"}, SIGTERM, _BACK),
        ({"state": "COMPLETING", "reason": "TimeLimit"}, None, Ending("its time limit is over")),
        ({"state": "TIMEOUT"}, None, Ending("its time limit is over")),
    ],
)
def test_the_end_of_a_job_has_a_reason_and_maybe_a_way_back(
    slurm: dict[str, str], changes: dict[str, str], signal: int | None, expected: Ending | None
) -> None:
    slurm.update(changes)
    assert slurm_jobs.ending("7", restarts=0, signal=signal) == expected


def test_a_job_that_is_in_the_queue_already_need_not_be_put_there(slurm: dict[str, str]) -> None:
    slurm["refusal"] = "Job is pending execution"
    slurm.update(state="COMPLETING", end="Unknown")
    slurm_jobs.requeue("7")
    slurm.update(_RUNNING)
    with pytest.raises(SlurmError, match="job 7 cannot go back into the queue"):
        slurm_jobs.requeue("7")
