"""The jobs of runs at Slurm (`backends.jobs.Jobs`): submitted, looked at, stopped, requeued."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from signal import SIGUSR1

from tfcluster.backends.jobs import Ending, JobState, Phase, Submission
from tfcluster.backends.past_runs import SilentError
from tfcluster.backends.slurm import JOB
from tfcluster.backends.slurm.batch_script import COMMENT, format_script
from tfcluster.backends.slurm.slurm_commands import SlurmSilentError, ask, parse_pairs
from tfcluster.errors import SetupError

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
_NEAR_S = 600.0
"""The time left for which a SIGUSR1 is Slurm's warning (``sbatch --signal``) of the time limit."""
_FORMAT = "%A|%T|%S|%k|%r"


def submit(job: Submission) -> str:
    """Submit the run's script; return the id of the job."""
    out = ask("sbatch", "--parsable", what="Slurm does not take the job", stdin=format_script(job))
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


def own(environ: Mapping[str, str]) -> tuple[str, int]:
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
    phase, can_come_back = _PHASES.get(shown["JobState"], Phase.OVER), _can_come_back(shown)
    left_s = float(shown["EndTime"]) - time.time() if shown["EndTime"].isdecimal() else None
    if phase is Phase.QUEUED or int(shown["Restarts"]) > restarts:
        return Ending("it was put back into the queue", comes_back=True)
    if shown.get("PreemptTime", "").isdecimal() or shown["JobState"] == "PREEMPTED":
        is_cancelled = "CANCEL" in _preempt_mode(shown["Partition"])
        why = "preempted by a job with a higher priority"
        return Ending(why, comes_back=can_come_back and not is_cancelled)
    if shown["Reason"] == "TimeLimit" or shown["JobState"] in ("TIMEOUT", "DEADLINE"):
        return Ending("its time limit is over")
    if phase is not Phase.RUNNING:
        return Ending("it was cancelled (scancel)")
    if signal == SIGUSR1:
        is_limit = left_s is not None and left_s < _NEAR_S
        why = "its time limit is near" if is_limit else "SIGUSR1 asked it to make room"
        return Ending(why, comes_back=can_come_back)
    return None


def requeue(job: str) -> None:
    try:
        ask("scontrol", "requeue", job, what=f"job {job} cannot go back into the queue")
    except SetupError:
        shown = _show(job)
        is_back = shown["JobState"] == "COMPLETING" and shown["EndTime"] == "Unknown"
        if not is_back and _PHASES.get(shown["JobState"]) is not Phase.QUEUED:
            raise


def _show(job: str) -> dict[str, str]:
    what = f"Slurm does not describe job {job}"
    return parse_pairs(ask("scontrol", "show", "job", "--oneliner", job, what=what))


def _can_come_back(shown: Mapping[str, str]) -> bool:
    """Return whether the job has a script, which can run again, and --requeue or the default."""
    return (shown["BatchFlag"], shown["Requeue"]) == ("1", "1")


def _preempt_mode(partition: str) -> str:
    what = f"Slurm does not describe partition {partition}"
    shown = ask("scontrol", "show", "partition", "--oneliner", partition, what=what)
    return parse_pairs(shown).get("PreemptMode", "")


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
