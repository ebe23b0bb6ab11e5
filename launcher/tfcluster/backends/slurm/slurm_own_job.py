"""The job of Slurm that this process runs in: why it ends, and its way back into the queue."""

from __future__ import annotations

import time
from collections.abc import Mapping
from signal import SIGUSR1

from tfcluster.agent.node.slurm_job import name_of
from tfcluster.backends.jobs import Ending
from tfcluster.backends.slurm import JOB, NODES
from tfcluster.backends.slurm.slurm_commands import ask, parse_pairs
from tfcluster.errors import SetupError

_QUEUED = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_ENDING = ("COMPLETING", "CANCELLED", "NODE_FAIL", "FAILED", "COMPLETED")
_NEAR_S = 600.0
"""The time left for which a SIGUSR1 is Slurm's warning (``sbatch --signal``) of the time limit."""


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
    if environ.get("SLURM_HET_SIZE", "1") != "1":
        raise SetupError(
            f"job {environ[JOB]} is heterogeneous, which is not supported",
            fix="use a job whose nodes all have the same resources",
        )
    if NODES not in environ:
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
        why = "preempted by a job with a higher priority"
        return Ending(why, comes_back=can_come_back and not is_cancelled)
    if shown["Reason"] == "TimeLimit" or state in ("TIMEOUT", "DEADLINE"):
        return Ending("its time limit is over")
    if state in _ENDING:
        return Ending("it was cancelled (scancel)")
    if signal == SIGUSR1:
        is_limit = left_s is not None and left_s < _NEAR_S
        why = "its time limit is near" if is_limit else "SIGUSR1 asked it to make room"
        limit = "runtime.slurm.time" if is_limit else ""
        return Ending(why, comes_back=can_come_back, limit=limit)
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


def _show(job: str) -> dict[str, str]:
    """Return the fields of a job; the id of one element of an array is that of the array, too."""
    what = f"Slurm does not describe job {job}"
    shown = ask("scontrol", "show", "job", "--oneliner", job, what=what).splitlines()
    return next(pairs for pairs in map(parse_pairs, shown) if pairs.get("JobId") == job)


def _can_come_back(shown: Mapping[str, str]) -> bool:
    """Return whether the job has a script, which can run again, and --requeue or the default."""
    return (shown["BatchFlag"], shown["Requeue"]) == ("1", "1")


def _preempt_mode(partition: str) -> str:
    what = f"Slurm does not describe partition {partition}"
    shown = ask("scontrol", "show", "partition", "--oneliner", partition, what=what)
    return parse_pairs(shown).get("PreemptMode", "")
