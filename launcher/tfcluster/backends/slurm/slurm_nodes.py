"""`SlurmNodes`: the nodes of the allocation that the coordinator runs in.

An agent is a step of the job: `srun` stands where `ssh` does for hosts. Slurm ends a step with its
srun client, and everything in a step with the job, so an agent ends with its connection
(`Capabilities.ties_agents`); a new connection starts a new agent. The exit code of srun proves
nothing (it is 0 when a node fails): only the agent's goodbye is the good end of a node.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Self

from tfcluster.agent import message_fields
from tfcluster.agent.agent_config import AgentConfig, SlurmJob
from tfcluster.backends.relayed import STARTER, RelayedNodes, Unreached
from tfcluster.backends.slurm import COMPONENTS, JOB, NODES, OF_CLUSTER
from tfcluster.backends.slurm.slurm_commands import (
    SlurmError,
    SlurmSilentError,
    ask_in_thread,
    parse_pairs,
    plain,
)
from tfcluster.backends.slurm.slurm_jobs import own
from tfcluster.errors import SetupError
from tfcluster.plans.plan import NodePlan
from tfcluster.wire.agent_link import AgentLink

_OPTIONS = (
    "--overlap",  # the job's own step, and other agents, use the same cores
    "--no-kill",  # a lost node ends its own step only
    "--nodes=1",
    "--ntasks=1",
    "--mem=0",  # all of the job's memory on the node
    "--cpu-bind=none",  # tasks share the cores out; srun would bind the agent to one
    "--mpi=none",
    "--unbuffered",
    "--chdir=/",  # the present folder need not exist there
    "--job-name=tfcluster-agent",
    "--quiet",
)
_SETTINGS = re.compile(r"(SLURM|SRUN|SLURMD|SBATCH|SALLOC|PMI|PMIX|PMI2)_")
_JOB_ENDED = "Job/step already completing|Invalid job id|job .* expired"
_NOISE = re.compile(
    "cluster configuration lacks support for cpu binding|task 0: Exited with exit code"
    "|Job step aborted: Waiting|First task exited|forcing job termination"
)
"""Lines of srun that say nothing about the reason why it ended."""
_POLL_S = 5.0
_FIXES = (
    (
        "unrecognized option '--(container|no-container)",
        "this Slurm has no Pyxis, whose options runtime.wrap has: use Apptainer,"
        ' "wrap": ["apptainer", "exec", "--nv", "image.sif"]',
    ),
    (
        "not found|No such file or directory|execve",
        "the node does not see this Python: set runtime.python to one that it has",
    ),
    (
        "not in this job's allocation|Requested node configuration|DOWN|not responding",
        "the node is down or was taken from the job: `scontrol show node {node}` says why",
    ),
    (_JOB_ENDED, "the job has ended: leave its shell, or allocate nodes again"),
    ("Unable to contact slurm controller", "slurmctld does not answer: `scontrol ping`"),
)


class SlurmNodes(RelayedNodes):
    """The nodes of this process's job, in Slurm's order."""

    async def __aenter__(self) -> Self:
        """Find the names and addresses of the job's nodes; raises SetupError for too few."""
        self.allocation = f"job {os.environ[JOB]}"
        groups = self._groups()
        self._names, self.hosts = dict[str, str](), dict[str, str]()
        """Node → its name at Slurm, with the component of a heterogeneous job; → its address."""
        for number, planned in enumerate(groups):
            environ = dict(os.environ)
            if len(groups) > 1:
                environ[NODES] = environ[f"{NODES}_HET_GROUP_{number}"]
            names = await find_nodes(environ)
            if len(names) < (wanted := len(planned)):
                part = f"component {number} of " if len(groups) > 1 else ""
                raise SetupError(
                    f"{part}{self.allocation} has {len(names)} of the {wanted} nodes that the spec"
                    " needs",
                    fix=f"allocate {wanted} nodes, or leave out runtime.slurm.tasks_per_node:"
                    " the tasks then share the nodes",
                )
            component = f"+{number}" if len(groups) > 1 else ""
            for node, name in zip(planned, names, strict=False):
                self._names[node], self.hosts[node] = f"{name}{component}", names[name]
        return self

    def _groups(self) -> list[list[str]]:
        """Return the names of the nodes of each component of the job; raises SetupError."""
        groups: dict[str, list[str]] = {}
        for node in self.planned:
            groups.setdefault(node.name.rpartition("node-")[0], []).append(node.name)
        if (has := int(os.environ.get(COMPONENTS, "1"))) != len(groups):
            raise SetupError(
                f"{self.allocation} has {has} component{'s' * (has > 1)}, and the roles of the spec"
                f" need {len(groups)}",
                fix="give each role with nodes of its own an entry in runtime.roles, or let `up"
                " --submit` make the job",
            )
        return [*groups.values()]

    async def connect(self, node: NodePlan, *, token: str, is_fenced: bool = False) -> AgentLink:
        step = replace(node, destination=self._names[node.name])
        if node.name in self._agents:  # during the run, in which slurmctld may be restarted
            await self._await_controller(f"{_name(step)} has to wait for a new agent")
        return await super().connect(step, token=token, is_fenced=is_fenced)

    def configure(self, node: NodePlan, config: AgentConfig) -> AgentConfig:
        """Name the job that is queued again if the node of this coordinator is lost."""
        job, restarts = own(os.environ)
        return message_fields.replace(config, job=SlurmJob(id=job, restarts=restarts))

    def fetch_command(self, node: str, folder: PurePath) -> str:
        name, _, component = self._names[node].partition("+")
        where = f"--nodes=1 --nodelist={name}" + (f" --het-group={component}" if component else "")
        return f"srun {where} tar -C {shlex.quote(str(folder))} -c . | tar -x"

    async def _await_controller(self, what: str) -> None:
        """Wait until slurmctld answers; say `what` it keeps from being done."""
        is_said = False
        while True:
            try:
                await ask_in_thread("scontrol", "show", "job", os.environ[JOB], what=what)
            except SlurmSilentError as error:
                if not is_said:
                    self.run.tell(error.message)
                is_said = True
                await asyncio.sleep(_POLL_S)
            except SlurmError:
                return  # srun explains it
            else:
                return

    @classmethod
    def argv(cls, node: NodePlan) -> list[str]:
        """Return srun without the settings of the job's own script, which it would obey."""
        dropped = [name for name in os.environ if _SETTINGS.match(name) and name not in OF_CLUSTER]
        unset = [word for name in dropped for word in ("-u", name)]
        where = [f"--jobid={os.environ[JOB]}", f"--nodelist={_name(node)}"]
        if component := (node.destination or "").partition("+")[2]:
            where.append(f"--het-group={component}")
        wrap = map(os.path.expanduser, node.wrap)
        python = [*wrap, node.python, "-I", "-S", "-c", STARTER]
        return ["env", *unset, "srun", *where, *_OPTIONS, *python]

    @classmethod
    def clean(cls, line: str) -> str:
        return "" if _NOISE.search(line) else plain(line)

    @classmethod
    def proves_end(cls, stderr: str) -> bool:
        return re.search(_JOB_ENDED, stderr) is not None

    @classmethod
    def fix(cls, node: NodePlan, error: Unreached) -> str:
        fixes = (fix for pattern, fix in _FIXES if re.search(pattern, error.stderr))
        return next(fixes, "see `scontrol show node {node}`").format(node=_name(node))


def _name(node: NodePlan) -> str:
    """Return the name of a node at Slurm."""
    return (node.destination or "").partition("+")[0]


async def find_nodes(environ: Mapping[str, str]) -> dict[str, str]:
    """Return name → address of the nodes of the job that `environ` belongs to, in its order.

    The address is the one by which Slurm's own daemons reach the node. Raises SetupError.
    """
    what = f"cannot list the nodes of job {environ[JOB]}"
    listed = await ask_in_thread("scontrol", "show", "hostnames", environ[NODES], what=what)
    names = listed.split()
    shown = await ask_in_thread(
        "scontrol", "show", "node", "--oneliner", ",".join(names), what=what
    )
    nodes = {pairs.get("NodeName"): pairs for pairs in map(parse_pairs, shown.splitlines())}
    return {name: nodes.get(name, {}).get("NodeAddr") or name for name in names}
