"""The backends that exist, and what the spec and the plan must know of each: its `BackendKind`.

A backend is a folder of `tfcluster.backends` and a line of `REGISTRY`, or belongs to another
package, which has an entry point of the group `PACKAGES` for it. The module named there holds
`KIND`; it is imported to plan a spec, so it imports little. The class `BackendKind.nodes`, which
makes and reaches the nodes (`tfcluster.backends.base`), is imported at the start of a run.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tfcluster.agent.error_text import describe_error
from tfcluster.errors import SetupError
from tfcluster.node_loss import LossNature

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

SIMULATED = "simulated"
"""The backend of a spec whose `runtime.network` is to be simulated."""
REGISTRY: dict[str, str] = {
    "local": "tfcluster.backends.local",
    "ssh": "tfcluster.backends.ssh",
    "docker": "tfcluster.backends.docker",
    "slurm": "tfcluster.backends.slurm",
    "kubernetes": "tfcluster.backends.kubernetes",
    SIMULATED: "tfcluster.backends.simulated",
}
"""The name that users write → the module with its `KIND`."""
PACKAGES = "tfcluster.backends"
"""The group of entry points for backends of other packages: ``NAME = "package.module:KIND"``."""
ALLOCATIONS: dict[str, str] = {
    "SLURM_JOB_ID": "slurm",
    "TFCLUSTER_KUBERNETES_JOB": "kubernetes",
}
"""The variable that is set in an allocation of a scheduler → its backend."""
AUTO = "auto"
"""Not a backend: tasks at this machine's addresses are `local`, all others `ssh`. Numbers of tasks
go to the nodes of the allocation that this process runs in, if it runs in one (`adopt`)."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The properties of a backend; everything else decides by them, never by its name."""

    shares_filesystem: bool = False
    """The nodes are this machine: tasks write straight into the run folder and see all its files.
    """
    has_lease: bool = True
    """A lost connection may be resumed; without a lease the agent kills its tasks at once."""
    holds_ports: bool = True
    """Ports stay bound between two attempts; otherwise a taken one is chosen again."""
    makes_nodes: bool = False
    """The nodes exist only for the run, so a spec has numbers of tasks instead of addresses."""
    has_image: bool = False
    """The files and the Python of a node are those of an image, and only folders that are mounted
    are there in addition."""
    has_own_network: bool = False
    """The backend gives the nodes a network of the run, in which each has all ports to itself."""
    has_one_task: bool = False
    """Each task has a node of its own, with no other GPUs than the task's."""
    starts_fresh: bool = False
    """A node's new agent finds none of the files that were there before it."""
    loses_files: bool = False
    """The files of a node end with it: they must be copied before it is removed."""
    on_one_machine: bool = False
    """All nodes share the cores and GPUs of one machine."""
    simulates_network: bool = False
    """The nodes are on a network of slow links that the spec describes (`runtime.network`)."""
    sees_files: bool = False
    """True if nodes usually see this machine's files, environments of Python included, at the
    same paths."""
    ties_agents: bool = False
    """An agent ends with its connection, and a new connection never finds the old agent."""
    ends_alone: bool = False
    """The scheduler takes away single nodes: a signal to an agent announces the end of its node,
    and not of the whole job."""
    clears_up: bool = False
    """Leftovers of nodes are removed, or named, even if a node did not hear of the run's end."""

    @property
    def has_addresses(self) -> bool:
        """True if the nodes are hosts whose addresses the spec gives."""
        return not (self.shares_filesystem or self.makes_nodes)

    @property
    def uses_host_network(self) -> bool:
        """True if tasks listen on the addresses of a machine, and not of a container's network."""
        return not (self.has_own_network or self.on_one_machine)

    @property
    def outlives_coordinator(self) -> bool:
        """True if tasks run on, for as long as their lease, after the coordinator was killed."""
        return self.has_lease and not self.clears_up


