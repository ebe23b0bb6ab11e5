"""The jobs of runs at Slurm (`backends.jobs.Jobs`): submitted, looked at, stopped, requeued, and
the job that this process runs in.

`squeue` prints text, not JSON: its columns are the same in all releases, a thousand jobs take no
time, and a job of another tool with a strange name spoils no line but its own. The comment, which
may contain anything, is the last column.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM, SIGUSR1
from typing import TYPE_CHECKING

from tfcluster.agent import foreign_json
from tfcluster.agent.node.slurm_job import name_of, restart_if_orphaned
from tfcluster.backends.jobs import Ending, JobEnd, JobPhase, JobState, Submission
from tfcluster.backends.past_runs import SilentError, is_live_job
from tfcluster.backends.slurm import JOB, NODES
from tfcluster.backends.slurm.batch_script import (
    COMMENT,
    explain_cores,
    format_script,
    job_options,
)
from tfcluster.backends.slurm.slurm_checks import check as check
from tfcluster.backends.slurm.slurm_checks import run_inside as run_inside
from tfcluster.backends.slurm.slurm_commands import (
    PATIENCE_S,
    SlurmError,
    SlurmSilentError,
    ask,
    joined,
    parse_pairs,
)
from tfcluster.errors import SetupError
from tfcluster.plans.secrets import find_variables
from tfcluster.rundir.paths import RUN_ID, RunPaths
from tfcluster.rundir.states import Status
from tfcluster.spec.sections import Runtime

if TYPE_CHECKING:
    from tfcluster.rundir.events import JobSubmitted

_PHASES = {
    "PENDING": JobPhase.QUEUED,
    "REQUEUED": JobPhase.QUEUED,
    "REQUEUE_FED": JobPhase.QUEUED,
    "REQUEUE_HOLD": JobPhase.QUEUED,
    "SPECIAL_EXIT": JobPhase.QUEUED,
    "CONFIGURING": JobPhase.QUEUED,
    "RUNNING": JobPhase.RUNNING,
    "SUSPENDED": JobPhase.SUSPENDED,
    "STOPPED": JobPhase.SUSPENDED,
    "RESIZING": JobPhase.RUNNING,
    "SIGNALING": JobPhase.RUNNING,
    "COMPLETING": JobPhase.ENDING,
    "STAGE_OUT": JobPhase.ENDING,
}
"""Slurm's job states (squeue(1), JOB STATE CODES) → phase; all others are ends."""
_FORMAT = "%A|%T|%S|%e|%r|%j|%k"
_WAITS_FOR_SOMEBODY = (
    ("JobHeldUser|requeued.held|JobHoldMaxRequeue", "`scontrol release {job}` lets it start"),
    ("JobHeldAdmin", "an administrator holds it"),
    ("PartitionTimeLimit", "runtime.slurm.time is above the partition's limit"),
    ("PartitionNodeLimit", "the partition does not allow as many nodes"),
    ("PartitionDown|PartitionInactive", "the partition takes no jobs now"),
    ("BadConstraints|DependencyNeverSatisfied|AccountNotAllowed|QOSNotAllowed", "it never starts"),
)
"""(pattern, meaning) for reasons that time alone does not end (squeue(1), JOB REASON CODES)."""
_ENDS = {
    "CANCELLED": ("was cancelled", Status.INTERRUPTED),
    "PREEMPTED": ("was preempted", Status.INTERRUPTED),
    "TIMEOUT": ("reached its time limit", Status.TIMED_OUT),
    "DEADLINE": ("reached its deadline", Status.TIMED_OUT),
    "NODE_FAIL": ("lost a node", Status.FAILED),
    "BOOT_FAIL": ("has a node that did not boot", Status.FAILED),
    "OUT_OF_MEMORY": ("used more memory than it has", Status.FAILED),
}
"""Slurm's state of a job that is over → what happened to it, the run's status."""
_QUEUED = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_ENDING = ("COMPLETING", "CANCELLED", "NODE_FAIL", "FAILED", "COMPLETED")
_NEAR_S = 600.0
"""The time left for which a SIGUSR1 is Slurm's warning (``sbatch --signal``) of the time limit."""
_NO_OUTPUT = "0:53"
"""The exit code that Slurm gives a job whose output file it could not open."""


