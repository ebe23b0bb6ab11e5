"""The facts that planning needs besides the spec, as values: the tasks' nodes and this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfcluster import kinds
from tfcluster.kinds import BackendKind
from tfcluster.plans import remote_paths
from tfcluster.plans.plan import Gpu, Gpus, Interpreter, TaskId
from tfcluster.plans.resources import Cores
from tfcluster.plans.script_analysis import Code

LOCAL = "local"
"""The name of the node on this machine."""


@dataclass(frozen=True, slots=True)
class PlacedTask:
    """One task of the spec, its address and its node; port 0 is chosen at the start."""

    id: TaskId
    host: str
    port: int
    node: str
    backend: str
    gpus: Gpus = None
    env: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def kind(self) -> BackendKind:
        return kinds.get(self.backend)


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Facts of the machine, gathered once by `tfcluster.discovery.machine_facts.gather`."""

    environ: Mapping[str, str]
    """The launcher's environment, which local tasks inherit."""
    spec_dir: str
    """The folder of the spec, to which its paths are relative; absolute."""
    tasks: tuple[PlacedTask, ...] = ()
    """The tasks of the spec, each with its node."""
    cores: Cores = field(default_factory=Cores)
    """The cores that this process may use."""
    gpus: tuple[Gpu, ...] | None = ()
    """This machine's GPUs, in CUDA's order; None if the driver does not list them."""
    bundles: Mapping[str, str] = field(default_factory=dict)
    """Node name → folder of the bundle on that node; on `LOCAL` unpacked only if tasks need it."""
    interpreters: Mapping[str, Interpreter] = field(default_factory=dict)
    """Node name → the Python of its tasks."""
    env_file: tuple[tuple[str, str], ...] = ()
    """The variables of ``job.env_file``, in file order."""
    imports: frozenset[str] | None = None
    """Modules that the user's files import for certain; None if they could not be read."""
    code: Code | None = None
    """The analysis of the job's files, even an example job's; None if they could not be read."""
    backends_here: frozenset[str] = frozenset({LOCAL})
    """The backends whose tasks use the cores and GPUs of this machine."""

    def is_here(self, backend: str) -> bool:
        """Return whether tasks of the backend use the cores and GPUs of this machine."""
        return backend in self.backends_here

    @property
    def packages(self) -> frozenset[str]:
        """The top-level packages of `imports`."""
        return frozenset(name.partition(".")[0] for name in self.imports or ())

    def bundle(self, node: str) -> str:
        """Return the bundle's folder on `node`; before it is reached, its usual place there."""
        if node in self.bundles:
            return self.bundles[node]
        digest = self.bundles.get(LOCAL, "bundle").rsplit("/", 1)[-1]
        return f"{remote_paths.CACHE}/bundles/{digest}"
