"""The jobs of runs at Slurm (`backends.jobs.Jobs`): submitted, looked at, stopped, requeued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfcluster.backends.jobs import JobState, Phase, Submission
from tfcluster.backends.past_runs import SilentError
from tfcluster.backends.slurm.batch_script import COMMENT, format_script, sbatch_options
from tfcluster.backends.slurm.slurm_checks import check as check
from tfcluster.backends.slurm.slurm_checks import run_inside as run_inside
from tfcluster.backends.slurm.slurm_commands import SlurmSilentError, ask

_PHASES = {
    "PENDING": Phase.QUEUED,
    "REQUEUED": Phase.QUEUED,
    "REQUEUE_FED": Phase.QUEUED,
    "REQUEUE_HOLD": Phase.QUEUED,
    "SPECIAL_EXIT": Phase.QUEUED,
    "CONFIGURING": Phase.QUEUED,
    "RUNNING": Phase.RUNNING,
    "SUSPENDED": Phase.RUNNING,
    "STOPPED": Phase.RUNNING,
    "RESIZING": Phase.RUNNING,
    "SIGNALING": Phase.RUNNING,
    "COMPLETING": Phase.ENDING,
    "STAGE_OUT": Phase.ENDING,
}
"""Slurm's job states (squeue(1), JOB STATE CODES) → phase; all others are ends."""
_FORMAT = "%A|%T|%S|%k|%r"


def submit(job: Submission) -> str:
    """Submit the run's script; return the id of the job.

    Its options are on the command line, too: the user's SBATCH_PARTITION would override a script.
    """
    options, script = sbatch_options(job), format_script(job)
    what = "Slurm does not take the job"
    out = ask("sbatch", "--parsable", *options, what=what, stdin=script)
    return out.strip().split(";")[0]


def look(ids: Sequence[str], *, patience_s: float) -> dict[str, JobState]:
    """Return the states of the jobs that Slurm still knows."""
    rows = _queue(patience_s)
    return {number: state for number, (_, state) in rows.items() if number in ids}


def stop(job: str, *, now: bool) -> None:
    """Signal the coordinator, which is the job's script; a job in the queue is removed at once."""
    what = f"job {job} cannot be stopped"
    is_queued = look([job], patience_s=10.0).get(job, JobState(Phase.OVER)).phase is Phase.QUEUED
    options = () if now or is_queued else ("--batch", "--signal=TERM")
    ask("scancel", *options, job, what=what)


def requeue(job: str) -> None:
    ask("scontrol", "requeue", job, what=f"job {job} cannot go back into the queue")


def find(endpoint: str, run_id: str | None, *, patience_s: float) -> Mapping[str, Sequence[str]]:
    """Return run → its job that Slurm still has (`backends.past_runs.Finder`)."""
    rows = _queue(patience_s).items()
    found = {
        run: [f"job {number}"] for number, (run, state) in rows if state.phase is not Phase.OVER
    }
    return {run: names for run, names in found.items() if run_id in (None, run)}


def remove(endpoint: str, run_id: str) -> str:
    for names in find(endpoint, run_id, patience_s=10.0).values():
        ask("scancel", *(name.removeprefix("job ") for name in names), what="the job stays")
    return ""


def _queue(patience_s: float) -> dict[str, tuple[str, JobState]]:
    """Return id → run and state of this user's jobs of tfcluster, asked for once."""
    try:
        out = ask(
            *("squeue", "--me", "--noheader", "--states=all", f"--format={_FORMAT}"),
            what="the queue cannot be read",
            patience_s=patience_s,
        )
    except SlurmSilentError as error:
        raise SilentError(error.message) from error
    found: dict[str, tuple[str, JobState]] = {}
    for line in out.splitlines():
        number, state, start, comment, reason = line.split("|", 4)
        if comment.startswith(COMMENT):
            at = float(start) if start.isdecimal() else None
            phase = _PHASES.get(state, Phase.OVER)
            why = state.lower() if phase is Phase.OVER else reason
            found[number] = comment.removeprefix(COMMENT), JobState(phase, why, at)
    return found
