"""The life of a run's nodes at one backend: opened, connected to, repaired between two attempts,
closed (`Nodes`)."""

from __future__ import annotations

import shlex
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Self

from tfcluster import kinds
from tfcluster.agent.agent_config import AgentConfig
from tfcluster.errors import NodeLostError

if TYPE_CHECKING:
    from tfcluster.agent.catalogue import LostRunEnded
    from tfcluster.plans.plan import NodePlan, Plan
    from tfcluster.rundir.chaos import Fault
    from tfcluster.spec.sections import Runtime
    from tfcluster.wire.agent_link import AgentLink


Tell = Callable[[str], None]
"""A callback that shows a sentence to the user."""


def ignore_event(sentence: str) -> None:
    """Do nothing: a `Tell` for callers that only need the result."""


def agent_socket_name(run_id: str, node: str) -> str:
    """Return the name of the socket of a run's agent; a socket's path must be short."""
    return f"{run_id[-40:]}.{zlib.crc32(node.encode()):08x}.agent"


@dataclass(frozen=True, slots=True)
class RunContext:
    """The facts of a run that a backend needs, and the callbacks by which it reports."""

    run_id: str
    runtime_dir: Path
    """The folder of sockets and port locks on this machine."""
    lease_s: float = 60.0
    """Seconds an agent reached over a network keeps its tasks alive without the coordinator."""
    tell: Tell = ignore_event
    """Shows what takes long: an image is pulled."""
    queued: Tell = ignore_event
    """Shows why the nodes are not there yet; may be called again when the reason changes."""
    warn_at_end: Tell = ignore_event
    """Shows, after the run, what the user should know: warnings, and what could not be removed."""
    plan: Plan | None = None
    runtime: Runtime | None = None
    """The whole plan, and that section of its spec; a test of other backends needs neither."""

    def relayed_agent(self, node: str, token: str) -> AgentConfig:
        """Return the configuration of a node's agent that a transport reaches."""
        return AgentConfig(
            run_id=self.run_id,
            node=node,
            token=token,
            socket=agent_socket_name(self.run_id, node),
            ports_dir="ports",
            lease_s=self.lease_s,
        )


class Nodes(ABC):
    """The nodes of one run at one backend: ``async with Nodes(planned, run) as nodes``.

    The start of the block makes what the nodes share (a network, an allocation), the end removes
    it. A start that fails or is cancelled leaves nothing behind.
    """

    copies_from_lost = False
    """True: once the coordinator was killed, what removes its nodes first copies the chief's files
    into the run folder."""
    keeps_folders = False
    """True: what holds the tasks' folders stays at the end of the block."""
    allocation = ""
    """The owner of the nodes at a scheduler: ``job 17``; set by the start of the block."""
    hosts: Mapping[str, str] = {}
    """Node → host name, for nodes whose host names were not known to the plan."""

    def __init__(self, planned: Sequence[NodePlan], run: RunContext) -> None:
        self.planned, self.run = planned, run

    async def __aenter__(self) -> Self:
        """Raise SetupError if the nodes cannot be made or allocated."""
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    @abstractmethod
    async def connect(self, node: NodePlan, *, token: str, is_fenced: bool = False) -> AgentLink:
        """Connect to the node's agent, which is started if it does not run.

        `is_fenced`: it is certain that no process of an earlier agent of this node is alive;
        otherwise the end of that agent must be proved before another one starts. May be called
        for several nodes at once.

        Raises SetupError if the agent does not start; the text holds its error output.
        """

    def fetch_command(self, node: str, folder: PurePath) -> str:
        """Return the command by which the user copies `folder` from a node that was reached.

        The user pastes it, and the node has chosen the folder: each such word is quoted.
        """
        return f"scp -r {shlex.quote(f'{node}:{folder}')} ."

    async def salvage(self, node: str, folder: PurePath, into: Path) -> None:
        """Copy `folder` of a node whose agent is gone into the empty folder `into`.

        For nodes whose files end with the node when it is replaced. Raises SetupError if they
        cannot be copied, or, as here, if the node's next agent finds them.
        """
        raise NodeLostError(f"the agent of {node} is gone")

    async def repair(self) -> list[str]:
        """Repair the nodes before another attempt; return what was repaired, in sentences."""
        return []

    def disturb(self, fault: Fault) -> None:
        """Begin a fault of a node (`rundir.chaos.OF_NODES`), and end it when its time is over.

        Only for nodes whose network is simulated; tells the end, and why it could not be done.
        """
        raise NotImplementedError

    @classmethod
    async def fetch_left(
        cls, node: NodePlan, run_id: str, folder: PurePath, into: Path, *, endpoint: str
    ) -> None:
        """Copy `folder` of a node that a run has left, because its files were not gathered.

        For nodes that are made for a run. `endpoint`: see `past_runs.note`. Raises SetupError.
        """
        raise NodeLostError(f"{node.name} is gone, with its files")

    @staticmethod
    async def end_run(node: NodePlan, *, run_id: str, former: Mapping[str, Any]) -> LostRunEnded:
        """End the leftover processes of a run whose coordinator was killed; return the node's
        answer (`agent.fencing.end_lost_run`).

        For nodes that outlive the coordinator. `former`: the identity of the node's agent. Raises
        NodeLostError if the node does not answer.
        """
        raise NotImplementedError


def open_nodes(planned: Sequence[NodePlan], run: RunContext) -> Nodes:
    """Return the nodes of one backend for ``async with``; all `planned` have the same backend."""
    return class_of(planned[0])(planned, run)


def class_of(node: NodePlan) -> type[Nodes]:
    """Return the class that makes and reaches nodes like `node`."""
    nodes: type[Nodes] = kinds.import_object(kinds.get(node.backend).nodes)
    return nodes
