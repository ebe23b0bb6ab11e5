"""Jobs of runs in what Slurm's commands print; the texts are those of Slurm 22.05.8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launcher.backends.conftest import Stub

from tfcluster.backends.jobs import JobPhase, JobState
from tfcluster.backends.past_runs import SilentError
from tfcluster.backends.slurm import slurm_jobs
from tfcluster.rundir.states import Status

RUN = "far-20261123-161051-7mqd"
HOME = "/home/ann/.local/state/tfcluster/runs"
OURS = f"{RUN}|tfcluster:{HOME}/{RUN}"
SHOWN = "JobId=7 JobName=x Priority=1 JobState={} Reason=None Requeue=1 ExitCode={} BatchHost=n1"

Answering = Callable[..., None]


@pytest.fixture
def answering(stub: Stub) -> Answering:
    """Return a function that has one of Slurm's commands print a text, or fail with it."""

    def answer(command: str, text: str, code: int = 0) -> None:
        path = stub(command, f"cat $0.text {'>&2' if code else ''}\nexit {code}")
        path.with_name(f"{command}.text").write_text(text)

    return answer


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("7|PENDING|N/A|N/A|None|", JobState(JobPhase.QUEUED)),
        ("7|PENDING|17954|NONE|Priority|", JobState(JobPhase.QUEUED, "Priority", 17954.0)),
        ("7|PENDING|N/A|N/A|JobHeldUser|",
         JobState(JobPhase.QUEUED, "JobHeldUser: `scontrol release 7` lets it start")),
        ("7|REQUEUE_HOLD|N/A|N/A|None|", JobState(JobPhase.QUEUED)),
        ("7|CONFIGURING|1795449588|NONE|None|", JobState(JobPhase.QUEUED, "", 1795449588.0)),
        ("7|RUNNING|1795449588|1795449999|None|", JobState(JobPhase.RUNNING)),
        ("7|SUSPENDED|1795449588|1795449999|None|", JobState(JobPhase.SUSPENDED)),
        ("7|COMPLETING|1795449588|1795449999|None|", JobState(JobPhase.ENDING)),
        ("7|CANCELLED|17953|17954|Resources|", JobState(JobPhase.OVER, ended_at=17954.0)),
        ("7|A_NEW_STATE|N/A|N/A|None|", JobState(JobPhase.OVER)),
    ],
)  # fmt: skip
def test_states_of_jobs(line: str, state: JobState) -> None:
    (row,) = slurm_jobs.parse_queue(line + OURS + "\n")
    assert (row.job, row.run_id, row.folder) == ("7", RUN, Path(HOME, RUN))
    assert row.state == state


def test_strange_names_and_comments_of_other_jobs_spoil_nothing() -> None:
    strange = [
        "1|RUNNING|N/A|N/A|None|a|b|c|tfcluster",
        "2|RUNNING|N/A|N/A|None|wrap|(null)",
        "3|RUNNING|N/A|N/A|None|x|two",
        "lines|of a comment",
        "",
        "4_[1-3]|PENDING|N/A|N/A|Priority|array|fill|er",
        "5+0|PENDING|N/A|N/A|Priority|het|é\\x1b[31m",
    ]
    found = slurm_jobs.parse_queue("\n".join([*strange, f"7|RUNNING|N/A|N/A|None|{OURS}"]))
    assert [row.job for row in found] == ["7"]
    (row,) = slurm_jobs.parse_queue(f"7|RUNNING|N/A|N/A|None|{RUN}|project=42")
    assert (row.run_id, row.folder) == (RUN, None), "the site has rewritten the comment"


def test_jobs_of_runs_whose_folder_is_gone_are_leftovers(answering: Answering) -> None:
    answering("squeue", f"7|PENDING|N/A|N/A|None|{OURS}\n8|FAILED|N/A|N/A|None|{OURS}\n")
    answering("scontrol", "Configuration data\nClusterName             = north\nX = y\n")
    assert slurm_jobs.find("north", None, patience_s=9) == {RUN: ["job 7"]}


@pytest.mark.parametrize(
    ("state", "code", "reason", "status"),
    [
        ("CANCELLED", "0:15", "job 7 was cancelled", Status.INTERRUPTED),
        ("FAILED", "0:15", "job 7 was stopped at its start", Status.INTERRUPTED),
        ("PREEMPTED", "0:15", "job 7 was preempted", Status.INTERRUPTED),
        ("TIMEOUT", "0:15", "job 7 reached its time limit", Status.TIMED_OUT),
        ("NODE_FAIL", "0:0", "job 7 lost a node", Status.FAILED),
        ("FAILED", "0:53", "job 7 could not write into the run folder on n1", Status.FAILED),
        ("FAILED", "0:9", "the coordinator in job 7 was killed by signal 9", Status.FAILED),
        ("FAILED", "3:0", "the coordinator in job 7 ended with exit code 3", Status.FAILED),
        ("COMPLETED", "0:0", "the coordinator in job 7 ended with exit code 0", Status.FAILED),
    ],
)
def test_the_end_of_a_job_without_its_coordinator_s_last_word(
    state: str, code: str, reason: str, status: Status, answering: Answering
) -> None:
    answering("scontrol", SHOWN.format(state, code))
    end = slurm_jobs.explain_end("7", cluster="lab", patience_s=9)
    assert (end.reason, end.status) == (reason, status)
    assert ("TFCLUSTER_HOME" in end.fix) == (code == "0:53")


def test_an_element_of_an_array_does_not_answer_for_the_others(
    answering: Answering, stub: Stub, tmp_path: Path
) -> None:
    """One of the elements has the array's own id, by which Slurm shows and requeues them all."""
    rest = "JobState={} Requeue=1 BatchFlag={} Restarts=0 Reason=None EndTime=Unknown"
    first = "JobId=1 ArrayJobId=1 ArrayTaskId=3 " + rest.format("RUNNING", 1)
    other = "JobId=2 ArrayJobId=1 ArrayTaskId=0 " + rest.format("COMPLETING", 0)
    answering("scontrol", f"{first}\n{other}\n")
    assert slurm_jobs.can_come_back("1")
    assert slurm_jobs.ending("1", restarts=0, signal=None) is None
    stub("scontrol", f'echo "$@" >>{tmp_path}/argv; cat $0.text')
    slurm_jobs.requeue("1")
    assert (tmp_path / "argv").read_text().splitlines()[-1] == "requeue 1_3"


def test_a_job_that_runs_is_not_over_because_squeue_does_not_list_it(answering: Answering) -> None:
    answering("scontrol", "slurm_load_jobs error: Invalid job id specified", code=1)
    end = slurm_jobs.explain_end("7", cluster="lab", patience_s=9)
    assert end.reason == "Slurm has no job 7 any more"
    answering("scontrol", SHOWN.format("RUNNING", "0:0"))
    with pytest.raises(SilentError, match="RUNNING"):
        slurm_jobs.explain_end("7", cluster="lab", patience_s=1)
