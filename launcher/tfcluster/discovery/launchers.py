"""Other launchers: which one has started this process, and what its environment says of the others.

`LAUNCHERS` gives the tasks' addresses: to `tfcluster join`, which another launcher starts on every
host, and to `tfcluster up` in the job of a scheduler that has no backend of its own
(`kinds.ALLOCATIONS` has those with one). `RANKS` says which process of its host this one is.
Several may be around one process, such as mpirun in a job of PBS: what says most about the tasks
comes first in `LAUNCHERS`, and the launcher that was started last comes first in `RANKS`.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic_core import PydanticCustomError

from tfcluster import kinds
from tfcluster.agent.error_text import reason_of
from tfcluster.agent.foreign_json import open_regular, parse_json
from tfcluster.errors import SetupError
from tfcluster.plans.plan import TaskId
from tfcluster.spec import shorten
from tfcluster.spec.allocation import FIRST_PORT, Allocation
from tfcluster.spec.cluster import check_host

_FLUX_S: Final = 30.0
"""Time for the broker of Flux to answer."""
_ONE_MACHINE = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher or scheduler, recognized by a variable of the processes that it starts."""

    name: str
    variable: str
    read: Callable[[Mapping[str, str]], Allocation | None]
    """Reads the environment; None if this process is alone. Raises SetupError for bad values."""
    lends_nodes: bool = False
    """True for a scheduler whose nodes `tfcluster up` may use through ssh."""