def cluster(of: str | Runtime, *, patience_s: float) -> str:
    """Return the name of the one cluster that this machine belongs to."""
    shown = _ask("scontrol", "show", "config", what="Slurm's settings", patience_s=patience_s)
    name = re.search(r"^ClusterName\s*=\s*(\S+)", shown, re.MULTILINE)
    return name[1] if name is not None else ""


def submit(job: Submission) -> str:
    """Submit the run's script, with its secrets in its environment; return the id of the job.

    Its options are on the command line, too: the user's SBATCH_PARTITION would override a script.
    """
    options, script = job_options(job), format_script(job)
    what = "Slurm does not take the job"
    env = find_variables(job.plan) if job.plan is not None else {}
    out = ask("sbatch", "--parsable", *options, what=what, stdin=script, env=env)
    return out.strip().split(";")[0]


def look(cluster: str, *, patience_s: float) -> dict[str, JobState]:
    """Return run → the state of its job, of this user's runs whose jobs Slurm still knows."""
    return {row.run_id: row.state for row in _queue(patience_s)}


def explain_end(job: str, *, cluster: str, patience_s: float) -> JobEnd:
    """Return how a job ended; Slurm forgets it after some minutes (MinJobAge)."""
    try:
        pairs = _show(job, what=f"job {job}", patience_s=patience_s)
    except SlurmError:
        return JobEnd(f"Slurm has no job {job} any more")
    state, code = pairs.get("JobState", ""), pairs.get("ExitCode", "")
    if state in _PHASES:  # root sees no jobs of the user in whose home it looks
        raise SilentError(f"job {job} is {state}, but squeue does not list it")
    if state in _ENDS:
        event, status = _ENDS[state]
        return JobEnd(f"job {job} {event}", status=status)
    if code == _NO_OUTPUT:
        node = pairs.get("BatchHost", "its node")
        return JobEnd(
            f"job {job} could not write into the run folder on {node}",
            "set TFCLUSTER_HOME to a folder on a file system that login node and nodes share",
        )
    exit_code, _, signal = code.partition(":")
    if signal == str(SIGTERM.value):  # it came before the coordinator could handle it
        return JobEnd(f"job {job} was stopped at its start", status=Status.INTERRUPTED)
    if signal not in ("", "0"):
        return JobEnd(f"the coordinator in job {job} was killed by signal {signal}")
    return JobEnd(f"the coordinator in job {job} ended with exit code {exit_code or '?'}")


def restart_orphaned(job: str, *, cluster: str) -> None:
    """Put a job back into the queue that has lost the node of its script (``--no-kill``)."""
    restart_if_orphaned(job)


def stop(job: str, *, cluster: str, now: bool) -> None:
    """Signal the coordinator, which is the job's script; a job without one is removed at once."""
    phase = _phase_of(job)
    options = ("--batch", "--signal=TERM") if phase is JobPhase.RUNNING and not now else ()
    try:
        if phase is not JobPhase.OVER:
            ask("scancel", *options, job, what=f"job {job} cannot be stopped")
    except SlurmSilentError as error:
        raise SilentError(error.message) from error
    except SlurmError:
        if _phase_of(job) is not JobPhase.OVER:
            raise


@contextlib.contextmanager
def connect_coordinator(paths: RunPaths, job: str, *, cluster: str) -> Iterator[socket.socket]:
    """Yield a connection that a step of the job carries, on the node of its script."""
    what = f"the coordinator in job {job} cannot be asked"
    shown = _show(job, what=what)
    if "BatchHost" not in shown:
        fix = "`tfcluster status` shows when it does"
        raise SetupError(f"{what}: the job does not run yet", fix=fix)
    runtime = foreign_json.read_json_object(paths.spec).get("runtime") or {}
    python = (runtime.get("slurm") or {}).get("python") or sys.executable
    module = ("-P", "-m", "tfcluster.rundir.control_client")
    argv = ["srun", f"--jobid={job}", "--overlap", "--quiet", "--unbuffered", "--chdir=/"]
    argv += ["--nodes=1", "--ntasks=1", f"--nodelist={shown['BatchHost']}"]
    argv += ["--het-group=0"] if "HetJobId" in shown else []
    argv += [os.path.expanduser(python), *module, str(paths.root)]
    with joined(argv, what=what) as connection:
        yield connection


