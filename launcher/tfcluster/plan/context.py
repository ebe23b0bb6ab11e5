"""What the machine says, as values: all that a plan needs to know besides the spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfcluster.plan import remote_paths
from tfcluster.plan.imports import Code
from tfcluster.plan.plan import Interpreter
from tfcluster.plan.resources import Cores

LOCAL = "local"
"""The name of the node that is this machine."""


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Facts gathered once, at the edge, by `tfcluster.discovery.machine_facts.gather`."""

    environ: Mapping[str, str]
    """The launcher's own environment: what a local task starts from."""
    spec_dir: str
    """The folder of the spec, to which its paths are relative; absolute."""
    addresses: frozenset[str] = frozenset()
    """Addresses of this machine's own interfaces, and its host name."""
    cores: Cores = field(default_factory=Cores)
    """Those this process may use."""
    gpus: tuple[int, ...] | None = ()
    """Indexes of this machine's GPUs, in CUDA's order; None where its driver does not say."""
    bundles: Mapping[str, str] = field(default_factory=dict)
    """Node name → folder in which that node finds the unpacked bundle."""
    interpreters: Mapping[str, Interpreter] = field(default_factory=dict)
    """Node name → the Python of its tasks."""
    env_file: tuple[tuple[str, str], ...] = ()
    """The variables of ``job.env_file``, in its order."""
    imports: frozenset[str] | None = None
    """Top-level modules the job's files import for certain; None where nobody could look."""
    code: Code | None = None
    """What the job's files say, those of a ready-made job too; None where nobody could look."""
    docker_is_here: bool = False
    """Whether the docker daemon that would be used runs on this machine."""

    def bundle(self, node: str) -> str:
        """A node that was not reached yet unpacks it in its own cache, under the same digest."""
        if node in self.bundles:
            return self.bundles[node]
        digest = self.bundles.get(LOCAL, "bundle").rsplit("/", 1)[-1]
        return f"{remote_paths.CACHE}/bundles/{digest}"
