"""The configuration files of a Slurm cluster of the tests: Slurm's own, and those of /etc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .dockerd import CGROUPS
from .machines import NETWORK

USERS = {"ann": 2001, "ben": 2002}
"""The names and ids of the users, whose homes are shared by all machines."""
LOGIN = 254
"""The last part of the login node's address; those of the nodes are 1, 2, …."""
_CONFIG = """\
ClusterName=lab
SlurmctldHost=login
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={cred_expire}
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd.%n
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,bf_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
KillWait=5
InactiveLimit=0
MinJobAge=300
SlurmctldTimeout=10
SlurmdTimeout={slurmd_timeout}
MessageTimeout=5
BatchStartTimeout=60
TCPTimeout=2
UnkillableStepTimeout=120
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=cancel Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=20
PartitionName=short Nodes=ALL PriorityTier=1 MaxTime=1 MaxNodes=2
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


def slurm_conf(
    folder: Path,
    nodes: Mapping[str, int],
    *,
    cred_expire: int,
    slurmd_timeout: int,
    proctrack: str,
) -> str:
    """Return slurm.conf; `nodes`: name → CPUs, the rest as in `slurm.SlurmCluster`."""
    return _CONFIG.format(
        folder=folder,
        cred_expire=cred_expire,
        slurmd_timeout=slurmd_timeout,
        proctrack=proctrack,
        nodes="\n".join(f"NodeName={n} CPUs={cpus} RealMemory=2000" for n, cpus in nodes.items()),
    )


def cgroup_conf() -> str:
    """Return cgroup.conf, which Slurm reads beside slurm.conf if proctrack is cgroup."""
    return f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={CGROUPS}\n"


def etc_files(folder: Path, nodes: Sequence[str]) -> dict[str, str]:
    """Return the files of /etc that know the users and the addresses of all machines."""
    numbers = {**{name: number for number, name in enumerate(nodes, 1)}, "login": LOGIN}
    hosts = [f"{NETWORK}.{number} {name}" for name, number in numbers.items()]
    users = [f"{user}:x:{n}:{n}::{folder}/home/{user}:/bin/sh" for user, n in USERS.items()]
    groups = [f"{user}:x:{n}:" for user, n in USERS.items()]
    return {
        "hosts": "\n".join(["127.0.0.1 localhost", *hosts, ""]),
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "passwd": Path("/etc/passwd").read_text() + "\n".join([*users, ""]),
        "group": Path("/etc/group").read_text() + "\n".join([*groups, ""]),
    }