def make_copy(paths: RunPaths, job: str, *, cluster: str) -> JobSubmitted:
    """Raise SetupError: the folder of a run is on a file system of the cluster."""
    raise SetupError(
        f"the run folder of job {job} is on the file system of the machine that has submitted it",
        fix="set TFCLUSTER_HOME to the home of that machine, and leave out --backend",
    )


def follow(paths: RunPaths, job: str, *, cluster: str) -> None:
    """Return None: the job writes into the same run folder."""


def _phase_of(job: str) -> JobPhase:
    phases = (row.state.phase for row in _queue(patience_s=10.0) if row.job == job)
    return next(phases, JobPhase.OVER)


def warnings(job: Submission) -> list[str]:
    """Return a warning where the job's time is over before the run's deadline."""
    limit, deadline = job.runtime.slurm.time, job.run_deadline_s
    if limit is None or deadline is None or limit >= deadline:
        return []
    return [
        f"the job ends after {limit / 3600:.3g} h (runtime.slurm.time), before the"
        f" {deadline / 3600:.3g} h of supervision.run_deadline_s: the run then saves, goes back"
        " into the queue and continues"
    ]


def hints(job: Submission) -> list[str]:
    """Return what a job gets by default, and few expect."""
    return [sentence] if (sentence := explain_cores(job)) else []


def find(endpoint: str, run_id: str | None, *, patience_s: float) -> Mapping[str, Sequence[str]]:
    """Return run → its job that Slurm still has (`backends.past_runs.Finder`).

    `endpoint` is the cluster.
    """
    left = _left(endpoint, run_id, patience_s=patience_s)
    return {run: [f"job {job}" for job in jobs] for run, jobs in left.items()}


def _left(endpoint: str, run_id: str | None, *, patience_s: float) -> Mapping[str, list[str]]:
    """Return run → the ids of its jobs that Slurm still has."""
    if (here := cluster(endpoint, patience_s=patience_s)) != endpoint:
        raise SilentError(f"this machine belongs to the cluster {here}")
    left: dict[str, list[str]] = {}
    for row in _queue(patience_s):
        is_left = row.folder is not None and not is_live_job(row.folder)
        is_meant = run_id == row.run_id or (run_id is None and is_left)
        if is_meant and row.state.phase is not JobPhase.OVER:
            left.setdefault(row.run_id, []).append(row.job)
    return left


def remove(endpoint: str, run_id: str) -> str:
    """Cancel the run's job."""
    for jobs in _left(endpoint, run_id, patience_s=10.0).values():
        try:
            ask("scancel", *jobs, what="scancel fails")
        except SlurmError as error:
            return error.message
    return ""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A job of a run, as squeue lists it."""

    job: str
    run_id: str
    folder: Path | None
    """The run folder; None if somebody has changed the job's comment."""
    state: JobState


def _queue(patience_s: float) -> list[QueueRow]:
    """Return this user's jobs of tfcluster, asked for once."""
    out = _ask(
        *("squeue", "--me", "--noheader", "--states=all", f"--format={_FORMAT}"),
        what="the queue",
        patience_s=patience_s,
    )
    return parse_queue(out)


def parse_queue(out: str) -> list[QueueRow]:
    """Return the jobs of runs in the output of squeue.

    A job belongs to the run in its comment, or else in its name: some sites rewrite comments.
    """
    rows = []
    for line in out.splitlines():
        job, *fields = line.split("|", 6)
        if len(fields) != 6:
            continue
        state, start, end, reason, name, comment = fields
        folder = Path(comment.removeprefix(COMMENT)) if comment.startswith(COMMENT) else None
        if folder is not None or RUN_ID.fullmatch(name):
            described = _describe(job, state, start, end, reason)
            rows.append(QueueRow(job, folder.name if folder else name, folder, described))
    return rows


def _describe(job: str, state: str, start: str, end: str, reason: str) -> JobState:
    phase = _PHASES.get(state, JobPhase.OVER)
    if phase is not JobPhase.QUEUED:
        ended_at = _seconds(end) if phase is JobPhase.OVER else None
        return JobState(phase, ended_at=ended_at, job=job)
    words = (text for pattern, text in _WAITS_FOR_SOMEBODY if re.search(pattern, reason))
    hint = "".join(f": {text.format(job=job)}" for text in words)
    return JobState(phase, "" if reason == "None" else reason + hint, _seconds(start), job=job)


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def _ask(*argv: str, what: str, patience_s: float) -> str:
    """Return what `ask` returns; raises SilentError where slurmctld does not answer."""
    try:
        return ask(*argv, what=f"cannot read {what}", patience_s=patience_s)
    except SlurmSilentError as error:
        raise SilentError(error.message) from error


