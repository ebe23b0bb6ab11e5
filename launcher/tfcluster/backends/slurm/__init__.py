"""The backend `slurm`: tasks run on the nodes of one job of Slurm, under which agents are steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from tfcluster import kinds
from tfcluster.kinds import BackendKind, Capabilities
from tfcluster.spec import COMPANIONS, file_name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tfcluster.spec.fields import Mistake
    from tfcluster.spec.model import ClusterSpec
    from tfcluster.spec.sections import Runtime

JOB = "SLURM_JOB_ID"
"""The variable that Slurm sets in an allocation."""
NODES = "SLURM_JOB_NODELIST"
"""The variable with the names of the allocation's nodes."""
COMPONENTS = "SLURM_HET_SIZE"
"""The variable with the number of components, each with its own nodes, of a heterogeneous job."""
OF_CLUSTER = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CLUSTER_NAME")
"""Variables that say which cluster is meant, and nothing about a job."""
_OF_JOB = re.compile(r"(SLURM|SRUN|SLURMD|PMI|PMIX|PMI2)_")
_USED_INSIDE = {"tasks_per_node"}
"""The fields of ``runtime.slurm`` that count inside an allocation, too."""
_COUNTS = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")

_HINTS = {
    "out-of-memory": "raise runtime.slurm.mem, the memory of the job on each node, or use fewer"
    " tasks per node, smaller batches or shuffle buffers, no cache() in memory"
}


class SlurmKind(BackendKind):
    """Nodes of a job; Slurm chooses the hosts, and ends everything on them with the job."""

    capabilities = Capabilities(makes_nodes=True, sees_files=True, ties_agents=True, clears_up=True)
    nodes = "tfcluster.backends.slurm.slurm_nodes:SlurmNodes"
    jobs = "tfcluster.backends.slurm.slurm_jobs"
    leftovers = "tfcluster.backends.slurm.slurm_jobs"
    hints = _HINTS
    why_no_addresses = "Slurm chooses the nodes"

    def place(self, task: str, number: int, host: str, runtime: Runtime) -> tuple[str, str]:
        group = self.group(task.rpartition("-")[0], runtime)
        return f"{group}-node-{number}" if group else f"node-{number}", ""

    def group(self, job: str, runtime: Runtime) -> str:
        """Return the role, if its nodes are a component of their own of a heterogeneous job."""
        return file_name_of(job) if runtime.has_own("slurm", job) else ""

    def deal(self, tasks: Mapping[str, int], runtime: Runtime) -> dict[str, list[int]]:
        """Spread each job over all nodes; a companion rides with the first task."""
        settings = runtime.of_role(next(iter(tasks))).slurm
        sharing = {job: number for job, number in tasks.items() if job not in COMPANIONS}
        total, each = sum(sharing.values()), settings.tasks_per_node or 1
        if settings.tasks_per_node is None and settings.nodes is not None:
            rooms = kinds.share_evenly(total, settings.nodes)
        else:
            rooms = [min(each, total - before) for before in range(0, total, each)]
        riding = {job: [0] * number for job, number in tasks.items() if job in COMPANIONS}
        return kinds.deal(sharing, rooms) | riding

    def find_mistakes(self, spec: ClusterSpec) -> Iterator[Mistake]:
        from tfcluster.spec.fields import Mistake  # imports pydantic

        runtime = spec.runtime
        if runtime.slurm.nodes is not None and _has_roles(runtime):
            message = "nodes counts those of the whole job, of which roles have their own"
            fix = "write tasks_per_node instead: the nodes follow from it"
            yield Mistake(("runtime", "slurm", "nodes"), message, fix)

    def gives_gpus(self, runtime: Runtime) -> bool:
        return bool(runtime.slurm.gpus_per_task)

    def explain_unused(self, runtime: Runtime, environ: Mapping[str, str]) -> str:
        """Name the options of a job, which Slurm has given already."""
        unused = sorted(runtime.slurm.model_fields_set - _USED_INSIDE)
        written = any("slurm" in role.model_fields_set for role in runtime.roles.values())
        if written and not _has_roles(runtime):
            unused.append("runtime.roles")
        if JOB not in environ or not unused:
            return ""
        fields = f"{', '.join(unused)} {'have' if len(unused) > 1 else 'has'} no effect"
        return (
            f"job {environ[JOB]}, in which this runs, is used as it is: of runtime.slurm, {fields};"
            " --submit makes a job of its own"
        )

    def leave(self, environ: MutableMapping[str, str]) -> None:
        """Remove the settings of the job and its steps, which sbatch would pass on."""
        for name in [name for name in environ if _OF_JOB.match(name) and name not in OF_CLUSTER]:
            del environ[name]

    def adopt(
        self, runtime: Runtime, tasks: Mapping[str, int], environ: Mapping[str, str]
    ) -> Runtime:
        """Use the roles and the number of nodes of the job, if this process is in one."""
        if len({self.group(job, runtime) for job in tasks}) > 1:
            if JOB not in environ or environ.get(COMPONENTS, "1") != "1":
                return runtime  # each role has as many nodes as its tasks need
            runtime = runtime.without_roles("slurm")
        listed = [environ[name] for name in _COUNTS if environ.get(name, "").isdecimal()]
        if JOB in environ and listed:
            slurm, written = runtime.slurm, runtime.slurm.model_fields_set
            values = {**dict(slurm), "nodes": int(listed[0])}
            adopted = type(slurm).model_construct(_fields_set=written, **values)
            runtime = runtime.model_copy(update={"slurm": adopted})
        return runtime


def _has_roles(runtime: Runtime) -> bool:
    """Return whether some role has nodes of its own, so that the job is heterogeneous."""
    return any(runtime.has_own("slurm", job) for job in runtime.roles)


KIND = SlurmKind()
