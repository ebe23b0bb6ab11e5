"""Refusals of Slurm's commands in our words, with Slurm's beneath and a fix.

The texts are those of Slurm 22.05.8; the ones about accounting are from its `slurm_errno.c`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.launcher.backends.conftest import Stub
from tests.tables import rows

from tfcluster.backends.slurm.slurm_commands import (
    SlurmError,
    SlurmSilentError,
    ask,
    parse_pairs,
    plain,
    refusal,
)
from tfcluster.errors import SetupError

REFUSED = "sbatch: error: Batch job submission failed: "
UNMUNGED = """\
sbatch: error: If munged is up, restart with --num-threads=10
sbatch: error: Munge encode failed: Failed to access "/run/munge/s": No such file or directory \
(Did you start munged?)
sbatch: error: slurm_send_node_msg: auth_g_create: REQUEST_JOB_WILL_RUN has authentication error
allocation failure: Protocol authentication error
"""
NO_CONFIGURATION = """\
sbatch: error: s_p_parse_file: cannot stat file /etc/slurm/slurm.conf: No such file or directory, \
retrying in 1sec up to 60sec
"""
# What Slurm says, of which `…` is REFUSED and `/` a line break; below it a part of the fix.
REFUSALS = r"""
sbatch: error: invalid partition specified: x/…Invalid partition name specified
    runtime.slurm.partition=
…Required partition not available (inactive or drain)
    runtime.slurm.partition=
…User's group not permitted to use this partition
    runtime.slurm.partition=
…Requested time limit is invalid (missing or exceeds some limit)
    runtime.slurm.time
…Node count specification invalid
    sinfo -N -l
…More processors requested than permitted
    sinfo -N -l
allocation failure: Requested node configuration is not available
    sinfo -N -l
sbatch: error: CPU count per node can not be satisfied/…Requested node configuration is not
    sinfo -N -l
sbatch: error: Memory specification can not be satisfied/…Requested node configuration is not
    runtime.slurm.mem
sbatch: error: Invalid --mem specification
    runtime.slurm.mem
…Invalid feature specification
    runtime.slurm.constraint
sbatch: error: Invalid generic resource (gres) specification
    runtime.slurm.gpus_per_task
…Requested reservation is invalid
    runtime.slurm.reservation
…Invalid account or account|partition combination specified
    runtime.slurm.account
…Invalid qos specification
    runtime.slurm.qos
…Job violates accounting|QOS policy (job submit limit, user's size and|or time limits)
    sacctmgr show qos
sbatch: unrecognized option '--nonsense'/Try "sbatch --help" for more information
    runtime.slurm.extra
sbatch: option '--uid' requires an argument
    runtime.slurm.extra
sbatch: error: Invalid numeric value "a b" for first arg of -B.
    runtime.slurm.extra
sbatch: error: Invalid --exclusive specification
    runtime.slurm.extra
…Invalid node name specified
    runtime.slurm.extra
…Invalid license specification
    runtime.slurm.extra
scancel: error: Kill job error on job id 3: Invalid job id specified
    the job is over
"""
SILENCES = [
    (REFUSED + "Unable to contact slurm controller (connect failure)", "scontrol ping"),
    ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "scontrol"),
    ("allocation failure: Zero Bytes were transmitted or received", "munge key"),
    ("slurm_load_partitions: Zero Bytes were transmitted or received", "munge key"),
    (UNMUNGED, "munged must run"),
]


@pytest.mark.parametrize(
    ("stderr", "fix"), [*rows(REFUSALS), (NO_CONFIGURATION, "login node")], ids=range(24)
)
def test_a_refusal_of_slurm_has_a_fix(stderr: str, fix: str) -> None:
    if stderr != NO_CONFIGURATION:
        stderr = stderr.replace("/", "\n").replace("|", "/").replace("…", REFUSED)
    error = refusal("Slurm does not take the job", stderr)
    assert not isinstance(error, SlurmSilentError)
    assert error.message == f"Slurm does not take the job: {plain(stderr)}"
    assert fix in error.fix


@pytest.mark.parametrize(("stderr", "fix"), SILENCES, ids=lambda text: text[-50:])
def test_a_slurmctld_that_does_not_answer_may_answer_later(stderr: str, fix: str) -> None:
    error = refusal("the queue cannot be read", stderr)
    assert isinstance(error, SlurmSilentError)
    assert fix in error.fix


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        (REFUSED + "Invalid qos specification", "Invalid qos specification"),
        ("slurm_load_jobs error: Invalid job id specified", "Invalid job id specified"),
        ("srun: error: Unable to allocate resources: No", "No"),
        (
            "sbatch: unrecognized option '--x'\nTry \"sbatch --help\" for more information\n",
            "unrecognized option '--x'",
        ),
        ("a\n\na\nsbatch: b\n", "a; b"),
    ],
    ids=str,
)
def test_a_message_is_shown_once_without_the_names_of_commands(stderr: str, said: str) -> None:
    assert plain(stderr) == said


@pytest.fixture
def command(stub: Stub) -> Path:
    """A command in the place of Slurm's squeue."""
    return stub("squeue", "echo $SLURM_TIME_FORMAT $SQUEUE_FORMAT")


def test_a_command_answers_without_the_users_own_formats(
    command: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    assert ask("squeue", what="it fails") == "%s\n"


def test_a_command_that_does_not_answer_in_time_is_silent(command: Path) -> None:
    command.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(SlurmSilentError, match="has not answered for") as caught:
        ask("squeue", what="it fails", patience_s=0.1)
    assert "scontrol ping" in caught.value.fix


def test_a_command_that_waits_for_its_configuration_says_so(command: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.write_text(NO_CONFIGURATION)
    command.write_text(f"#!/bin/sh\ncat {said} >&2\nexec sleep 60\n")
    with pytest.raises(SlurmError, match=r"slurm\.conf: No such file") as caught:
        ask("squeue", what="it fails", patience_s=1.0)
    assert not isinstance(caught.value, SlurmSilentError)


def test_a_machine_without_slurm_is_no_login_node() -> None:
    with pytest.raises(SetupError, match="no sbatch-of-nobody on this machine") as caught:
        ask("sbatch-of-nobody", what="Slurm does not take the job")
    assert "login node" in caught.value.fix


def test_pairs_of_scontrol_are_read() -> None:
    assert parse_pairs("NodeName=n1 Arch=x OS=Linux 6.1 #1 Gres=gpu:2 Reason=a b") == {
        **{"NodeName": "n1", "Arch": "x", "OS": "Linux", "Gres": "gpu:2", "Reason": "a"}
    }
