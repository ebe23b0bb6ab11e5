"""Calls of Slurm's own commands: their answers, and their errors in our words with a fix."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from tfcluster.agent.error_text import describe_error
from tfcluster.agent.node.slurm_job import parse_pairs as parse_pairs
from tfcluster.errors import SetupError

PATIENCE_S = 30.0
"""Seconds for an answer: a slurmctld under load takes some, one that restarts does not answer."""
_END_S = 5.0
_SILENT = re.compile(
    r"Unable to contact slurm controller|Unable to connect|Connection refused"
    r"|Socket timed out|Connection timed out|Zero Bytes were transmitted|controller not responding"
    r"|Resource temporarily unavailable|in standby mode|authentication error",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"^(?:(?:sbatch|srun|salloc|scancel|scontrol|squeue|sinfo|sacctmgr): )?(?:error: |fatal: )?"
    r"(?:(?:Batch job submission failed|Job submit/allocate failed|allocation failure"
    r"|Unable to allocate resources|slurm_load_\w+(?: error)?): )?(?:Try \".*)?"
)
_PING = "`scontrol ping` shows whether slurmctld runs; try again when it does"
_SINFO = "`sinfo -N -l` lists the nodes"
_FIXES = (
    (
        "Munge encode|authentication error",
        "munged must run on this machine, with the cluster's key",
    ),
    (
        "Zero Bytes",
        "slurmctld refuses this machine's messages: its munge key or its clock differs, or"
        " slurmctld is starting",
    ),
    (
        "cannot stat file|process configuration|configuration source",
        "start it on a login node of the cluster, or name its slurm.conf in SLURM_CONF",
    ),
    ("Unable to contact|timed out|refused", _PING),
    ("invalid partition", "`sinfo` lists the partitions: --set runtime.slurm.partition=NAME"),
    (
        "[Pp]artition not available|group not permitted|not permitted to use this partition",
        "choose another partition (`scontrol show partition` lists who may use which):"
        " --set runtime.slurm.partition=NAME",
    ),
    (
        "accounting/QOS policy|exceed.* association|AssocM|QOSM",
        "ask for less: `sacctmgr show associations user=$USER` and `sacctmgr show qos` list the"
        " limits",
    ),
    ("[Aa]ccount", "set runtime.slurm.account (`sacctmgr show associations user=$USER`)"),
    ("Invalid qos|QOS", "set runtime.slurm.qos to one that this account may use"),
    (
        "Requested time limit|[Tt]ime limit",
        "set runtime.slurm.time to at most the partition's limit (`sinfo -o '%P %l'` lists them)",
    ),
    (
        "[Mm]emory specification|--mem",
        "set runtime.slurm.mem to what a node has (`sinfo -o '%P %m'` lists it in MB)",
    ),
    (
        "[Nn]ode count|[Nn]ode configuration|More processors|CPU count",
        f"ask for what the nodes have, see runtime.slurm: {_SINFO}",
    ),
    ("feature", "set runtime.slurm.constraint to features that nodes have (`sinfo -o '%N %f'`)"),
    ("generic resource|gres", "set runtime.slurm.gpus_per_task to what a node has (`sinfo -o %G`)"),
    ("[Rr]eservation", "set runtime.slurm.reservation to one of `scontrol show reservation`"),
    (
        "unrecognized|invalid option|ambiguous|requires an argument|Invalid (?:--|numeric"
        "|node name|license|job array|job dependency|generic)|for --",
        "correct runtime.slurm.extra: `man sbatch` lists the options",
    ),
    (
        "Invalid job id|already completing or completed",
        "the job is over: `squeue` lists the others",
    ),
    ("Access/permission denied|Invalid user", "only the job's own user can do that"),
)
"""(pattern, fix) for messages of Slurm; the first match counts."""


class SlurmError(SetupError):
    """A message of Slurm under what could not be done."""

    def __init__(self, what: str, stderr: str) -> None:
        said = plain(stderr)
        fix = next((fix for pattern, fix in _FIXES if re.search(pattern, said)), "")
        super().__init__(f"{what}: {said}" if said else what, fix=fix)


class SlurmSilentError(SlurmError):
    """slurmctld does not answer; it may later."""


def plain(stderr: str) -> str:
    """Return messages of Slurm's commands without the commands' names, each once, on one line."""
    lines = (_NOISE.sub("", line).strip() for line in stderr.splitlines())
    return "; ".join(dict.fromkeys(filter(None, lines)))


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without variables that change what Slurm's commands print, or wait for."""
    dropped = ("SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_")
    not_ours = ("SBATCH_ARRAY_INX", "SBATCH_WAIT")
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(dropped) and name not in not_ours
    }
    return {**kept, "SLURM_TIME_FORMAT": "%s"}


def ask(
    *argv: str,
    what: str,
    patience_s: float = PATIENCE_S,
    stdin: str = "",
    env: Mapping[str, str] = MappingProxyType({}),
    reads_stderr: bool = False,
) -> str:
    """Return the stdout of one of Slurm's commands, whose times are seconds since 1970.

    `env`: variables that it gets besides those of this process.
    `reads_stderr`: return its stderr instead. `what` could not be done if it fails: then
    SlurmError with Slurm's own message, a SlurmSilentError if slurmctld does not answer.
    """
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience_s,
            env=clean_environ({**os.environ, **env}),
        )
    except FileNotFoundError:
        fix = "start it on a login node of the cluster"
        raise SetupError(f"{what}: there is no {argv[0]} on this machine", fix=fix) from None
    except subprocess.TimeoutExpired as error:
        said = error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else ""
        if said:
            raise refusal(what, said) from None
        late = SlurmSilentError(what, f"slurmctld has not answered for {patience_s:.0f} s")
        late.fix = _PING
        raise late from None
    if done.returncode == 0:
        return done.stderr if reads_stderr else done.stdout
    raise refusal(what, done.stderr or done.stdout)


def refusal(what: str, stderr: str) -> SlurmError:
    """Return the error for a command that failed with `stderr`, so that `what` was not done."""
    return (SlurmSilentError if _SILENT.search(stderr) else SlurmError)(what, stderr)


@contextlib.contextmanager
def joined(argv: Sequence[str], *, what: str) -> Iterator[socket.socket]:
    """Yield the other end of the stdin and stdout of one of Slurm's commands.

    The command ends with the block. An OSError or a ValueError of the block becomes a SlurmError
    with the command's own message: `what` could not be done.
    """
    near, far = socket.socketpair()
    with tempfile.TemporaryFile() as errors:
        environ = clean_environ(os.environ)
        with far:
            end = far.fileno()
            process = subprocess.Popen(argv, stdin=end, stdout=end, stderr=errors, env=environ)
        try:
            with near:
                yield near
        except (OSError, ValueError) as error:
            _end(process)
            errors.seek(0)
            said = errors.read().decode(errors="replace")
            raise refusal(what, said or describe_error(error)) from None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a command that has read the end of its stdin; kill it if it hangs."""
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def ask_in_thread(*argv: str, what: str, patience_s: float = PATIENCE_S) -> str:
    """Return what `ask` returns, while the loop goes on."""
    return await asyncio.to_thread(ask, *argv, what=what, patience_s=patience_s)