class BackendKind:
    """A backend as the spec and the plan see it. The defaults are those of hosts with addresses."""

    capabilities = Capabilities()
    nodes: str
    """``module:class`` of its `backends.base.Nodes`."""
    leftovers: str | None = None
    """The module that finds and removes what lost runs left behind (`backends.past_runs`)."""
    exposure: str | None = None
    """A sentence about who can reach TensorFlow's ports; None: all who reach the task's machine."""
    data_fix: str = "for data that each host has, set runtime.hosts.H.data_dir"
    """The advice for data that is too large for the copy of the code."""
    hints: Mapping[str, str] = MappingProxyType({})
    """Anchor of ``docs/failures.md`` → the hint for a task on such a node, where it differs."""
    losses: Mapping[LossNature, tuple[str, str]] = MappingProxyType({})
    """Nature of a node's loss → anchor of ``docs/failures.md`` and hint, where they differ."""
    why_no_addresses: str = "it makes the nodes itself"
    """The reason why a backend that makes nodes refuses the addresses of other machines."""

    section: str | None = None
    """``module:class`` of the pydantic model of ``runtime.NAME``, the section that the spec has for
    a backend of another package; those of ours are fields of `spec.sections.Runtime`."""
    jobs: str | None = None
    """The module that submits runs as jobs of a scheduler (`backends.jobs.Jobs`)."""

    def place(self, task: str, number: int, host: str, runtime: Any) -> tuple[str, str]:
        """Return the node and the host name of a task (``worker-1``).

        `number`: that of its node in the group, from `deal`. `host`: the host of its address in
        the spec, loopback if it has none. A host name that is known only once the nodes are
        allocated is empty. `runtime`: the spec's `spec.sections.Runtime`.
        """
        return host, host

    def group(self, job: str, runtime: Any) -> str:
        """Return the name of the group of tasks that share nodes with those of `job`, or ""."""
        return ""

    def deal(self, tasks: Mapping[str, int], runtime: Any) -> Mapping[str, Iterable[int]]:
        """Return the number of the node of each task of a group, which has `tasks` of each job."""
        return deal(tasks, [1] * sum(tasks.values()))

    def find_mistakes(self, spec: Any) -> Iterable[Any]:
        """Return what this backend refuses in a `spec.model.ClusterSpec`, as `spec.fields.Mistake`.

        For rules between sections; those of one value belong to its field.
        """
        return ()

    def image(self, runtime: Any) -> str | None:
        """Return the image of containers that the spec's `spec.sections.Runtime` names, if any."""
        named: str | None = runtime.image
        return named

    def gives_gpus(self, runtime: Any) -> bool:
        """Return whether `runtime` has the scheduler give GPUs to each task, and choose which."""
        return False

    def adopt(self, runtime: Any, tasks: Mapping[str, int], environ: Mapping[str, str]) -> Any:
        """Return `runtime` with what `environ` and the number of `tasks` of each job decide."""
        return runtime

    def is_allocated(self, environ: Mapping[str, str]) -> bool:
        """Return whether a process with `environ` runs in an allocation, whose nodes it uses."""
        return any(name in environ for name, backend in ALLOCATIONS.items() if get(backend) is self)

    def explain_unused(self, runtime: Any, environ: Mapping[str, str]) -> str:
        """Return a sentence about settings that the allocation of `environ` overrules, or none."""
        return ""

    def leave(self, environ: MutableMapping[str, str]) -> None:
        """Remove from `environ` what makes a process part of an allocation of this backend."""
        for name, backend in ALLOCATIONS.items():
            if get(backend) is self:
                environ.pop(name, None)

    def is_here(self, environ: Mapping[str, str]) -> bool:
        """Return whether tasks use the cores and GPUs of this machine."""
        return self.capabilities.shares_filesystem


@functools.cache
def get(name: str) -> BackendKind:
    """Return the kind called `name`; raises SetupError for one that is not installed."""
    if name in REGISTRY:
        kind: BackendKind = import_module(REGISTRY[name]).KIND
        return kind
    if (offer := find_offer(name)) is None:
        raise SetupError(
            f"this version of tfcluster has no backend {name}, and no installed package offers it",
            fix=f"install its package, or use one of {', '.join(sorted(REGISTRY))}",
        )
    try:
        kind = offer.load()
    except Exception as error:  # of another package
        package = offer.dist.name if offer.dist is not None else offer.value
        message = f"the backend {name} of {package} cannot be imported: {describe_error(error)}"
        raise SetupError(message, fix="install a version that fits this tfcluster") from error
    return kind


