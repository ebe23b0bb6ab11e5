"""The job of Slurm that an agent runs in, where the node of the job's script is lost.

A job with ``--no-kill`` goes on without a lost node. If that was its first one, the job has no
script, and so no coordinator, until its time is over: somebody else has to put it back into the
queue. slurmctld decides whether the node is lost: it then takes the node out of the job's list.
"""

from __future__ import annotations

import os
import re
import select
import subprocess

from tfcluster.agent import Any

_POLL_S = 10.0
_ANSWER_S = 30.0


def watch(job: str, restarts: int, connection: int) -> None:
    """Put the job back into the queue once its script's node is lost.

    Return when it is there, when its present start, which `restarts` came before, is over, or when
    `connection` ends: the coordinator lives.
    """
    while restart_if_orphaned(job, restarts) is None:
        readable, _, _ = select.select([connection], [], [], _POLL_S)
        if readable and not os.read(connection, 1 << 16):
            return


def restart_if_orphaned(job: str, restarts: int | None = None) -> bool | None:
    """Put the job back into the queue if its script's node is lost, and return True.

    Return False if that can never be: it is over or has started again, or Slurm refuses it. None:
    it runs as it should, or Slurm does not answer.
    """
    try:
        shown = _ask("scontrol", "show", "job", "--oneliner", job)
        if shown is None:
            return None
        jobs = {fields.get("JobId"): fields for fields in map(parse_pairs, shown.splitlines())}
        fields = jobs.get(job, {})
        is_other = restarts is not None and fields.get("Restarts") != str(restarts)
        if is_other or fields.get("JobState") not in ("RUNNING", "SUSPENDED"):
            return False
        if (fields.get("BatchFlag"), fields.get("Requeue")) != ("1", "1"):
            return False
        names = _ask("scontrol", "show", "hostnames", fields.get("NodeList", ""))
        if not names or fields.get("BatchHost") in names.split():
            return None
        return None if _ask("scontrol", "requeue", name_of(fields)) is None else True
    except OSError:  # there is no scontrol, as in a container
        return False


def parse_pairs(line: str) -> dict[str, str]:
    """Return the ``Name=value`` pairs of a line of ``scontrol show --oneliner``."""
    return dict(re.findall(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)", line))


def name_of(fields: dict[str, str]) -> str:
    """Return the name of a job that does not mean the whole array of an element."""
    array = (fields.get("ArrayJobId"), fields.get("ArrayTaskId"))
    return f"{array[0]}_{array[1]}" if array[0] else fields["JobId"]


def _ask(*argv: str) -> str | None:
    """Return what one of Slurm's commands prints; None if it fails. Raises OSError without it."""
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=_ANSWER_S, text=True, **how)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