def own(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the job and its restarts; raises SetupError where it is not for one coordinator."""
    processes = environ.get("SLURM_STEP_NUM_TASKS", "1")
    # `srun --pty SHELL` has a terminal for its first process only.
    is_first = "SLURM_PTY_PORT" in environ and environ.get("SLURM_PROCID") == "0"
    if processes != "1" and not is_first:
        raise SetupError(
            f"srun starts {processes} processes, and each would coordinate a run of its own",
            fix="start tfcluster without srun in the job's script, or with `srun --ntasks=1`",
        )
    if not {NODES, f"{NODES}_HET_GROUP_0"} & environ.keys():
        raise SetupError(
            f"{JOB} is set, but {NODES} is not",
            fix=f"`unset {JOB}` outside of a job",
        )
    count = environ.get("SLURM_RESTART_COUNT", "")
    return environ[JOB], int(count) if count.isdecimal() else 0


def can_come_back(job: str) -> bool:
    return _can_come_back(_show(job))


def ending(job: str, *, restarts: int, signal: int | None) -> Ending | None:
    """Return why Slurm ends the job; None if it does not.

    While a job's processes are being ended, its state is COMPLETING whatever the reason is; if it
    was put back into the queue, the restart is counted already. A job that is preempted has the
    time of that from the beginning of its grace.
    """
    shown = _show(job)
    state, can_come_back = shown["JobState"], _can_come_back(shown)
    left_s = float(shown["EndTime"]) - time.time() if shown["EndTime"].isdecimal() else None
    if state in _QUEUED or int(shown["Restarts"]) > restarts:
        return Ending("it was put back into the queue", comes_back=True)
    if shown.get("PreemptTime", "").isdecimal() or state == "PREEMPTED":
        is_cancelled = "CANCEL" in _preempt_mode(shown["Partition"])
        reason = "preempted by a job with a higher priority"
        return Ending(reason, comes_back=can_come_back and not is_cancelled)
    if shown["Reason"] == "TimeLimit" or state in ("TIMEOUT", "DEADLINE"):
        return Ending("its time limit is over")
    if state in _ENDING:
        return Ending("it was cancelled (scancel)")
    if signal == SIGUSR1:
        is_limit = left_s is not None and left_s < _NEAR_S
        reason = "its time limit is near" if is_limit else "SIGUSR1 asked it to make room"
        limit = "runtime.slurm.time" if is_limit else ""
        return Ending(reason, comes_back=can_come_back, limit=limit)
    return None


def requeue(job: str) -> None:
    try:
        what = f"job {job} cannot go back into the queue"
        ask("scontrol", "requeue", name_of(_show(job)), what=what)
    except SetupError:
        shown = _show(job)
        is_back = shown["JobState"] == "COMPLETING" and shown["EndTime"] == "Unknown"
        if not is_back and shown["JobState"] not in _QUEUED:
            raise


def _show(job: str, *, what: str = "", patience_s: float = PATIENCE_S) -> dict[str, str]:
    """Return the fields of a job.

    The id of one element of an array is that of the array, too, and that of the first component of
    a heterogeneous job is that of the job.
    """
    what = what or f"Slurm does not describe job {job}"
    argv = ("scontrol", "show", "job", "--oneliner", job)
    shown = ask(*argv, what=what, patience_s=patience_s).splitlines()
    return next(pairs for pairs in map(parse_pairs, shown) if pairs.get("JobId") == job)


def _can_come_back(shown: Mapping[str, str]) -> bool:
    """Return whether the job has a script, which can run again, and --requeue or the default."""
    return (shown["BatchFlag"], shown["Requeue"]) == ("1", "1")


def _preempt_mode(partition: str) -> str:
    what = f"Slurm does not describe partition {partition}"
    shown = ask("scontrol", "show", "partition", "--oneliner", partition, what=what)
    return parse_pairs(shown).get("PreemptMode", "")