@functools.cache
def find_offer(name: str) -> EntryPoint | None:
    """Return the entry point of another package's backend, or None."""
    from importlib.metadata import entry_points  # takes 20 ms

    return next(iter(entry_points(group=PACKAGES, name=name)), None)


def names() -> tuple[str, ...]:
    """Return the names of all backends, ours first."""
    from importlib.metadata import entry_points

    return (*REGISTRY, *sorted(entry_points(group=PACKAGES).names))


def is_known(name: str) -> bool:
    """Return whether there is a backend called `name`."""
    return name in REGISTRY or find_offer(name) is not None


def section_model(name: str) -> Any:
    """Return the model of ``runtime.NAME`` for a backend of another package, or None."""
    if name in REGISTRY or find_offer(name) is None:
        return None
    section = get(name).section
    return None if section is None else import_object(section)


def import_object(place: str) -> Any:
    """Return the object at ``module:name``."""
    module, name = place.split(":")
    return getattr(import_module(module), name)


class Numbers:
    """The numbers of the nodes of a spec's tasks, from 0 in each `BackendKind.group`.

    `tasks`: the number of tasks of each job.
    """

    def __init__(self, tasks: Mapping[str, int], runtime: Any) -> None:
        self._tasks, self._runtime = tasks, runtime
        self._dealt: dict[str, Iterator[int]] = {}

    def next(self, kind: BackendKind, job: str) -> int:
        """Return the number of the node of the next task of `job`."""
        if job not in self._dealt:
            group = kind.group(job, self._runtime)
            sharing = {
                each: number
                for each, number in self._tasks.items()
                if kind.group(each, self._runtime) == group
            }
            dealt = kind.deal(sharing, self._runtime)
            self._dealt |= {each: iter(numbers) for each, numbers in dealt.items()}
        return next(self._dealt[job])


def deal(tasks: Mapping[str, int], rooms: Sequence[int]) -> dict[str, list[int]]:
    """Return the number of the node of each task of each job, spread over all nodes.

    `rooms`: the number of tasks on each node. The tasks of a job are in the order of the nodes, so
    that few neighbours in a ring are on different ones.
    """
    free, dealt = [*rooms], dict[str, list[int]]()
    turns = itertools.cycle(range(len(free)))
    for job, number in tasks.items():
        dealt[job] = []
        while len(dealt[job]) < number:
            node = next(turns)
            if free[node]:
                free[node] -= 1
                dealt[job].append(node)
        dealt[job].sort()
    return dealt


def share_evenly(number: int, nodes: int) -> list[int]:
    """Return how many of `number` tasks each of `nodes` gets."""
    return [number // nodes + (node < number % nodes) for node in range(nodes)]


def adopt(runtime: Any, tasks: Mapping[str, int], environ: Mapping[str, str]) -> Any:
    """Return `runtime` for the allocation that a process with `environ` runs in, if it is in one.

    `runtime` belongs to a spec with numbers of `tasks`; a backend that it names is kept.
    """
    around = [name for variable, name in ALLOCATIONS.items() if variable in environ]
    for name in around if runtime.backend == AUTO else ():
        runtime = runtime.model_copy(update={"backend": name})
    return (
        runtime if runtime.backend == AUTO else get(runtime.backend).adopt(runtime, tasks, environ)
    )


def leave_allocation(environ: MutableMapping[str, str]) -> str | None:
    """Make `environ` that of a process outside of any allocation; return the allocation's backend.

    None if it was outside already.
    """
    around = [name for variable, name in ALLOCATIONS.items() if variable in environ]
    for name in around:
        get(name).leave(environ)
    return around[0] if around else None


def with_network(backend: str, *, is_simulated: bool) -> str:
    """Return the backend of a spec that names `backend`, whose network may be simulated."""
    return SIMULATED if is_simulated and backend in (AUTO, "local") else backend


def resolve(backend: str, *, is_local: bool) -> str:
    """Return the backend for a host of a spec with this ``runtime.backend``."""
    if backend != AUTO:
        return backend
    return "local" if is_local else "ssh"