@dataclass(frozen=True, slots=True)
class Rank:
    """The position of this process among those that a launcher has started."""

    variable: str
    size: int
    """Their number on all hosts."""
    local_rank: int
    """The position on this host, from 0."""


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the cluster or the hosts for a `join` with `environ`, or None outside of launchers.

    Raises SetupError for a value that cannot be used.
    """
    if (found := _read_first(LAUNCHERS, environ)) is None:
        return None
    rank = find_rank(environ)
    return replace(found, joins=True, processes=rank.size if rank is not None else 0)


def find_nodes(environ: Mapping[str, str]) -> Allocation | None:
    """Return the nodes for an `up` with `environ` in a scheduler's job; None in no such job.

    Raises SetupError for a value that cannot be used.
    """
    if any(name in environ for name in kinds.ALLOCATIONS):
        return None
    return _read_first([launcher for launcher in LAUNCHERS if launcher.lends_nodes], environ)


def _read_first(launchers: Iterable[Launcher], environ: Mapping[str, str]) -> Allocation | None:
    """Return what the first of `launchers` gives that is around a process with `environ`."""
    for launcher in launchers:
        if environ.get(launcher.variable) and (found := launcher.read(environ)) is not None:
            return replace(found, launcher=launcher.name)
    return None


def find_rank(environ: Mapping[str, str]) -> Rank | None:
    """Return the rank of this process, or None if no launcher numbers it.

    Raises SetupError for a value that is no number.
    """
    for size, local_rank in RANKS:
        if environ.get(size):
            return Rank(size, _number(environ, size), _number(environ, local_rank))
    return None


def tasks_of_process(
    tasks: Sequence[TaskId], *, task_count: int, hosts: Collection[str], rank: Rank | None
) -> tuple[TaskId, ...]:
    """Return which of this machine's `tasks` this process starts: all, or the one of its rank.

    All if a launcher has started no more than one process on each of the cluster's `hosts`. Raises
    SetupError if there is not one process for each of the cluster's `task_count` tasks.
    """
    if rank is None or rank.size <= len(hosts):
        return tuple(tasks)
    if rank.size != task_count:
        raise SetupError(
            f"{rank.variable} is {rank.size}, and the tasks of the spec are {task_count}",
            fix="start as many processes as there are tasks, or one on each host",
        )
    if rank.local_rank >= len(tasks):
        raise SetupError(
            f"the launcher has started process {rank.local_rank} of this host, counted from 0, and"
            f" the tasks here are {len(tasks)}",
            fix="let it fill one host after the other (mpirun --map-by slot), or write the"
            " tasks' addresses in the spec",
        )
    return (tasks[rank.local_rank],)


def _bad(variable: str, value: str, problem: str, fix: str = "") -> SetupError:
    else_fix = f"correct {variable}, or write the tasks' addresses in the spec: then it is not read"
    return SetupError(f"{variable} is {shorten(value)}: {problem}", fix=fix or else_fix)


def _number(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name, "")
    if not (value.isascii() and value.isdecimal()):
        raise _bad(name, value, "not a number", "start the process again through its launcher")
    return int(value)


def _allocation(variable: str, names: Collection[str], value: str) -> Allocation:
    """Return an allocation of the hosts `names`, which the `value` of `variable` gives."""
    hosts = [f"[{name}]" if ":" in name and name[0] != "[" else name for name in names]
    for host in hosts:
        try:
            check_host(host, shorten(host), form="")
        except PydanticCustomError:
            raise _bad(variable, value, f"{shorten(host)} is not a host name") from None
    if not hosts:
        raise _bad(variable, value, "it names no host")
    slots = Counter(hosts)
    return Allocation(variable, hosts=tuple(slots), slots=slots)


# -- the tasks with their roles


def _read_roles(
    environ: Mapping[str, str], variable: str, jobs: Mapping[str, str]
) -> Allocation | None:
    """Return the cluster of a JSON value like TF_CONFIG; `jobs`: its job names → those of a spec.

    None for a single machine, which has no cluster.
    """
    text = environ[variable]
    try:
        value = parse_json(text)
    except ValueError as error:
        raise _bad(variable, text, f"not JSON: {error}") from None
    written = value.get("cluster") if isinstance(value, dict) else None
    if not written:
        return None
    lists = written.values() if isinstance(written, dict) else [None]
    if not all(isinstance(addresses, list) for addresses in lists):
        raise _bad(variable, text, 'cluster is not {"worker": ["host:port", …]}')
    cluster = {jobs.get(job, job): addresses for job, addresses in written.items()}
    try:
        job, index = value["task"]["type"], int(value["task"]["index"])
        job = jobs.get(job, job)
    except (KeyError, TypeError, ValueError):
        raise _bad(variable, text, 'it has no "task": {"type": "worker", "index": 0}') from None
    if job == "evaluator":  # TensorFlow's own evaluator is in no cluster
        cluster.setdefault("evaluator", [f"{socket.gethostname()}:{FIRST_PORT}"])
    if not 0 <= index < len(cluster.get(job, ())):
        raise _bad(variable, text, f"its cluster has no {job}:{index}, which this process is")
    return Allocation(variable, cluster=cluster, task=f"{job}:{index}")


def _read_tf_config(environ: Mapping[str, str]) -> Allocation | None:
    return _read_roles(environ, "TF_CONFIG", {"master": "chief"})


def _read_vertex(environ: Mapping[str, str]) -> Allocation | None:
    pools = ("chief", "worker", "ps", "evaluator")
    jobs = {f"workerpool{number}": job for number, job in enumerate(pools)}
    return _read_roles(environ, "CLUSTER_SPEC", jobs)


def _read_batch_ai(environ: Mapping[str, str]) -> Allocation:
    variables = {"worker": "AZ_BATCHAI_WORKER_HOSTS", "ps": "AZ_BATCHAI_PS_HOSTS"}
    listed = {job: environ.get(name, "") for job, name in variables.items()}
    cluster = {job: text.split(",") for job, text in listed.items() if text}
    task = None  # the variables do not say whether this process is a worker or a ps
    if "ps" not in cluster:
        index = _number(environ, "AZ_BATCHAI_TASK_INDEX")
        task = f"worker:{index}"
        if index >= len(cluster["worker"]):
            raise _bad(variables["worker"], listed["worker"], f"it has no {task}")
    return Allocation(variables["worker"], cluster=cluster, task=task)


# -- the hosts


def _read_sagemaker(environ: Mapping[str, str]) -> Allocation:
    text, host = environ["SM_HOSTS"], environ.get("SM_CURRENT_HOST", "")
    try:
        names = parse_json(text)
    except ValueError as error:
        raise _bad("SM_HOSTS", text, f"not JSON: {error}") from None
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise _bad("SM_HOSTS", text, "not a list of host names")
    if host not in names:
        raise _bad("SM_CURRENT_HOST", host, f"SM_HOSTS has only {', '.join(names)}")
    # mpirun copies SM_CURRENT_HOST of its own host to all others.
    own = host if find_rank(environ) is None else None
    return replace(_allocation("SM_HOSTS", names, text), host=own)


def _read_azure(environ: Mapping[str, str]) -> Allocation:
    text = environ["AZ_BATCH_HOST_LIST"]
    return _allocation("AZ_BATCH_HOST_LIST", text.split(","), text)


def _read_open_mpi(environ: Mapping[str, str]) -> Allocation | None:
    """Return this machine if all processes are here: mpirun does not say where others are."""
    size, local = "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"
    if _number(environ, size) == _number(environ, local):
        return Allocation(size, hosts=(_ONE_MACHINE,))
    others = LAUNCHERS[[launcher.variable for launcher in LAUNCHERS].index(size) + 1 :]
    if any(environ.get(launcher.variable) for launcher in others):
        return None
    raise _bad(
        size,
        environ[size],
        f"{environ[local]} are on this host, and Open MPI does not say where the others are",
        "write the tasks' addresses in the spec, or start mpirun in a job of Slurm, PBS or LSF",
    )


def _read_flux(environ: Mapping[str, str]) -> Allocation:
    argv = ["flux", "hostlist", "--expand", "local"]
    try:
        done = subprocess.run(
            argv, env=dict(environ), capture_output=True, text=True, timeout=_FLUX_S, check=True
        )
    except subprocess.CalledProcessError as error:
        problem = f"`{' '.join(argv)}` failed: {error.stderr.strip() or error}"
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = f"`{' '.join(argv)}` failed: {reason_of(error)}"
    else:
        return _allocation("FLUX_URI", done.stdout.split(), done.stdout.strip())
    raise _bad("FLUX_URI", environ["FLUX_URI"], problem)


def _read_slurm(environ: Mapping[str, str]) -> Allocation:
    import asyncio  # too slow for a plan without Slurm

    from tfcluster.backends.slurm import NODES
    from tfcluster.backends.slurm.slurm_nodes import find_nodes as find_slurm_nodes

    # The step that mpirun makes has all nodes but its own.
    step = "OMPI_COMM_WORLD_SIZE" not in environ and environ.get("SLURM_STEP_NODELIST")
    listed = step or environ.get(NODES, "")
    if not listed:
        raise _bad(NODES, listed, "it names no host")
    nodes = asyncio.run(find_slurm_nodes({**environ, NODES: listed}))
    found = _allocation(NODES, nodes.values(), listed)
    if not step:
        return found
    # Such as 3,2(x2): three processes on the first node, two on the others.
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    counts = [int(number) for number, repeats in groups for _ in range(int(repeats or 1))]
    return replace(found, slots=dict(zip(found.hosts, counts, strict=False)))


def _read_host_file(variable: str) -> Callable[[Mapping[str, str]], Allocation]:
    """Return the reader of a file with a host on each line, which may be repeated for each slot."""

    def read(environ: Mapping[str, str]) -> Allocation:
        name = environ[variable]
        try:
            with open_regular(name) as file:
                lines = file.read().decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            fix = f"copy the file to storage that all hosts share, and set {variable} to the copy"
            raise _bad(variable, name, reason_of(error), fix) from None
        return _allocation(variable, [line.split()[0] for line in lines if line.strip()], name)

    return read


LAUNCHERS: tuple[Launcher, ...] = (
    # Roles and addresses of all tasks.
    Launcher("TF_CONFIG", "TF_CONFIG", _read_tf_config),
    Launcher("Vertex AI", "CLUSTER_SPEC", _read_vertex),
    Launcher("Azure Batch AI", "AZ_BATCHAI_WORKER_HOSTS", _read_batch_ai),
    # Hosts, of the one that was probably started within the others first.
    Launcher("Open MPI", "OMPI_COMM_WORLD_SIZE", _read_open_mpi),
    Launcher("SageMaker", "SM_HOSTS", _read_sagemaker),
    Launcher("Azure Batch", "AZ_BATCH_HOST_LIST", _read_azure),
    Launcher("Flux", "FLUX_URI", _read_flux, lends_nodes=True),
    Launcher("Slurm", "SLURM_JOB_ID", _read_slurm),
    Launcher("PBS", "PBS_NODEFILE", _read_host_file("PBS_NODEFILE"), lends_nodes=True),
    Launcher("LSF", "LSB_DJOB_HOSTFILE", _read_host_file("LSB_DJOB_HOSTFILE"), lends_nodes=True),
)
RANKS: tuple[tuple[str, str], ...] = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
"""The variables of launchers that number their processes: how many, and the rank on the host."""
